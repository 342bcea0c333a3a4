"""Measures a live server of a profile, and its engine against the bare model, in one run.

Knows two fixed shapes: 10 candidates whose prompt is 574 tokens, and 200 candidates through the prefilter. The
server runs in a process of its own and is asked over HTTP; every conversation is new, so that no answer comes from
the prefix cache. The bare comparison is the same model in bfloat16 with sdpa and `logits_to_keep=1`, run by
transformers over the same token ids as one causal row, with as many torch threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shlex
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from rich.table import Table

from prompts import Candidate, Message, PromptTokenizer, Template
from serving.config import Config
from serving.engine.base import ScoreRequest

Numbers = dict[str, float]

PROMPT_TOKENS = 574
SHORT, LONG = 10, 200
CLIENTS = (1, 4, 16)
START_SECONDS = 180

# The answer's length, up to where its body begins.
_LENGTH = re.compile(rb"(?is)^HTTP.*?\r\ncontent-length: (\d+)(?:\r\n[^\r]+)*\r\n\r\n")

_VERBS = "find list create update delete export import archive share schedule cancel approve rename merge"
_NOUNS = "invoice ticket flight hotel playlist contact report branch calendar order sensor recipe patient"
_TOPICS = "by its number|for one customer|in a given week|with all attachments|across every region|as a draft"


def tools(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """`count` different tools with schemas, the same for a seed."""
    choose = random.Random(seed)  # noqa: S311  (test load, not a secret)
    made = []
    for number in range(count):
        verb, noun, topic = (
            choose.choice(_VERBS.split()),
            choose.choice(_NOUNS.split()),
            choose.choice(_TOPICS.split("|")),
        )
        properties = {name: {"type": "string"} for name in choose.sample([f"{n}_id" for n in _NOUNS.split()], 3)}
        made.append(
            {
                "name": f"{verb}_{noun}_{number}",
                "description": f"{verb.capitalize()} a {noun} {topic}, and return what changed.",
                "input_schema": {"type": "object", "properties": properties, "required": list(properties)[:1]},
            }
        )
    return made


def query(number: int) -> str:
    """A request that no other number shares the beginning of."""
    choose = random.Random(number)  # noqa: S311
    words = " ".join(
        f"{choose.choice(_VERBS.split())} the {choose.choice(_NOUNS.split())} {choose.choice(_TOPICS.split('|'))},"
        for _ in range(4)
    )
    return f"{number}: please {words} and tell me when it is done."


def padded(template: Template, candidates: list[Candidate], number: int, tokens: int) -> str:
    """A query whose prompt with these candidates is `tokens` tokens, or as near as whole words come."""
    text = query(number)
    while template.render([Message("user", text)], candidates).tokens < tokens:
        text += " now"
        if template.render([Message("user", text)], candidates).truncated:
            break
    return text


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of `values` do not pass."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Server:
    """A module that serves on a free port, for the time of a `with` block.

    Args:
        module: run with the arguments, then `port_option` and the port; ready when /health/ready is 200.
        environment: what it has beside this process's own.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        port_option: str = "--port",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._command = [sys.executable, "-m", module, *arguments, port_option, str(self.port)]
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        self._process = subprocess.Popen(  # noqa: S603
            self._command,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended while it started; run {shlex.join(self._command[1:])} to see why")
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=5).status_code == httpx.codes.OK:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.25)
        self.__exit__()
        raise RuntimeError(f"the server was not ready after {START_SECONDS} s")

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=60)


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post("/v1/route", json=body)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def _timed(connection: socket.socket, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Wall time in milliseconds from the first byte sent to the last received, and the answer.

    Bytes on a kept connection: what a client makes of them is not the server's time.
    """
    content = json.dumps(body).encode()
    head = "POST /v1/route HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sent = f"{head}content-length: {len(content)}".encode() + b"\r\n\r\n" + content
    received = b""
    started = time.perf_counter()
    connection.sendall(sent)
    while not (length := _LENGTH.search(received)) or len(received) < length.end() + int(length[1]):
        received += connection.recv(2**20)
    milliseconds = (time.perf_counter() - started) * 1e3
    if not received.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"the server answered {received[:300]!r}")
    return milliseconds, json.loads(received[length.end() :])


def _one_by_one(port: int, bodies: list[dict[str, Any]], suffix: str) -> Numbers:
    connection = socket.create_connection(("127.0.0.1", port), timeout=120)
    _timed(connection, bodies[0])  # the first of a shape fills the caches of its candidates
    answers = [_timed(connection, body) for body in bodies[1:]]
    connection.close()
    numbers: Numbers = {}
    for stage in answers[0][1]["timings_ms"]:
        times = [answer["timings_ms"][stage] for _, answer in answers]
        numbers[f"stage_{stage}_ms_p50{suffix}"] = statistics.median(times)
        numbers[f"stage_{stage}_ms_p99{suffix}"] = percentile(times, 0.99)
    walls = [wall for wall, _ in answers]
    overheads = [
        wall - answer["timings_ms"].get("engine", 0.0) - answer["timings_ms"].get("embedding", 0.0)
        for wall, answer in answers
    ]
    numbers[f"request_ms_p50{suffix}"] = statistics.median(walls)
    numbers[f"request_ms_p99{suffix}"] = percentile(walls, 0.99)
    numbers[f"api_overhead_ms_p50{suffix}"] = statistics.median(overheads)
    numbers[f"api_overhead_ms_p99{suffix}"] = percentile(overheads, 0.99)
    numbers[f"api_overhead_ratio{suffix}"] = statistics.median(
        overhead / wall for overhead, wall in zip(overheads, walls, strict=True)
    )
    numbers[f"prompt_tokens{suffix}"] = statistics.median(answer["usage"]["prompt_tokens"] for _, answer in answers)
    return numbers


async def _throughput(client: httpx.AsyncClient, bodies: list[dict[str, Any]], clients: int) -> float:
    """Requests a second with so many callers, each asking again as soon as it is answered."""
    waiting = list(bodies)

    async def caller() -> None:
        while waiting:
            await _ask(client, waiting.pop())

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(clients)))
    return len(bodies) / (time.perf_counter() - started)


async def _against_bare(config: Config, template: Template, candidates: list[Candidate], rounds: int) -> Numbers:
    """The engine in this process and the bare model, turn by turn, over the same token ids."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    from serving.engine.local import LocalEngine  # noqa: PLC0415

    engine = LocalEngine(config)
    await engine.start()
    bare = AutoModelForCausalLM.from_pretrained(
        config.model.path, dtype=torch.bfloat16, attn_implementation="sdpa"
    ).eval()

    def run_bare(row: torch.Tensor) -> None:
        torch.set_num_threads(engine.threads)
        with torch.inference_mode():
            bare(row, logits_to_keep=1, use_cache=False)

    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + 1):
        text = padded(template, candidates, 10_000 + number, PROMPT_TOKENS)
        prompt = template.render([Message("user", text)], candidates)
        row = torch.tensor([[*prompt.prefix, *(t for c in prompt.continuations for t in c)]])
        started = time.perf_counter()
        await engine.score(ScoreRequest(prompt.prefix, prompt.continuations, prompt.labels, cache_salt=str(number)))
        between = time.perf_counter()
        await asyncio.to_thread(run_bare, row)
        if number:  # the first round warms both up
            ours.append(between - started)
            theirs.append(time.perf_counter() - between)
    await engine.close()
    return {
        "torch_threads": engine.threads,
        "engine_prefill_tokens_per_s": PROMPT_TOKENS / statistics.median(ours),
        "bare_prefill_tokens_per_s": PROMPT_TOKENS / statistics.median(theirs),
        "engine_vs_bare_ratio": statistics.median(t / o for o, t in zip(ours, theirs, strict=True)),
    }


async def measure(config: Config, profile: Path, requests: int) -> Numbers:
    """All numbers of one run. Keys are stable; milliseconds unless a key says otherwise."""
    template = Template(
        PromptTokenizer(config.model.tokenizer or config.model.path),
        chat=config.model.chat,
        readout=config.model.readout,
        layout=config.model.layout,
        budget=config.model.budget,
    )
    short, long = tools(SHORT), tools(LONG, seed=1)
    candidates = [Candidate(t["name"], t["name"], t["description"], input_schema=t["input_schema"]) for t in short]

    def shaped(number: int) -> dict[str, Any]:
        return {"query": padded(template, candidates, number, PROMPT_TOKENS), "candidates": short}

    numbers: Numbers = {}
    with Server("serving.cli", "serve", "--config", str(profile), "--host", "127.0.0.1") as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            numbers |= _one_by_one(server.port, [shaped(n) for n in range(requests + 1)], "")
            bodies = [{"query": query(1_000 + n), "candidates": long} for n in range(requests + 1)]
            numbers |= _one_by_one(server.port, bodies, "_200")
            for count in CLIENTS:
                load = [shaped(2_000 + 100 * count + n) for n in range(max(8, 2 * count))]
                numbers[f"requests_per_s_c{count}"] = await _throughput(client, load, count)
            numbers["rss_mb"] = _resident_mb((await client.get("/metrics")).text)
    if config.engine.kind == "local":
        numbers |= await _against_bare(config, template, candidates, max(requests // 2, 5))
    return {key: round(value, 4) for key, value in numbers.items()}


def _resident_mb(metrics: str) -> float:
    line = next(line for line in metrics.splitlines() if line.startswith("process_resident_memory_bytes "))
    return float(line.split()[1]) / 2**20


# What a number should reach, as a bound and whether it is the least.
REACH: dict[str, tuple[float, bool]] = {
    "api_overhead_ms_p50": (5, False),
    "agent_execute_added_ms_p50": (10, False),
    "agent_execute_stateless_added_ms_p50": (10, False),
    "gateway_added_ms_p50": (5, False),
    **{f"agent_prompt_tokens_{count}": (800, False) for count in (10, 100, 1_000, 10_000)},
    "api_overhead_ms_p50_200": (5, False),
    "engine_vs_bare_ratio": (0.85, True),
    "rss_mb": (1638, False),
    "refused_ms_p99": (50, False),
    "late_ratio": (0.01, False),
    "recovery_s": (5, False),
    "catalogue_build_s": (20, False),
    "catalogue_rss_mb": (1024, False),
    "catalogue_add_one_ms": (100, False),
    "prefilter_bm25_vs_rank_bm25": (20, True),
    "prefilter_dense_recall10_against_exact": (0.995, True),
    "prefilter_regex_ms_p50": (150, False),
    "prefilter_graph_ms_p50": (30, False),
    **{f"prefilter_{method}_ms_p50": (10.0, False) for method in ("bm25", "dense", "fused")},
    **{f"prefilter_{method}_ms_p99": (30.0, False) for method in ("bm25", "dense", "fused")},
    **{f"prefilter_{method}_with_embedding_ms_p50": (25.0, False) for method in ("dense", "fused")},
}


def report(numbers: Numbers) -> Table:
    """The numbers as a table, with what each should reach."""
    table = Table("number", "value", "reach")
    for key, value in numbers.items():
        bound, least = REACH.get(key, (None, False))
        wanted = "" if bound is None else f"at {'least' if least else 'most'} {bound:g}"
        holds = bound is None or (value >= bound if least else value <= bound)
        table.add_row(key, f"{value:,.3f}", wanted, style=None if holds else "bold red")
    return table
