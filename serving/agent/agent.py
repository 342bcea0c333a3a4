"""The Light Routing Agent: chooses with the router, calls the upstream, and remembers both for the next choice.

Knows the router, the catalogue, threads and upstreams. Does not know how its callers reach it: MCP is one surface.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio
from mcp.types import CallToolResult, TextContent

from prompts.question import CandidateType
from serving.agent import loop
from serving.agent.arguments import Execution, Schemas, shown_schema
from serving.agent.errors import MisnamedError, Nearest, RedescribedError, UnfitArgumentsError
from serving.agent.threads import Thread, Threads, digest, step
from serving.agent.toolbox import AgentToolbox
from serving.agent.upstreams import Call, Result, Upstream, UpstreamError, Upstreams, callable_sources, recorded
from serving.audit import AuditLog
from serving.cache import LRU
from serving.catalog.catalogs import Catalogs
from serving.catalog.index import CatalogIndex, Row
from serving.catalog.names import Names
from serving.catalog.sources.base import Source, plain
from serving.catalog.sync import Redescribed, Report, Synchroniser, log
from serving.catalog.tenants import shown_name
from serving.config import AgentConfig
from serving.keys import ANYONE, Caller
from serving.types import (
    Candidate,
    Decision,
    Filter,
    ForbiddenError,
    InvalidRequestError,
    Message,
    NotFoundError,
    RouteRequest,
)

logger = logging.getLogger(__name__)

# Callers with restrictions of their own whose names are remembered, each for one version of the catalogue.
_NAMED = 8
# Candidates whose new description is told with every decision for them.
_REDESCRIBED = 1_000
# What an error shows of the nearest candidates, so that the next call can be right.
_NEAREST = 2


class Decides(Protocol):
    """What of a `Router` is used here."""

    async def start(self) -> None: ...  # noqa: D102
    async def close(self) -> None: ...  # noqa: D102
    async def route(self, request: RouteRequest) -> Decision: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Routed:
    """A decision, and what a caller should know beside it.

    Attributes:
        thread: the handle under which it is remembered.
        unavailable: servers that cannot be called now and were left out, each with the reason.
        redescribed: what changed of the decision's description since the agent first read it.
    """

    decision: Decision
    thread: str
    unavailable: Mapping[str, str]
    redescribed: Redescribed | None = None


class LightRoutingAgent:
    """Routes and executes over one catalogue.

    Args:
        router: decides; started and closed with this, and the catalogues with it.
        catalogs: where candidates are looked up; the router's own.
        threads: started and closed with this.
        sources: what the catalogue is kept up with; those that can be called become upstreams.
        config: the agent's section.
        variables: the environment that recorded servers may refer to.
        quarantine: whether candidates that look poisoned are disabled until somebody enables them.
        audit: where decisions are recorded; started and closed with this.
    """

    def __init__(
        self,
        router: Decides,
        catalogs: Catalogs,
        threads: Threads,
        sources: Sequence[Source],
        config: AgentConfig,
        variables: Mapping[str, str] = os.environ,
        *,
        quarantine: bool = False,
        audit: AuditLog | None = None,
    ) -> None:
        self.config = config
        self.threads = threads
        self._router = router
        self._catalogs = catalogs
        self._sources = sources
        self._variables = variables
        self._quarantine = quarantine
        self._audit = audit
        self._upstreams = Upstreams((), config)
        self._schemas = Schemas()
        self._names: LRU[tuple[int, frozenset[str]], Names] = LRU(_NAMED, lambda _: 1)
        self._redescribed: LRU[str, Redescribed] = LRU(_REDESCRIBED, lambda _: 1)
        self._ready = anyio.Event()

    @property
    def ready(self) -> bool:
        """Whether it answers at once."""
        return self._ready.is_set()

    def unavailable(self) -> dict[str, str]:
        """Servers that cannot be called now, each with the reason."""
        return self._upstreams.down()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Starts in the background, so that a host is greeted at once; what needs the router waits for it."""
        if self._audit is not None:
            self._audit.start()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._run)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()
        finally:
            if self._audit is not None:
                self._audit.close()

    async def _run(self) -> None:
        try:
            await self.threads.start()
            await self._router.start()
            store, name = self._catalogs.store, self.config.catalog
            await store.create(name)
            sources = list(self._sources)
            if self.config.recorded_servers:
                own = {source.name for source in sources}
                known = [server for server in await store.servers(name) if server.name not in own]
                sources += [source for server in known if (source := recorded(server, self._variables))]
            sources = callable_sources(sources)
            self._upstreams = Upstreams(sources, self.config)
            # What is only read, such as skills, is on this machine and quick.
            read_only = [one for one in sources if not isinstance(one, Upstream)]
            await Synchroniser(store, name, read_only, quarantine=self._quarantine).once()
            waiting = {source.name for source in sources if isinstance(source, Upstream)}

            def told(report: Report) -> None:
                log(report)
                for change in report.redescribed:
                    self._redescribed.put(change.id, change)
                waiting.discard(report.server)
                if not waiting:
                    self._ready.set()

            synchroniser = Synchroniser(
                store,
                name,
                sources,
                interval_s=self.config.interval_s,
                minimum_s=self.config.reconnect_s,
                concurrency=max(len(sources), 1),
                quarantine=self._quarantine,
                report=told,
            )
            async with anyio.create_task_group() as group:
                group.start_soon(synchroniser.run)
                with anyio.move_on_after(self.config.start_timeout_s):
                    if waiting:
                        await self._ready.wait()
                self._ready.set()
                await anyio.sleep_forever()  # also where nothing is there to be synchronised
        finally:
            with anyio.CancelScope(shield=True):
                await self._router.close()
                await self.threads.close()

    # The two tools

    async def route(
        self,
        task: str,
        *,
        caller: Caller = ANYONE,
        thread: str | None = None,
        history: Sequence[Message] | None = None,
        include: Filter | None = None,
        alternatives: int | None = None,
        request_id: str | None = None,
    ) -> Routed:
        """Who should do this, among all that may be called now.

        Args:
            caller: who asks.
            thread: what happened before, as this agent remembers it.
            history: what happened before, as the caller tells it; this counts where both are given.
            alternatives: how many of them will be shown besides the decision.
            request_id: under which the decision is recorded.

        Raises:
            ForbiddenError: the thread is not this caller's.
            InvalidRequestError: the task is empty.
            EngineError, StoreError, BusyError: as the router raises them.
            AuditError: the decision cannot be recorded.
        """
        await self._ready.wait()
        task = plain(task).strip()
        if not task:
            raise InvalidRequestError("task is empty; say what is to be done, such as 'list the open issues'", "task")
        remembered = await self.threads.get(thread, caller.owner) if thread else Thread()
        if history is not None:
            remembered.messages = [self._digested(message) for message in history]
        remembered.ask(task)
        asked = Thread(list(history if history is not None else remembered.messages))
        asked.ask(task)
        down = self.unavailable()
        request = RouteRequest(
            messages=tuple(asked.messages),
            catalog=self.config.catalog,
            include=self._included(include),
            exclude=Filter(servers=tuple(down)) if down else None,
            principals=caller.principals,
            cache_salt=caller.salt,
        )
        decision = await self._router.route(request)
        if self._audit is not None:
            catalog = shown_name(self.config.catalog)
            self._audit.record(
                request, decision, surface="agent", request_id=request_id, key=caller.name, tenant=caller.tenant,
                catalog=catalog,
            )  # fmt: skip
        shown = decision.ranking[: 1 + (self.config.alternatives if alternatives is None else alternatives)]
        hashes = {ranked.candidate.id: ranked.candidate.content_hash for ranked in shown}
        if thread is None:
            remembered.routed |= hashes
            thread = await self.threads.create(caller.owner, remembered)
        else:
            async with self.threads.change(thread, caller.owner) as kept:
                if history is not None:
                    kept.messages = remembered.messages
                kept.ask(task)
                for id_, content_hash in hashes.items():
                    kept.show(id_, content_hash)
        redescribed = self._redescribed.get(decision.chosen.candidate.id) if decision.chosen else None
        return Routed(decision, thread, down, redescribed)

    async def execute(self, execution: Execution, *, caller: Caller = ANYONE, call: Call | None = None) -> Result:
        """Calls a candidate, by its id or any name that means only one.

        Raises:
            ForbiddenError: the thread is not this caller's.
            MisnamedError: no candidate that this caller may call is named so.
            InvalidRequestError: it may be several; or, as UnfitArgumentsError, the arguments do not fit its schema.
            RedescribedError: it is described in other words than this thread was shown. Said once; a second call runs.
            UpstreamError: its server cannot be called or does not answer.
        """
        await self._ready.wait()
        handle = execution.thread
        thread = await self.threads.get(handle, caller.owner) if handle else None
        candidate = await self._candidate(execution.candidate, caller, thread)
        schema = shown_schema(candidate.input_schema, candidate.type)
        if thread is not None and handle is not None:
            await self._check_description(thread, handle, caller, candidate, schema)
        try:
            arguments = self._schemas.fitting(execution.arguments, schema)
        except InvalidRequestError as error:
            raise UnfitArgumentsError(
                f"the arguments do not fit {candidate.id!r}: {error}", Nearest(candidate.id, schema)
            ) from None
        try:
            result = await self._upstreams.call(candidate, arguments, call or Call())
        except UpstreamError as error:
            if handle:
                failed = CallToolResult(content=[TextContent(text=str(error))], is_error=True)
                await self._remember(handle, caller, candidate, arguments, failed)
            raise
        if handle and isinstance(result, CallToolResult):
            await self._remember(handle, caller, candidate, arguments, result)
        return result

    async def run(
        self,
        task: str,
        llm: loop.ChatModel,
        *,
        caller: Caller = ANYONE,
        bounds: loop.Bounds | None = None,
        user: loop.User | None = None,
    ) -> loop.Run:
        """Work on a task with a chat model, such as a `serving.llm.LLM`: see `serving.agent.loop.run`."""
        async with AgentToolbox(self, caller) as toolbox:
            return await loop.run(task, llm, toolbox, bounds, user=user)

    # What is listed

    async def names(self, caller: Caller) -> Names:
        """What surfaces call everything that this caller may call."""
        await self._ready.wait()
        return self._named(await self._catalogs.get(self.config.catalog), caller)

    async def visible(self, caller: Caller) -> list[Row]:
        """Everything that this caller may call."""
        await self._ready.wait()
        index = await self._catalogs.get(self.config.catalog)
        return self._open(index, caller)

    async def pinned(self, caller: Caller) -> dict[str, Candidate]:
        """The candidates that are listed as tools of their own, by surface name. One that is gone is left out."""
        await self._ready.wait()
        found: dict[str, Candidate] = {}
        index = await self._catalogs.get(self.config.catalog)
        for name in self.config.pinned:
            try:
                candidate = await self._candidate(name, caller, None)
            except (NotFoundError, InvalidRequestError) as error:
                logger.warning("agent.pinned: %s", error)
                continue
            found[self._named(index, caller).surface[candidate.id]] = candidate
        return found

    # Names and rights

    async def _candidate(self, name: str, caller: Caller, thread: Thread | None) -> Candidate:
        index = await self._catalogs.get(self.config.catalog)
        at = index.position.get(name)
        if at is None or not self._may(index.rows[at], caller):
            names = self._named(index, caller)
            try:
                at = index.position[names.resolve(name)]
            except NotFoundError as error:
                gone = thread is not None and name in thread.routed
                told = f"{name!r} was routed to in this thread, but is not there any more: " if gone else ""
                raise MisnamedError(
                    f"{told}{error}; or call route to find one", await self._nearest(index, names, name)
                ) from None
        # By the row that was found, whatever it was called.
        if not self._may(index.rows[at], caller):
            raise ForbiddenError(f"{name!r} may not be called with this key")
        found = await index.fetch([at])
        if at not in found:  # removed in this moment
            raise MisnamedError(f"{name!r} is not there any more; call route to find another", ())
        return found[at]

    async def _nearest(self, index: CatalogIndex, names: Names, name: str) -> list[Nearest]:
        rows = [index.position[names.resolve(near)] for near in names.nearest(name[:200])[:_NEAREST]]
        found = await index.fetch(rows)
        return [
            Nearest(found[at].id, shown_schema(found[at].input_schema, found[at].type)) for at in rows if at in found
        ]

    def _named(self, index: CatalogIndex, caller: Caller) -> Names:
        """The names of what this caller may call: of others it is not told whether they exist."""
        key = (index.version, caller.principals)
        names = self._names.get(key)
        if names is None:
            names = Names(self._open(index, caller))
            self._names.put(key, names)
        return names

    def _open(self, index: CatalogIndex, caller: Caller) -> list[Row]:
        return [row for at in index.position.values() if self._may(row := index.rows[at], caller)]

    def _may(self, row: Row, caller: Caller) -> bool:
        kinds = self.config.types
        known = not row.principals or not caller.principals.isdisjoint(row.principals)
        return row.enabled and known and (not kinds or row.type in kinds)

    def _included(self, include: Filter | None) -> Filter | None:
        kinds: Sequence[CandidateType] = self.config.types
        if not kinds:
            return include
        if include is None or not include.types:
            return replace(include or Filter(), types=tuple(kinds))
        # A type that nothing has, where both leave nothing.
        return replace(include, types=tuple(set(include.types).intersection(kinds)) or ("",))

    # Memory

    async def _check_description(
        self, thread: Thread, handle: str, caller: Caller, candidate: Candidate, schema: Mapping[str, Any]
    ) -> None:
        shown = thread.routed.get(candidate.id)
        if shown is None or shown == candidate.content_hash:
            return
        async with self.threads.change(handle, caller.owner) as kept:
            kept.show(candidate.id, candidate.content_hash)
        raise RedescribedError(
            f"{candidate.id!r} has changed since it was routed to in this thread; nothing was called. It now says: "
            f"{candidate.description[:500]!r}. Call execute again if it is still what is wanted",
            Nearest(candidate.id, schema),
        )

    async def _remember(
        self, handle: str, caller: Caller, candidate: Candidate, arguments: Mapping[str, Any], result: CallToolResult
    ) -> None:
        messages = step(candidate.id, arguments, result, self.config.result_characters)
        try:
            async with self.threads.change(handle, caller.owner) as kept:
                kept.messages += messages
        except ForbiddenError:
            logger.info("a thread was deleted or has expired during a call; its result is not remembered")

    def _digested(self, message: Message) -> Message:
        size = self.config.result_characters
        calls = tuple(replace(call, arguments=digest(call.arguments, size)) for call in message.tool_calls)
        return replace(message, content=digest(message.content, size), tool_calls=calls)
