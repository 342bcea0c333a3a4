"""What all surfaces share: the router behind admission, cancellation, readiness and metrics."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from serving.api.health import Readiness
from serving.api.limits import Admission, while_connected
from serving.config import Config
from serving.telemetry import Telemetry
from serving.types import Decision, RouteRequest, TooLargeError

if TYPE_CHECKING:
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
        self.readiness.require_started()
        self._check_size("messages", len(request.messages), self.config.server.max_messages)
        self._check_size("candidates", len(request.candidates), self.config.server.max_candidates)
        request = replace(request, cache_salt=getattr(http.state, "cache_salt", ""))
        with self.telemetry.in_progress():
            decision = await while_connected(http, self.router.route(request))
        if decision.prompt_tokens:  # a decision that asked no model tells nothing about it
            self.readiness.decided()
        asyncio.get_running_loop().call_soon(self.telemetry.decision, decision)  # after the answer
        return decision

    @staticmethod
    def _check_size(what: str, size: int, most: int) -> None:
        if size > most:
            raise TooLargeError(f"{size} {what}, but this server takes at most {most} (server.max_{what}); send fewer")
