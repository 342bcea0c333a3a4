"""What all surfaces share: the router behind admission, cancellation, readiness and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from serving.api.admission import Admission
from serving.api.auth import caller_of
from serving.api.health import Readiness
from serving.api.limits import timeout_of, while_connected
from serving.audit import AuditLog
from serving.catalog.tenants import stored_name
from serving.config import Config
from serving.engine.breaker import GuardedEngine
from serving.keys import Keys
from serving.telemetry import Telemetry
from serving.types import Candidate, Decision, RouteRequest, TooLargeError

if TYPE_CHECKING:
    from serving.prefilter.base import Kept
    from serving.router import Router

# English and JSON have about four bytes to a token; other scripts fewer, so theirs are counted as more.
_BYTES_PER_TOKEN = 4


class Service:
    """One server's parts, and the one way from a surface to a decision."""

    def __init__(self, config: Config, router: Router, telemetry: Telemetry) -> None:
        """Raises ValueError where the keys file cannot be read, or the audit log not be written."""
        self.config = config
        self.keys = Keys(config.server.api_keys, config.server.keys_file)
        audit = config.server.audit
        self.audit = None if audit.path is None else AuditLog(audit.path, texts=audit.texts)
        self.router = router
        self.telemetry = telemetry
        self.admission = Admission(
            config.server.max_concurrent,
            config.server.max_tokens,
            caller_requests=config.server.max_concurrent_per_key,
            caller_per_minute=config.server.requests_per_minute_per_key,
            longest_s=config.engine.timeout_s,
        )
        self.readiness = Readiness(
            router,
            config.server.canary_interval_s,
            config.engine.timeout_s,
            fallback=config.engine.fallback is not None,
        )
        self.started_at = int(time.time())
        self._watch(telemetry)

    def _watch(self, telemetry: Telemetry) -> None:
        engine, catalogs, admission = self.router.engine, self.router.prefilter.catalogs, self.admission
        telemetry.watch("ready", lambda: float(self.readiness.report().ready))
        telemetry.watch("queue_requests", lambda: admission.requests)
        telemetry.watch("queue_tokens", lambda: admission.tokens)
        telemetry.watch("queue_drain_seconds", admission.drain_s)
        telemetry.watch("engine_requests", lambda: engine.in_progress)
        if isinstance(engine, GuardedEngine):
            telemetry.watch("engine_breaker_state", lambda: engine.breaker.state)
        if catalogs is not None:
            telemetry.watch("catalog_sync_age_seconds", catalogs.age_s)
            telemetry.watch_catalogs(catalogs.sizes)

    def place(self, http: Request, body: bytes) -> AbstractContextManager[None]:
        """A place for the decision that a body asks for, taken before the body is parsed.

        Raises:
            BusyError: there is none, or none for this caller, or none that is soon enough.
            InvalidRequestError: the caller's timeout is none.
        """
        # No prompt is longer than its budget, however much was sent. Of a catalogue's candidates nothing is known yet.
        tokens = min(len(body) // _BYTES_PER_TOKEN + 1, self.router.template.budget.total)
        within_s = timeout_of(http.headers, self.config.engine.timeout_s)
        return self.admission.place(tokens, caller_of(http).owner, within_s)

    async def decide(self, http: Request, request: RouteRequest) -> Decision:
        """The router's decision, given up when the client leaves.

        Raises:
            ClientDisconnect: the client left; the work has stopped.
            LightRouterError: as the router raises them, and when the server has not started yet.
        """
        asked, request = request, self._taken(http, request)
        with self.telemetry.in_progress():
            decision = await while_connected(http, self.router.route(request))
        if decision.prompt_tokens:  # a decision that asked no model tells nothing about it
            self.readiness.decided()
        if self.audit is not None:
            caller = caller_of(http)
            self.audit.record(
                request,
                decision,
                surface=http.url.path,
                request_id=getattr(http.state, "request_id", None),
                key=caller.name,
                tenant=caller.tenant,
                catalog=asked.catalog,
            )
        asyncio.get_running_loop().call_soon(self.telemetry.decision, decision)  # after the answer
        return decision

    async def search(self, http: Request, request: RouteRequest) -> Kept:
        """What the prefilter finds, given up when the client leaves. Raises as `decide`, but asks no model."""
        return await while_connected(http, self.router.prefilter.search(self._taken(http, request)))

    async def pinned(self, http: Request, request: RouteRequest) -> tuple[Candidate, ...]:
        """The candidates that are pinned for a request. Raises as `decide`, but asks no model."""
        return await self.router.prefilter.pinned(self._taken(http, request))

    async def names(self, http: Request, catalog: str | None) -> Callable[[Candidate], str]:
        """What candidates are called on surfaces that restrict names: those of a catalogue as nothing else in it is.

        Raises:
            NotFoundError: the catalogue is gone.
        """
        catalogs = self.router.prefilter.catalogs
        if catalog is None or catalogs is None:
            return lambda candidate: candidate.name
        return (await catalogs.get(stored_name(caller_of(http).tenant, catalog))).names.of

    def _taken(self, http: Request, request: RouteRequest) -> RouteRequest:
        """The request as the server takes it: of a size that it allows, and with what only the server knows.

        Here, before anything is searched, it is bound to its caller's tenant and to what its caller may see.
        """
        self.readiness.require_started()
        self._check_size("messages", len(request.messages), self.config.server.max_messages)
        self._check_size("candidates", len(request.candidates), self.config.server.max_candidates)
        deadline = time.monotonic() + timeout_of(http.headers, self.config.engine.timeout_s)
        caller = caller_of(http)
        return replace(
            request,
            catalog=None if request.catalog is None else stored_name(caller.tenant, request.catalog),
            principals=caller.principals,
            cache_salt=caller.salt,
            deadline=deadline,
        )

    @staticmethod
    def _check_size(what: str, size: int, most: int) -> None:
        if size > most:
            raise TooLargeError(f"{size} {what}, but this server takes at most {most} (server.max_{what}); send fewer")
