"""Whether this server lives and can decide: /health/live, /health/ready and /metrics.

Readiness is neither a constant nor a probe that load can fail: a canary decision is made in the background, and its
last result and age are reported. A real decision that succeeded counts as a sign of life as well, so a canary that
waits behind many others fails nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.telemetry import Telemetry
from serving.types import (
    Candidate,
    Decision,
    EngineUnavailableError,
    LightRouterError,
    Message,
    RouteRequest,
)

if TYPE_CHECKING:
    from serving.router import Router

logger = logging.getLogger(__name__)

# Between attempts to start, and to make the first canary decision.
_RETRY_S = 1.0
# A sign of life may be this many intervals old: one canary may come late without harm.
_INTERVALS = 2

_METRICS: dict[str, dict[str, Any]] = {"text/plain": {}, "application/openmetrics-text": {}}
_CANARY = RouteRequest(
    messages=(Message("user", "What will the weather be in Lisbon tomorrow?"),),
    candidates=(
        Candidate("canary.weather", "get_weather", "Weather forecast for a city"),
        Candidate("canary.mail", "send_mail", "Send an e-mail message"),
    ),
)


@dataclass(frozen=True, slots=True)
class Canary:
    """One background decision: when it began and ended (monotonic seconds), and what was wrong with it, if anything."""

    began: float
    ended: float
    error: str | None


class CanaryReport(BaseModel):
    """The last background decision."""

    ok: bool
    error: str | None
    age_s: float
    duration_s: float


class ReadyReport(BaseModel):
    """The answer of /health/ready, with 200 where `ready`, else with 503."""

    ready: bool
    reason: str
    canary: CanaryReport | None
    last_success_age_s: float | None
    """Seconds since the last decision that succeeded, a canary's or a caller's."""


class Readiness:
    """Starts the router, then makes canary decisions, and judges what it saw.

    With `fallback` a server that has started stays ready while its engine is down, and says so.
    """

    def __init__(
        self,
        router: Router,
        interval_s: float,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        fallback: bool = False,
    ) -> None:
        self._router = router
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._fallback = fallback
        self.draining = False
        """Whether the server is about to end: it still answers, but nobody new should be sent here."""
        self._canary: Canary | None = None
        self._last_success: float | None = None
        self._problem = "starting: the model is being loaded and warmed up"
        self.started = asyncio.Event()
        """Set once the first canary decision has succeeded."""

    async def run(self) -> None:
        """Start the router, trying again while its engine cannot be reached; then a canary at every interval.

        After one that failed the next comes at once, so that the server is ready again as soon as its engine is.
        """
        try:
            await self._start()
        except Exception:
            # Wrong settings or files: trying again cannot help, and the text may tell about this machine.
            logger.exception("the router cannot start")
            self._problem = "the router cannot start; the server's log says why"
            return
        while True:
            await self.check()
            well = self._canary is not None and self._canary.error is None
            await asyncio.sleep(self._interval_s if well else min(_RETRY_S, self._interval_s))

    async def _start(self) -> None:
        while True:
            try:
                await self._router.start()
            except EngineUnavailableError as error:
                self._problem = f"starting: {error}"
                logger.warning("the engine is not available yet, trying again: %s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def check(self) -> None:
        """Make one canary decision. It takes no place from callers, and no caller's load can refuse it one."""
        began = self._clock()
        error: str | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                decision = await self._router.route(_CANARY)
            error = _fault(decision)
        except TimeoutError:
            error = f"no decision within {self._timeout_s:g} s"
        except LightRouterError as failure:
            error = str(failure)
        except Exception:
            logger.exception("the canary decision failed")
            error = "internal error; the server's log has the details"
        self._canary = Canary(began, self._clock(), error)
        if error is None:
            self.decided()
            if not self.started.is_set():
                # What loading made stays for good: the collector need not walk through it again and again.
                gc.collect()
                gc.freeze()
            self.started.set()
        elif not self.started.is_set():
            self._problem = f"the first canary decision failed: {error}"

    def decided(self) -> None:
        """A decision has just succeeded."""
        self._last_success = self._clock()

    def require_started(self) -> None:
        """Raises EngineUnavailableError where no decision can be made yet."""
        if not self.started.is_set():
            raise EngineUnavailableError(f"not ready: {self._problem}; wait until /health/ready answers 200")

    def report(self) -> ReadyReport:
        """What /health/ready answers."""
        now = self._clock()
        canary = self._canary
        age = None if self._last_success is None else now - self._last_success
        reason = self._unready(now)
        degraded = reason is not None and self._fallback and self.started.is_set() and not self.draining
        if degraded:
            reason = f"degraded, the prefilter decides: {reason}"
        return ReadyReport(
            ready=reason is None or degraded,
            reason=reason or "decisions are being made",
            canary=canary
            and CanaryReport(
                ok=canary.error is None,
                error=canary.error,
                age_s=round(now - canary.ended, 3),
                duration_s=round(canary.ended - canary.began, 3),
            ),
            last_success_age_s=None if age is None else round(age, 3),
        )

    def _unready(self, now: float) -> str | None:
        if self.draining:
            return "the server is about to end, and finishes what it has begun"
        if not self.started.is_set() or self._canary is None or self._last_success is None:
            return self._problem
        if self._canary.error is not None and self._last_success < self._canary.began:
            return f"the last canary decision failed, and none has succeeded since: {self._canary.error}"
        # A canary that waits for the engine until its deadline is not overdue yet.
        allowed = _INTERVALS * self._interval_s + self._timeout_s
        if now - self._last_success > allowed:
            return f"no decision has succeeded for {now - self._last_success:.0f} s; one is due every {allowed:.0f} s"
        return None


def _fault(decision: Decision) -> str | None:
    """What is wrong with a canary decision, if anything: a broken engine may answer without an error."""
    if decision.degraded:
        return "the engine is down"
    probabilities = [ranked.probability for ranked in decision.ranking]
    total = math.fsum([decision.none_probability, *probabilities])
    if not math.isclose(total, 1.0, abs_tol=1e-3):
        return f"the probabilities sum to {total}, not to 1"
    if not decision.ranking or not {ranked.candidate for ranked in decision.ranking} <= set(_CANARY.candidates):
        return "the ranking holds other candidates than were asked about"
    return None


def routes(readiness: Readiness, telemetry: Telemetry) -> APIRouter:
    """/health/live, /health/ready, /metrics."""
    surface = APIRouter(tags=["operations"])

    @surface.get("/health/live")
    async def live() -> dict[str, str]:
        """200 while the process serves requests at all."""
        return {"status": "live"}

    @surface.get("/health/ready", response_model=ReadyReport, responses={503: {"model": ReadyReport}})
    async def ready() -> Response:
        """200 once warm, and while decisions succeed; else 503 with the reason."""
        report = readiness.report()
        return JSONResponse(report.model_dump(), 200 if report.ready else 503)

    @surface.get("/metrics", response_class=Response, responses={200: {"content": _METRICS}})
    async def metrics(http: Request) -> Response:
        """Prometheus metrics."""
        body, content_type = telemetry.exposition(http.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return surface
