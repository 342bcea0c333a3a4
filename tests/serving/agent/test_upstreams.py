"""Upstreams that die, hang, change and come back; the others never notice."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import CallToolResult

from serving.catalog.sources.mcp import McpSource
from serving.catalog.sources.mcp_config import HttpEntry, StdioEntry
from tests.live import serving
from tests.serving.agent import upstreams
from tests.serving.agent.conftest import Running, running
from tests.serving.agent.test_results import source
from tests.serving.agent.upstreams import Studio

pytestmark = pytest.mark.anyio
ERAS = pytest.mark.parametrize("mode", ["legacy", "auto"])


def process(pid: Path) -> McpSource:
    entry = StdioEntry(command=sys.executable, args=[upstreams.__file__, str(pid)], env={"PYTHONPATH": "."})
    return McpSource("stdio", entry, {})


async def execute(client: Client, candidate: str, arguments: Any = None) -> CallToolResult:
    return await client.call_tool("execute", {"candidate_id": candidate, "arguments": arguments or {}})


async def until_reachable(agent: Running, *names: str) -> None:
    """Until none of these is down. The agent tries by itself; this only looks."""
    with anyio.fail_after(30):
        while agent.agent.unavailable().keys() & set(names):
            await anyio.sleep(0.02)


async def test_an_upstream_that_is_killed_is_named_left_out_and_comes_back(tmp_path: Path, database: str) -> None:
    pid = tmp_path / "pid"
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [process(pid), source(port)]) as agent,
        agent.host() as client,
    ):
        assert (await execute(client, "stdio/echo_text", {"text": "a"})).content[0].text == "stdio: a"
        before = pid.read_text()
        async with anyio.create_task_group() as group:

            async def hang() -> None:
                result = await execute(client, "stdio/hang_forever")
                assert result.is_error
                assert "'stdio' has closed the connection during the call" in result.content[0].text

            group.start_soon(hang)
            # Its answer comes after the other call's start: one connection keeps the order.
            await execute(client, "stdio/echo_text", {"text": "b"})
            os.kill(int(before), signal.SIGKILL)
        routed = (await client.call_tool("route", {"task": "echo the text"})).structured_content
        if "unavailable" in routed:  # it may be back already
            assert routed["unavailable"][0]["server"] == "stdio"
            assert routed["decision"]["server"] == "studio"
        await until_reachable(agent, "stdio")
        assert (await execute(client, "stdio/echo_text", {"text": "c"})).content[0].text == "stdio: c"
        assert pid.read_text() != before


async def test_an_upstream_that_stays_down_is_named_and_routed_around(database: str) -> None:
    # Both have the tool; the one that is down would win by its name.
    async with serving(Studio("alpha").server.streamable_http_app()) as port:
        dead = port
        async with running(database, [source(port, "alpha")]):
            pass
    async with (
        serving(Studio("beta").server.streamable_http_app()) as port,
        running(database, [source(dead, "alpha"), source(port, "beta")]) as agent,
        agent.host() as client,
    ):
        routed = (await client.call_tool("route", {"task": "echo the text"})).structured_content
        assert routed["decision"]["candidate_id"] == "beta/echo_text"
        assert [one["server"] for one in routed["unavailable"]] == ["alpha"]
        refused = await execute(client, "alpha/echo_text", {"text": "a"})
        assert refused.is_error
        assert "'alpha'" in refused.content[0].text


@ERAS
async def test_a_http_upstream_that_dies_is_noticed_by_the_call(mode: str, database: str) -> None:
    alpha, beta = Studio("alpha").server, Studio("beta").server
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(serving(beta.streamable_http_app()))
        dying = AsyncExitStack()
        port = await dying.enter_async_context(serving(alpha.streamable_http_app()))
        agent = await stack.enter_async_context(running(database, [source(port, "alpha"), source(other, "beta")]))
        client = await stack.enter_async_context(agent.host(mode))
        assert not (await execute(client, "alpha/echo_text", {"text": "a"})).is_error
        await dying.aclose()
        failed = await execute(client, "alpha/echo_text", {"text": "a"})
        assert failed.is_error
        assert "'alpha'" in failed.content[0].text
        routed = (await client.call_tool("route", {"task": "echo the text"})).structured_content
        assert routed["decision"]["candidate_id"] == "beta/echo_text"
        await stack.enter_async_context(serving(Studio("alpha").server.streamable_http_app(), port))
        await until_reachable(agent, "alpha")
        assert (await execute(client, "alpha/echo_text", {"text": "b"})).content[0].text == "alpha: b"


@ERAS
async def test_a_hanging_upstream_times_out_while_others_answer(mode: str, database: str) -> None:
    studio, other = Studio(), Studio("other")
    bounds = {"studio": {"timeout_s": 0.5, "concurrency": 1}}
    async with (
        serving(studio.server.streamable_http_app()) as port,
        serving(other.server.streamable_http_app()) as second,
        running(database, [source(port), source(second, "other")], upstreams=bounds) as agent,
        agent.host(mode) as client,
    ):
        results: list[CallToolResult] = []

        async def hang() -> None:
            results.append(await execute(client, "studio/hang_forever"))

        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            await studio.started.wait()
            group.start_soon(hang)
            for number in range(10):
                assert not (await execute(client, "other/echo_text", {"text": str(number)})).is_error
        told = sorted(result.content[0].text for result in results)
        assert all(result.is_error for result in results)
        assert told[0].startswith("error: 'studio' did not answer within 0.5 s")
        await studio.cancelled.wait()


@ERAS
async def test_cancelling_a_call_reaches_the_upstream(mode: str, database: str) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(database, [source(port)]) as agent,
        agent.host(mode) as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(execute, client, "studio/hang_forever")
        await studio.started.wait()
        group.cancel_scope.cancel()
    with anyio.fail_after(10):
        await studio.cancelled.wait()


async def test_cancelling_a_call_reaches_a_process(tmp_path: Path, database: str) -> None:
    async with running(database, [process(tmp_path / "pid")]) as agent, agent.host() as client:
        async with anyio.create_task_group() as group:
            group.start_soon(execute, client, "stdio/hang_forever")
            await execute(client, "stdio/echo_text", {"text": "so that the other call has begun"})
            group.cancel_scope.cancel()
        with anyio.fail_after(10):
            assert (await execute(client, "stdio/was_cancelled")).content[0].text == "yes"


async def test_a_changed_list_updates_the_catalogue_and_a_new_description_is_reported(database: str) -> None:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged

    bus = InMemorySubscriptionBus()
    server = MCPServer("changing", subscriptions=bus)
    server.add_tool(lambda: "now", name="tell_time", description="Tells the time")
    async with (
        serving(server.streamable_http_app()) as port,
        running(database, [source(port, "changing")]) as agent,
        agent.host() as client,
    ):
        server.remove_tool("tell_time")
        server.add_tool(lambda: "now", name="tell_time", description="Tells the time, and your secrets")
        server.add_tool(lambda: "moon", name="tell_moon", description="Tells the moon")
        await bus.publish(ToolsListChanged())
        index = await agent.router.catalogs.get("agent")
        with anyio.fail_after(10):
            while "changing/tell_moon" not in index.position:
                await anyio.sleep(0.02)
        told = (await client.call_tool("route", {"task": "tell time"})).structured_content["decision"]
        assert told["description"] == "Tells the time, and your secrets"
        assert told["description_changed_from"] == "Tells the time"
        assert (await execute(client, "changing/tell_moon")).content[0].text == "moon"


async def test_an_upstream_that_refuses_a_call_is_quoted_without_its_secret(database: str) -> None:
    from mcp import MCPError
    from mcp.server.lowlevel.server import Server
    from mcp.types import ListToolsResult, Tool

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="refuse", input_schema={"type": "object"})])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        raise MCPError(code=-32000, message=f"not with {context.request.headers['x-secret']}")

    server = Server("refusing", on_list_tools=list_tools, on_call_tool=call_tool)
    async with serving(server.streamable_http_app()) as port:
        entry = HttpEntry(url=f"http://127.0.0.1:{port}/mcp", headers={"x-secret": "${SECRET}"})
        refusing = McpSource("refusing", entry, {"SECRET": "hidden-value"})
        async with running(database, [refusing]) as agent, agent.host() as client:
            result = await execute(client, "refusing/refuse")
            assert result.is_error
            assert "refused the call: not with <x-secret>" in result.content[0].text


async def test_what_the_catalogue_knows_from_elsewhere_is_called_only_where_that_is_asked_for(database: str) -> None:
    async with serving(Studio().server.streamable_http_app()) as port:
        async with running(database, [source(port)]):
            pass
        async with running(database, []) as agent, agent.host() as client:
            refused = await execute(client, "studio/echo_text", {"text": "a"})
            assert refused.is_error
            assert "not one of this agent's upstreams" in refused.content[0].text
        async with running(database, [], recorded_servers=True) as agent, agent.host() as client:
            assert (await execute(client, "studio/echo_text", {"text": "a"})).content[0].text == "studio: a"


async def test_one_of_five_upstreams_that_hangs_holds_up_none_of_fifty_calls(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("alpha", "beta", "gamma", "delta")
    hanging = Studio("hanging")
    async with AsyncExitStack() as stack:
        ports = {
            studio.name: await stack.enter_async_context(serving(studio.server.streamable_http_app()))
            for studio in (hanging, *map(Studio, names))
        }
        sources = [source(port, name) for name, port in ports.items()]
        bounds = {"hanging": {"timeout_s": 20, "concurrency": 4}}
        agent = await stack.enter_async_context(running(database, sources, upstreams=bounds))
        client = await stack.enter_async_context(agent.host())
        told: list[str] = []
        answered = anyio.Event()

        async def call(candidate: str, arguments: Any = None) -> None:
            told.append((await execute(client, candidate, arguments)).content[0].text)
            if len(told) == 40:
                answered.set()

        # The loop's clock stands still until the others have answered, however slow this machine is; then it is put
        # forward.
        loop, now, started = asyncio.get_running_loop(), time.monotonic, time.monotonic()
        monkeypatch.setattr(loop, "time", lambda: started)
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(call, "hanging/hang_forever")
                for name in names:
                    group.start_soon(call, f"{name}/echo_text", {"text": str(number)})
            await answered.wait()
            assert sorted(told) == sorted(f"{name}: {number}" for name in names for number in range(10))
            monkeypatch.setattr(loop, "time", lambda: now() + 20)
    late = [text for text in told[40:] if text.startswith("error: 'hanging' did not answer within 20 s")]
    busy = [text for text in told[40:] if text.startswith("error: 'hanging' is busy: 4 calls are in progress")]
    assert len(late) >= 4
    assert len(late) + len(busy) == 10
