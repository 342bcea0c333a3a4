"""Twenty callers of a live server, five of whom leave: counted in the engine, not guessed from time."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
import uvicorn

from serving.api.app import create_app
from serving.assembly import build_router
from serving.config import Config
from serving.engine.local import LocalEngine
from serving.telemetry import Telemetry

pytestmark = pytest.mark.anyio

CALLERS, LEAVING = 20, 5
CANDIDATES = [{"name": f"tool_{n}", "description": f"Does thing number {n}."} for n in range(5)]


def conversation(caller: int) -> list[dict[str, str]]:
    """About four thousand tokens that no other caller shares."""
    return [{"role": "user", "content": f"caller {caller}, message {n}: " + "so it goes " * 30} for n in range(40)]


async def test_callers_who_leave_take_their_work_with_them(tiny_llama: Path, tiny_embedder: Path) -> None:
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_llama), "budget": {"history": 6000, "total": 8000}},
            "engine": {"threads": 1, "chunk_tokens": 64, "timeout_s": 300},
            "prefilter": {"embedder": str(tiny_embedder)},
            "server": {"canary_interval_s": 3600},
        }
    )
    router = build_router(config)
    engine = router.engine
    assert isinstance(engine, LocalEngine)
    app = create_app(config, router, Telemetry())
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve([listener]))
    await app.state.service.readiness.started.wait()
    before = engine.counters.jobs_finished

    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/route"
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=CALLERS)) as client:
        callers = [
            asyncio.create_task(client.post(url, json={"messages": conversation(n), "candidates": CANDIDATES}))
            for n in range(CALLERS)
        ]
        while engine.waiting + engine.running < CALLERS:  # all have arrived, and the first is running
            await asyncio.sleep(0.005)
        tokens = engine.counters.tokens
        for caller in callers[:LEAVING]:
            caller.cancel()
        await asyncio.gather(*callers[:LEAVING], return_exceptions=True)
        answers = await asyncio.gather(*callers[LEAVING:])

    assert [answer.status_code for answer in answers] == [200] * (CALLERS - LEAVING)
    counters = engine.counters
    assert counters.jobs_finished - before == CALLERS - LEAVING
    assert counters.jobs_dropped_waiting + counters.jobs_dropped_running == LEAVING
    assert counters.jobs_dropped_waiting >= LEAVING - 2
    each = answers[0].json()["usage"]["prompt_tokens"]
    # What ran: the fifteen, and of the five that left no more than had begun, up to the next chunk.
    assert counters.tokens - tokens <= (CALLERS - LEAVING + 1) * each
    server.should_exit = True
    await serving
