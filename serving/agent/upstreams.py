"""What stands behind the agent: one kept connection for each server, which its calls and its synchronisation share.

Knows sources and what every kind of upstream has in common: a connection that can be lost, a timeout, a number of
calls at a time. Does not know the catalogue's candidates, the router or who calls.

An upstream is a source that the Synchroniser watches: while it is watched it is connected. So the Synchroniser's
pauses are its backoff, its `list_changed` comes over the connection that is called on, and a server that is a process
runs once.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import CallToolResult, ClientCapabilities, InputRequiredResult, InputResponses

from serving.catalog.entry import Server
from serving.catalog.sources.a2a import A2ASource
from serving.catalog.sources.base import Source, SourceError, Watch
from serving.catalog.sources.mcp import McpSource
from serving.catalog.sources.mcp_config import WITHHELD, HttpEntry, entry
from serving.config import AgentConfig
from serving.types import Candidate, InvalidRequestError, LightRouterError

logger = logging.getLogger(__name__)

Result = CallToolResult | InputRequiredResult
Progress = ProgressFnT


class UpstreamError(LightRouterError):
    """An upstream could not be called, or did not answer. The message names it; it never holds a secret."""


class HostFaultError(UpstreamError):
    """What only the host can mend, not its model. `code` and `data` are what the protocol has for it."""

    def __init__(self, message: str, code: int, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


@dataclass(frozen=True, slots=True)
class Call:
    """What comes with a call beside its arguments.

    Attributes:
        progress: told of what the upstream tells while it works.
        meta: `_meta` of the request, to be passed on.
        capabilities: what the host can be asked for on the way to a result.
        input_responses, request_state: answers to what the upstream has asked for (SEP-2322).
    """

    progress: Progress | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    capabilities: ClientCapabilities = field(default_factory=ClientCapabilities)
    input_responses: InputResponses | None = None
    request_state: str | None = None


class Upstream(Source):
    """A source that can be called.

    Attributes:
        error: why it cannot be called now; None where it can, or where nobody knows yet.
    """

    def bound(self, timeout_s: float, concurrency: int) -> None:
        """Sets its bounds. To be called once, before anything else."""
        self.error: str | None = None
        self._timeout_s = timeout_s
        self._places = anyio.CapacityLimiter(concurrency)
        self._lost = anyio.Event()

    @abstractmethod
    async def _call(self, candidate: Candidate, arguments: dict[str, Any], call: Call) -> Result:
        """One call, without any bound. Raises UpstreamError."""

    async def call(self, candidate: Candidate, arguments: dict[str, Any], call: Call) -> Result:
        """Calls one of its candidates.

        Raises:
            UpstreamError: it is down, does not answer in time, or answers something else than a result.
        """
        waiting = True
        try:
            with anyio.fail_after(self._timeout_s):
                async with self._places:
                    waiting = False
                    return await self._call(candidate, arguments, call)
        except TimeoutError:
            if waiting:
                raise UpstreamError(
                    f"{self.name!r} is busy: {self._places.total_tokens:g} calls are in progress and none has ended "
                    f"within {self._timeout_s:g} s; try again later"
                ) from None
            raise UpstreamError(
                f"{self.name!r} did not answer within {self._timeout_s:g} s; the call was cancelled, but may have had "
                "an effect"
            ) from None

    def lose(self, error: str) -> None:
        """The connection is of no use any more; whoever watches makes a new one."""
        self.error = error
        self._lost.set()

    @asynccontextmanager
    async def _watched(self, watch: Watch) -> AsyncIterator[Watch]:
        """`watch`, which also ends when the connection is lost."""
        self._lost = lost = anyio.Event()

        async def changed() -> None:
            error: Exception | None = None
            told = False

            async def listen(tell: Callable[[], Awaitable[None]]) -> None:
                nonlocal error, told
                try:
                    await tell()
                    told = True
                except Exception as raised:
                    error = raised
                group.cancel_scope.cancel()

            async with anyio.create_task_group() as group:
                if watch.changed is not None:
                    group.start_soon(listen, watch.changed)
                await lost.wait()
                group.cancel_scope.cancel()
            if error is not None:
                raise error
            if not told:
                raise SourceError(self.error or f"the connection to {self.name!r} is lost")

        yield Watch(watch.read, changed)

    @asynccontextmanager
    async def _noted(self) -> AsyncIterator[None]:
        """Keeps the reason why it cannot be reached."""
        try:
            yield
        except SourceError as error:
            self.error = str(error)
            raise


class Upstreams:
    """Those of the sources that can be called, by the names of their servers."""

    def __init__(self, sources: Iterable[Source], config: AgentConfig) -> None:
        self._upstreams: dict[str, Upstream] = {}
        for upstream in sources:
            if not isinstance(upstream, Upstream):
                continue
            own = config.upstreams.get(upstream.name)
            upstream.bound((own and own.timeout_s) or config.timeout_s, (own and own.concurrency) or config.concurrency)
            self._upstreams[upstream.name] = upstream
        if unknown := sorted(config.upstreams.keys() - self._upstreams.keys()):
            logger.warning("agent.upstreams names no upstream: %s", ", ".join(unknown))

    def down(self) -> dict[str, str]:
        """Those that cannot be called now, each with the reason."""
        return {name: upstream.error for name, upstream in self._upstreams.items() if upstream.error}

    async def call(self, candidate: Candidate, arguments: dict[str, Any], call: Call) -> Result:
        """Calls a candidate where it comes from.

        Raises:
            UpstreamError: as `Upstream.call`, or nothing here can call its server.
        """
        upstream = self._upstreams.get(candidate.server)
        if upstream is None:
            raise UpstreamError(
                f"the {candidate.type} {candidate.name!r} is of {candidate.server or 'no server'!r}, which is not one "
                "of this agent's upstreams: it can be found but not called"
            )
        return await upstream.call(candidate, arguments, call)


def callable_sources(sources: Iterable[Source]) -> list[Source]:
    """The sources, with those that can be called as upstreams."""
    from serving.agent.a2a_upstream import A2AUpstream  # noqa: PLC0415  (they are made of what stands here)
    from serving.agent.mcp_upstream import McpUpstream  # noqa: PLC0415

    made: list[Source] = []
    for source in sources:
        if isinstance(source, McpSource):
            made.append(McpUpstream.of(source))
        elif isinstance(source, A2ASource):
            made.append(A2AUpstream.of(source))
        else:
            made.append(source)
    return made


def recorded(server: Server, variables: Mapping[str, str]) -> Source | None:
    """The source that a catalogue's record of a server describes; None where it describes none that can be called."""
    fields = dict(server.source or {})
    kind = fields.pop("kind", None)
    if kind not in {"mcp", "a2a"} or WITHHELD in str(fields):
        return None
    try:
        read = entry(fields, f"the record of {server.name!r}")
    except InvalidRequestError as error:
        logger.warning("%s", error)
        return None
    if kind == "mcp":
        return McpSource(server.name, read, variables, description=server.description)
    if not isinstance(read, HttpEntry):
        return None
    return A2ASource(read.url, variables, name=server.name, headers=read.headers)
