"""The engine is killed, hangs, is slow or talks nonsense: what callers get, and how soon all is well again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serving.engine.breaker import State
from tests.faults.conftest import FAILURES, Running, profile, running
from tests.faults.vllm_process import GARBAGE, VllmProcess

pytestmark = pytest.mark.anyio
ANSWER_SECONDS = 60
OFTEN = {"canary_interval_s": 0.5}


def code(answer) -> str:
    return answer.json()["error"]["code"]


async def until_ready(router: Running) -> None:
    """Nobody asks: the canary alone finds out that the engine is back."""
    router.try_again()
    async with asyncio.timeout(ANSWER_SECONDS):
        while not (await router.ready())["ready"] or (await router.ready())["reason"].startswith("degraded"):
            await asyncio.sleep(0.02)


async def until_open(router: Running) -> None:
    async with asyncio.timeout(ANSWER_SECONDS):
        while router.metric("engine_breaker_state") != State.OPEN:
            await router.ask()


async def test_killed_and_started_again(vllm: VllmProcess, smollm2: Path) -> None:
    async with running(profile(vllm.url, smollm2, server=OFTEN)) as router:
        assert (await router.ask()).status_code == 200
        vllm.kill()
        first = await router.ask()
        assert (first.status_code, code(first)) == (503, "engine_unavailable")
        await until_open(router)
        refused = await router.ask()
        assert (refused.status_code, code(refused)) == (503, "engine_unavailable")
        assert int(refused.headers["retry-after"]) > 3_000
        await router.service.readiness.check()  # at its next turn, which comes sooner here
        assert not (await router.ready())["ready"]
        vllm.start()
        await until_ready(router)
        assert (await router.ask()).status_code == 200
        assert router.metric("engine_breaker_state") == State.CLOSED


async def test_hung_and_awake_again(vllm: VllmProcess, smollm2: Path) -> None:
    async with running(profile(vllm.url, smollm2)) as router:
        vllm.hang()
        try:
            answers = await asyncio.gather(*(router.ask() for _ in range(FAILURES)))
            assert {(answer.status_code, code(answer)) for answer in answers} == {(504, "engine_timeout")}
            refused = await router.ask()
            assert (refused.status_code, code(refused)) == (503, "engine_unavailable")
            assert (await router.client.get("/health/live")).status_code == 200
        finally:
            vllm.go_on()
        await until_ready(router)
        assert (await router.ask()).status_code == 200
        assert router.metric("engine_requests") == 0


async def test_slow_within_some_callers_time(vllm: VllmProcess, smollm2: Path) -> None:
    vllm.answer("well", seconds=0.3)
    async with running(profile(vllm.url, smollm2)) as router:
        for _ in range(2 * FAILURES):
            late = await router.ask(**{"x-request-timeout": "0.05"})
            assert (late.status_code, code(late)) == (504, "engine_timeout")
        assert (await router.ask()).status_code == 200, "impatient callers have closed the engine to others"


@pytest.mark.parametrize("mode", ["cut", "error", *GARBAGE])
async def test_nonsense_is_an_error_of_the_engine_and_of_nobody_else(
    vllm: VllmProcess, smollm2: Path, mode: str
) -> None:
    async with running(profile(vllm.url, smollm2)) as router:
        vllm.answer(mode)
        answer = await router.ask()
        assert (answer.status_code, code(answer)) == (503, "engine_unavailable")
        assert "vLLM" in answer.json()["error"]["message"]
        vllm.answer("well")
        assert (await router.ask()).status_code == 200


async def test_with_a_fallback_the_prefilter_answers(vllm: VllmProcess, smollm2: Path) -> None:
    async with running(profile(vllm.url, smollm2, engine={"fallback": "prefilter"}, server=OFTEN)) as router:
        assert "degraded" not in (await router.ask()).json()
        vllm.kill()
        await until_open(router)
        answer = (await router.ask()).json()
        assert answer["degraded"] is True
        assert answer["model"] == "prefilter/bm25"
        assert answer["decision"]["id"] == "get_weather"
        await router.service.readiness.check()
        report = await router.ready()
        assert report["ready"]
        assert report["reason"].startswith("degraded, the prefilter decides")
        assert router.metric("degraded_total") > 0
        vllm.start()
        await until_ready(router)
        assert "degraded" not in (await router.ask()).json()
