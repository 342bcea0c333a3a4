"""What happens to requests, on vLLM's side too, when a caller leaves, a deadline passes, or the server dies."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.engine.base import ScoreRequest
from serving.engine.vllm import VllmEngine
from serving.types import EngineTimeoutError, EngineUnavailableError
from tests.vllm.conftest import Server, connected

pytestmark = [pytest.mark.vllm, pytest.mark.anyio]

# Questions in one request: seconds of work for a CPU, and more than vLLM takes into one step.
ITEMS = 64


def long_request(salt: str, deadline: float | None = None) -> ScoreRequest:
    items = [[200 + item] * 20 for item in range(ITEMS)]
    return ScoreRequest(list(range(1000, 3000)), items, [300, 301], salt, deadline)


async def counted(server: Server) -> dict[str, float]:
    """What vLLM counts: questions it finished, and questions it has begun or queued (seen only between steps)."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{server.profile.engine.url}/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = {
        "vllm:request_success_total": "finished",
        "vllm:num_requests_running": "unfinished",
        "vllm:num_requests_waiting": "unfinished",
    }
    found = dict.fromkeys(names.values(), 0.0)
    for sample in samples:
        if sample.name in names:
            found[names[sample.name]] += sample.value
    return found


async def until_begun(server: Server) -> None:
    async with asyncio.timeout(60):
        while (await counted(server))["unfinished"] == 0:
            await asyncio.sleep(0.05)


async def assert_dropped(server: Server, engine: VllmEngine, finished_before: float) -> None:
    """vLLM takes requests in turn: once a later one is answered, all that was not dropped before it is finished."""
    await engine.score(ScoreRequest([1, 2, 3], [[4]], [5, 6, 7]))
    finished = (await counted(server))["finished"] - finished_before - 1
    assert finished < ITEMS / 2


async def test_a_caller_that_leaves_stops_the_work_in_vllm(smollm2_server: Server) -> None:
    async with connected(smollm2_server.model(adapter=None)) as engine:
        before = (await counted(smollm2_server))["finished"]
        task = asyncio.create_task(engine.score(long_request("leaves")))
        await until_begun(smollm2_server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_dropped(smollm2_server, engine, before)


async def test_a_deadline_stops_the_work_in_vllm(smollm2_server: Server) -> None:
    async with connected(smollm2_server.model(adapter=None)) as engine:
        before = (await counted(smollm2_server))["finished"]
        with pytest.raises(EngineTimeoutError, match="did not answer"):
            await engine.score(long_request("is late", deadline=time.monotonic() + 0.5))
        await assert_dropped(smollm2_server, engine, before)


async def test_an_adapter_that_vllm_does_not_serve_fails_at_start(smollm2_server: Server) -> None:
    engine = VllmEngine(smollm2_server.model(adapter="adapters/invisible"))
    with pytest.raises(EngineUnavailableError, match="cannot serve 'invisible': it serves 'smollm2', 'visible'"):
        await engine.start()
    await engine.close()


async def test_a_context_that_is_too_short_fails_at_start(smollm2_server: Server) -> None:
    budget = smollm2_server.profile.model.budget
    longer = type(budget)(budget.candidate, budget.message, budget.history, 2 * budget.total)
    engine = VllmEngine(smollm2_server.model(budget=longer))
    with pytest.raises(EngineUnavailableError, match="start it with --max-model-len 8193"):
        await engine.start()
    await engine.close()


async def test_a_killed_server_is_unavailable_and_comes_back(qwen3_server: Server) -> None:
    request = ScoreRequest([1, 2, 3], [[4], [5]], [6, 7])
    async with connected(qwen3_server.model(readout="pointwise")) as engine:
        await engine.score(request)
        (vllm,) = qwen3_server.supervisor.children()
        vllm.kill()
        vllm.wait()
        with pytest.raises(EngineUnavailableError, match="cannot be reached"):
            await engine.score(request)
        await engine.start()  # waits for the supervisor's next server
        await engine.score(request)
