"""Measures what the agent and the gateway add to what they stand in front of, and what the two tools cost a host.

Knows the agent and the gateway as their callers do: over HTTP, each in a process of its own, as their upstream is. A
call through them and the same call of the upstream alternate, and what is told of is the difference of the two.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from mcp import Client
from mcp.types import CallToolResult, Tool

from prompts import Candidate, PromptTokenizer
from serving.agent.description import summary
from serving.agent.http import PATH
from serving.agent.server import execute_tool, route_tool
from serving.bench import SHORT, Numbers, Server, percentile, query, tools
from serving.config import Config

# Tools that stand behind the two.
BEHIND = (10, 100, 1_000, 10_000)
_TOOLS_OF_A_SERVER = 15
_WARM_UP = 10
_DATABASE = "LIGHT_ROUTER_CATALOG__DATABASE"
_GATEWAY_URL = "LIGHT_ROUTER_GATEWAY__URL"

Ask = Callable[[int], Awaitable[Any]]


async def measure(config: Config, profile: Path, requests: int) -> Numbers:
    """All numbers of one run. Keys are stable; milliseconds unless a key says otherwise."""
    numbers = prompt_tokens(PromptTokenizer(config.model.tokenizer or config.model.path))
    with tempfile.TemporaryDirectory() as folder, Server("serving.bench_upstream") as upstream:
        database = {_DATABASE: f"sqlite:///{Path(folder) / 'bench.db'}"}
        place = f"{upstream.url}{PATH}"
        agent_options = ("--config", str(profile), "--source", place)
        with Server("serving.cli_agent", *agent_options, port_option="--http", environment=database) as agent:
            numbers |= await execution(f"{agent.url}{PATH}", place, requests)
        options = ("serve", "--config", str(profile), "--host", "127.0.0.1")
        settings = {**database, _GATEWAY_URL: f"{upstream.url}/v1"}
        with Server("serving.cli", *options, environment=settings) as gateway:
            numbers |= await gateway_mode(gateway.url, upstream.url, requests)
    return {key: round(value, 4) for key, value in numbers.items()}


async def execution(agent: str, upstream: str, requests: int) -> Numbers:
    """What `execute` adds to a direct call: with a thread, which it reads and writes, and without one."""
    async with Client(agent, cache=None) as through, Client(upstream, cache=None) as direct:
        routed = (await through.call_tool("route", {"task": "say the text again", "k": 1})).structured_content or {}
        shown = [*([routed["decision"]] if routed["decision"] else []), *routed["alternatives"]]
        call = {"candidate_id": shown[0]["candidate_id"]}

        async def directly(number: int) -> CallToolResult:
            return _checked(await direct.call_tool("echo", {"text": str(number)}), number)

        async def with_thread(number: int) -> CallToolResult:
            given = {**call, "arguments": {"text": str(number)}, "thread": routed["thread"]}
            return _checked(await through.call_tool("execute", given), number)

        async def stateless(number: int) -> CallToolResult:
            return _checked(await through.call_tool("execute", {**call, "arguments": {"text": str(number)}}), number)

        direct_ms, thread_ms, stateless_ms = await _alternating([directly, with_thread, stateless], requests)
    return {
        "agent_direct_ms_p50": statistics.median(direct_ms),
        "agent_execute_ms_p50": statistics.median(thread_ms),
        **_added("agent_execute_added_ms", thread_ms, direct_ms),
        **_added("agent_execute_stateless_added_ms", stateless_ms, direct_ms),
    }


async def gateway_mode(gateway: str, upstream: str, requests: int) -> Numbers:
    """What the gateway adds to a direct completion beside the decision itself, which the server's metrics tell."""
    offered = [_function(tool) for tool in tools(SHORT)]
    decisions: list[float] = []
    async with httpx.AsyncClient(timeout=120) as client:

        async def completion(url: str, number: int) -> None:
            messages = [{"role": "user", "content": query(number)}]
            body = {"model": "bench", "messages": messages, "tools": offered}
            (await client.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()

        async def directly(number: int) -> None:
            await completion(upstream, number)

        async def through(number: int) -> None:
            await completion(gateway, number)

        async def decided() -> None:
            decisions.append(_decision_ms((await client.get(f"{gateway}/metrics")).text))

        direct_ms, gateway_ms = await _alternating([directly, through], requests, before_each=decided)
        await decided()
    routing = [after - before for before, after in pairwise(decisions)][-requests:]
    rest = [whole - decision for whole, decision in zip(gateway_ms, routing, strict=True)]
    return {
        "gateway_direct_ms_p50": statistics.median(direct_ms),
        "gateway_ms_p50": statistics.median(gateway_ms),
        "gateway_routing_ms_p50": statistics.median(routing),
        **_added("gateway_added_ms", rest, direct_ms),
    }


def prompt_tokens(tokenizer: PromptTokenizer) -> Numbers:
    """Tokens of the two tools in a host's prompt, and of every tool in their place."""
    numbers: Numbers = {}
    for count in BEHIND:
        servers = max(count // _TOOLS_OF_A_SERVER, 1)
        made = [
            Candidate(str(number), tool["name"], tool["description"], server=f"server-{number % servers}")
            for number, tool in enumerate(tools(count))
        ]
        two = [_described(tool) for tool in (route_tool(summary(made)), execute_tool())]
        every = [_function(tool) for tool in tools(count)]
        numbers[f"agent_prompt_tokens_{count}"] = _tokens(tokenizer, two)
        numbers[f"injected_prompt_tokens_{count}"] = _tokens(tokenizer, every)
    return numbers


async def _alternating(
    asks: Sequence[Ask], requests: int, before_each: Callable[[], Awaitable[None]] | None = None
) -> list[list[float]]:
    """Milliseconds of each, one after the other in every round; the first rounds are not counted."""
    times: list[list[float]] = [[] for _ in asks]
    for number in range(_WARM_UP + requests):
        if before_each is not None:
            await before_each()
        for ask, its in zip(asks, times, strict=True):
            before = time.perf_counter()
            await ask(number)
            its.append((time.perf_counter() - before) * 1e3)
    return [its[_WARM_UP:] for its in times]


def _added(name: str, through: Sequence[float], direct: Sequence[float]) -> Numbers:
    more = [whole - own for whole, own in zip(through, direct, strict=True)]
    return {f"{name}_p50": statistics.median(more), f"{name}_p99": percentile(more, 0.99)}


def _checked(result: CallToolResult, number: int) -> CallToolResult:
    if result.is_error or getattr(result.content[0], "text", None) != str(number):
        raise RuntimeError(f"the call of {number} was answered with {result.content[:1]}")
    return result


def _decision_ms(metrics: str) -> float:
    """Time that the server has spent on decisions since it started."""
    name = 'light_router_stage_seconds_sum{stage="total"} '
    return sum(float(line.removeprefix(name)) for line in metrics.splitlines() if line.startswith(name)) * 1e3


def _described(tool: Tool) -> dict[str, Any]:
    return _function({"name": tool.name, "description": tool.description, "input_schema": tool.input_schema})


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """As a host sends a tool to its model."""
    function = {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]}
    return {"type": "function", "function": function}


def _tokens(tokenizer: PromptTokenizer, shown: Sequence[dict[str, Any]]) -> int:
    """One line for each, as chat templates write tools."""
    return len(tokenizer.text("\n".join(json.dumps(tool, ensure_ascii=False) for tool in shown)))
