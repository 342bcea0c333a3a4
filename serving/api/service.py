"""What all surfaces share: the router behind admission, cancellation, readiness and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from serving.api.health import Readiness
from serving.api.limits import Admission, while_connected
from serving.config import Config
from serving.telemetry import Telemetry
from serving.types import Candidate, Decision, RouteRequest, TooLargeError

if TYPE_CHECKING:
    from serving.prefilter.base import Kept
    from serving.router import Router


class Service:
    """One server's parts, and the one way from a surface to a decision."""

    def __init__(self, config: Config, router: Router, telemetry: Telemetry) -> None:
        self.config = config
        self.router = router
        self.telemetry = telemetry
        self.admission = Admission(config.server.max_concurrent)
        self.readiness = Readiness(router, config.server.canary_interval_s, config.engine.timeout_s)
        self.started_at = int(time.time())
        telemetry.watch_ready(lambda: self.readiness.report().ready)

    async def decide(self, http: Request, request: RouteRequest) -> Decision:
        """The router's decision, given up when the client leaves.

        Raises:
            ClientDisconnect: the client left; the work has stopped.
            LightRouterError: as the router raises them, and when the server has not started yet.
        """
        request = self._taken(http, request)
        with self.telemetry.in_progress():
            decision = await while_connected(http, self.router.route(request))
        if decision.prompt_tokens:  # a decision that asked no model tells nothing about it
            self.readiness.decided()
        asyncio.get_running_loop().call_soon(self.telemetry.decision, decision)  # after the answer
        return decision

    async def search(self, http: Request, request: RouteRequest) -> Kept:
        """What the prefilter finds, given up when the client leaves. Raises as `decide`, but asks no model."""
        request = replace(self._taken(http, request), deadline=time.monotonic() + self.config.engine.timeout_s)
        return await while_connected(http, self.router.prefilter.search(request))

    async def pinned(self, http: Request, request: RouteRequest) -> tuple[Candidate, ...]:
        """The candidates that are pinned for a request. Raises as `decide`, but asks no model."""
        return await self.router.prefilter.pinned(self._taken(http, request))

    async def names(self, catalog: str | None) -> Callable[[Candidate], str]:
        """What candidates are called on surfaces that restrict names: those of a catalogue as nothing else in it is.

        Raises:
            NotFoundError: the catalogue is gone.
        """
        catalogs = self.router.prefilter.catalogs
        if catalog is None or catalogs is None:
            return lambda candidate: candidate.name
        return (await catalogs.get(catalog)).names.of

    def _taken(self, http: Request, request: RouteRequest) -> RouteRequest:
        """The request as the server takes it: of a size that it allows, and with what only the server knows."""
        self.readiness.require_started()
        self._check_size("messages", len(request.messages), self.config.server.max_messages)
        self._check_size("candidates", len(request.candidates), self.config.server.max_candidates)
        return replace(request, cache_salt=getattr(http.state, "cache_salt", ""))

    @staticmethod
    def _check_size(what: str, size: int, most: int) -> None:
        if size > most:
            raise TooLargeError(f"{size} {what}, but this server takes at most {most} (server.max_{what}); send fewer")
