import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from serving.api.health import Readiness
from serving.types import (
    Decision,
    EngineTimeoutError,
    EngineUnavailableError,
    PrefilterReport,
    Ranked,
    RouteRequest,
)
from tests.clock import Clock

pytestmark = pytest.mark.anyio

INTERVAL_S = 30.0
TIMEOUT_S = 10.0


@dataclass
class FakeRouter:
    """Answers what it is told to."""

    failure: Exception | None = None
    none_probability: float = 0.2
    degraded: bool = False
    starts: list[Exception] = field(default_factory=list)
    """Errors of the first attempts to start."""
    open: asyncio.Event | None = None
    """Decisions wait for it."""

    async def start(self) -> None:
        if self.starts:
            raise self.starts.pop(0)

    async def route(self, request: RouteRequest) -> Decision:
        if self.open:
            await self.open.wait()
        if self.failure:
            raise self.failure
        ranking = [Ranked(candidate, 0.4) for candidate in request.candidates]
        report = PrefilterReport("none", 2, 2)
        return Decision(
            ranking[0], self.none_probability, ranking, None, report, (), 10, 0, "m", degraded=self.degraded
        )


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
def readiness(router: FakeRouter, clock: Clock) -> Readiness:
    return Readiness(router, INTERVAL_S, TIMEOUT_S, clock)  # type: ignore[arg-type]


async def test_not_ready_before_the_first_canary(readiness: Readiness) -> None:
    report = readiness.report()
    assert not report.ready
    assert report.canary is None
    assert "starting" in report.reason
    with pytest.raises(EngineUnavailableError, match="not ready: starting"):
        readiness.require_started()


async def test_ready_after_it(readiness: Readiness, clock: Clock) -> None:
    await readiness.check()
    clock.now += 5
    report = readiness.report()
    assert report.ready
    assert report.canary
    assert (report.canary.ok, report.canary.age_s, report.last_success_age_s) == (True, 5.0, 5.0)
    readiness.require_started()


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (EngineUnavailableError("the engine is down"), "the engine is down"),
        (EngineTimeoutError("the engine is slow"), "the engine is slow"),
        (KeyError("secret"), "internal error"),
    ],
)
async def test_a_failed_canary_is_not_ready_until_a_decision_succeeds(
    readiness: Readiness, router: FakeRouter, clock: Clock, failure: Exception, reason: str
) -> None:
    await readiness.check()
    clock.now += INTERVAL_S
    router.failure = failure
    await readiness.check()
    report = readiness.report()
    assert not report.ready
    assert reason in report.reason
    assert "secret" not in report.model_dump_json()
    clock.now += 1
    readiness.decided()
    assert readiness.report().ready


async def test_a_first_canary_that_fails_says_why(readiness: Readiness, router: FakeRouter) -> None:
    router.failure = EngineUnavailableError("the engine is down")
    await readiness.check()
    assert "the first canary decision failed: the engine is down" in readiness.report().reason


@pytest.mark.parametrize("none_probability", [0.9, float("nan")])
async def test_an_answer_that_is_no_distribution_fails(
    readiness: Readiness, router: FakeRouter, none_probability: float
) -> None:
    router.none_probability = none_probability
    await readiness.check()
    assert "probabilities sum to" in readiness.report().reason


async def test_a_busy_engine_fails_nothing(readiness: Readiness, router: FakeRouter, clock: Clock) -> None:
    await readiness.check()
    router.failure = EngineTimeoutError("the canary waited behind others")
    began = asyncio.Event()
    router.open = asyncio.Event()
    waiting = asyncio.create_task(readiness.check())
    asyncio.get_running_loop().call_soon(began.set)
    await began.wait()
    clock.now += TIMEOUT_S
    readiness.decided()  # a caller's decision, while the canary waits
    router.open.set()
    await waiting
    report = readiness.report()
    assert report.canary
    assert not report.canary.ok
    assert report.ready


async def test_silence_is_not_ready(readiness: Readiness, clock: Clock) -> None:
    await readiness.check()
    clock.now += 2 * INTERVAL_S + TIMEOUT_S
    assert readiness.report().ready
    clock.now += 1
    report = readiness.report()
    assert not report.ready
    assert "no decision has succeeded for 71 s" in report.reason


async def test_a_decision_that_never_ends_times_out(router: FakeRouter, clock: Clock) -> None:
    readiness = Readiness(router, INTERVAL_S, 0.01, clock)  # type: ignore[arg-type]
    router.open = asyncio.Event()
    await readiness.check()
    assert "no decision within 0.01 s" in readiness.report().reason


async def test_an_engine_that_is_not_up_yet_is_tried_again(
    readiness: Readiness, router: FakeRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.api.health._RETRY_S", 0)
    router.starts = [EngineUnavailableError("nobody listens"), EngineUnavailableError("nobody listens")]
    running = asyncio.create_task(readiness.run())
    await readiness.started.wait()
    running.cancel()
    assert readiness.report().ready
    assert caplog.text.count("nobody listens") == 2


async def test_a_start_that_cannot_succeed_ends_and_tells_no_details(
    readiness: Readiness, router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    router.starts = [ValueError("no file /srv/secret")]
    await readiness.run()
    assert readiness.report().reason == "the router cannot start; the server's log says why"
    assert "/srv/secret" in caplog.text


async def test_live_answers_while_the_model_loads(unstarted: Any) -> None:
    async with unstarted.client() as client:
        assert (await client.get("/health/live")).status_code == 200
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        response = await client.post("/v1/route", json={"query": "x", "candidates": []})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_unavailable")
        assert unstarted.metric("ready") == 0


async def test_ready_in_a_running_server(client: Any, server: Any) -> None:
    ready = await client.get("/health/ready")
    assert (ready.status_code, ready.json()["ready"], ready.json()["canary"]["ok"]) == (200, True, True)
    assert server.metric("ready") == 1
    assert server.engine.started == 1


async def test_an_answer_without_the_model_is_no_sign_of_life(client: Any, server: Any, tools: Any) -> None:
    await server.service.readiness.check()
    server.engine.failure = EngineUnavailableError("the engine is down")
    await server.service.readiness.check()
    assert (await client.post("/v1/route", json={"query": "x", "candidates": []})).status_code == 200
    assert (await client.get("/health/ready")).status_code == 503
    server.engine.failure = None
    assert (await client.post("/v1/route", json={"query": "x", "candidates": tools})).status_code == 200
    assert (await client.get("/health/ready")).status_code == 200


async def test_shutdown_closes_the_engine(unstarted: Any) -> None:
    async with unstarted.app.router.lifespan_context(unstarted.app):
        await unstarted.service.readiness.started.wait()
        assert unstarted.engine.closed == 0
    assert unstarted.engine.closed == 1


async def test_after_a_failure_the_next_canary_comes_soon(router: FakeRouter, monkeypatch: Any) -> None:
    readiness = Readiness(router, INTERVAL_S, TIMEOUT_S)  # type: ignore[arg-type]
    down = EngineUnavailableError("down")
    to_come = [down, down, None]
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if not to_come:
            raise asyncio.CancelledError
        router.failure = to_come.pop(0)

    monkeypatch.setattr("serving.api.health.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await readiness.run()
    assert slept == [INTERVAL_S, 1.0, 1.0, INTERVAL_S]


async def test_a_server_that_falls_back_stays_ready_and_says_so(router: FakeRouter, clock: Clock) -> None:
    readiness = Readiness(router, INTERVAL_S, TIMEOUT_S, clock, fallback=True)  # type: ignore[arg-type]
    router.degraded = True
    await readiness.check()
    assert not readiness.report().ready, "it has not seen the engine yet"
    router.degraded = False
    await readiness.check()
    router.degraded = True
    clock.now += INTERVAL_S
    await readiness.check()
    report = readiness.report()
    assert report.ready
    assert report.reason.startswith("degraded")
    assert report.canary is not None
    assert not report.canary.ok


@pytest.mark.parametrize("fallback", [False, True])
async def test_a_server_that_is_about_to_end_is_not_ready(router: FakeRouter, clock: Clock, fallback: bool) -> None:
    readiness = Readiness(router, INTERVAL_S, TIMEOUT_S, clock, fallback=fallback)  # type: ignore[arg-type]
    await readiness.check()
    assert readiness.report().ready
    readiness.draining = True
    assert not readiness.report().ready
    readiness.require_started()  # what still comes is answered
