"""Keeps a catalogue's servers as their sources have them: once, or for as long as it runs.

Knows sources and the store. Does not know how a source is reached. A server that cannot be read keeps its last known
candidates, marked stale with the error; what becomes of each server is reported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import anyio

from serving.catalog.entry import Entry, Server
from serving.catalog.scan import Finding
from serving.catalog.screening import Redescribed, screen
from serving.catalog.sources.base import Listing, Source, SourceError, first_cause
from serving.catalog.store import Store
from serving.catalog.tables import KEY_BYTES, check_text
from serving.types import InvalidRequestError, LightRouterError, NotFoundError, StoreError

__all__ = ["Redescribed", "Report", "Synchroniser", "log"]

logger = logging.getLogger(__name__)

# A server that is down is asked again after the shortest pause, then after twice that, and so on up to the interval.
_BACKOFF = 2.0


@dataclass(frozen=True, slots=True)
class Report:
    """What one synchronisation did to one server.

    Attributes:
        added, changed, removed: ids.
        redescribed: those of `changed` whose description is another.
        findings: what looks like poison in what is new or changed.
        error: why the server could not be read; its candidates are stale. None where it could.
        problems: what was left out or looks wrong.
    """

    server: str
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    redescribed: tuple[Redescribed, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def stale(self) -> bool:
        """Whether what the catalogue has of this server is only what it last knew."""
        return self.error is not None


class Synchroniser:
    """Writes what sources have into one catalogue.

    Args:
        catalog: its name; it is made where there is none.
        interval_s: how often each source is read while this runs; sooner where its server's ttl says so.
        minimum_s: the shortest time between two readings of a source, whatever its server says or does.
        concurrency: how many sources are connected to and read at a time.
        quarantine: whether what looks like poison is disabled until somebody enables it.
        report: told of every server of every synchronisation.

    Raises:
        InvalidRequestError: two sources with one name.
    """

    def __init__(
        self,
        store: Store,
        catalog: str,
        sources: Sequence[Source],
        *,
        interval_s: float = 300.0,
        minimum_s: float = 5.0,
        concurrency: int = 8,
        quarantine: bool = False,
        report: Callable[[Report], None] | None = None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._sources = tuple(sources)
        self._interval_s = interval_s
        self._minimum_s = min(minimum_s, interval_s)
        self._limit = anyio.Semaphore(concurrency)
        self._quarantine = quarantine
        self._report = report or log
        self._owners: dict[str, Source] = {}
        for source in sources:
            check_text(source.name, "the server's name", KEY_BYTES)
            if self._owners.setdefault(source.name, source) is not source:
                raise InvalidRequestError(f"two sources are named {source.name!r}; give each server a name of its own")

    async def once(self) -> list[Report]:
        """Reads every source and writes what it has; one report for each server, in the order of the sources.

        Raises:
            StoreError: the database cannot be used.
        """
        reports: list[list[Report]] = [[] for _ in self._sources]

        async def one(position: int, source: Source) -> None:
            async with self._limit:
                reports[position] = await self._synchronised(source)

        try:
            async with anyio.create_task_group() as group:
                for position, source in enumerate(self._sources):
                    group.start_soon(one, position, source)
        except ExceptionGroup as errors:
            raise first_cause(errors) from None
        return [report for some in reports for report in some]

    async def run(self) -> None:
        """Keeps every source synchronised until it is cancelled.

        A source is read again at the interval, when what it sent may be kept no longer, and when it says that its list
        has changed.
        """
        async with anyio.create_task_group() as group:
            for source in self._sources:
                group.start_soon(self._follow, source)

    async def _synchronised(self, source: Source) -> list[Report]:
        try:
            return await self._write(source, await source.read())
        except StoreError:
            raise
        except Exception as error:
            return await self._failed(source, error)

    async def _follow(self, source: Source) -> None:
        failures = 0
        while True:
            worked = False
            try:
                async with AsyncExitStack() as stack:
                    async with self._limit:
                        watch = await stack.enter_async_context(source.watch())
                        pause = self._pause(await self._read(source, watch.read))
                    worked = True
                    while watch.changed is not None:
                        await self._wait(watch.changed, pause)
                        async with self._limit:
                            pause = self._pause(await self._read(source, watch.read))
                failures = 0
            except StoreError as error:
                logger.warning("%r is not synchronised: %s", source.name, error)
                pause = self._minimum_s
            except Exception as error:
                pause = self._minimum_s
                # A connection that worked and broke says nothing of the server yet: the next one does.
                if not worked:
                    pause = min(self._minimum_s * _BACKOFF**failures, self._interval_s)
                    failures = min(failures + 1, 30)
                    await self._told_failed(source, error)
            await anyio.sleep(pause)

    async def _read(self, source: Source, read: Callable[[], Awaitable[list[Listing]]]) -> list[Listing]:
        listings = await read()
        await self._write(source, listings)
        return listings

    async def _wait(self, changed: Callable[[], Awaitable[None]], pause: float) -> None:
        """Until the source tells of a change, or for `pause` seconds; at least the shortest pause."""
        await anyio.sleep(self._minimum_s)
        with anyio.move_on_after(pause - self._minimum_s):
            await changed()

    def _pause(self, listings: list[Listing]) -> float:
        """Seconds until a source is read again."""
        kept = [listing.server.ttl_ms / 1_000 for listing in listings if listing.server.ttl_ms]
        return max(min([self._interval_s, *kept]), self._minimum_s)

    async def _write(self, source: Source, listings: list[Listing]) -> list[Report]:
        reports = [await self._replace(source, listing) for listing in listings]
        listed = {listing.server.name for listing in listings}
        for server in await self._servers_of(source):
            if server.name not in listed:  # a file that no longer has it
                result = await self._store.replace_server(self._catalog, server, ())
                await self._store.remove_server(self._catalog, server.name)
                reports.append(Report(server.name, removed=result.removed))
        for report in reports:
            self._report(report)
        return reports

    async def _replace(self, source: Source, listing: Listing) -> Report:
        name = listing.server.name
        if self._owners.setdefault(name, source) is not source:
            return Report(name, error=f"{source.name!r} lists a server {name!r}, which another source is; rename one")
        known = {}
        try:
            ids = [candidate.id for candidate in listing.candidates]
            known = {entry.candidate.id: entry.candidate for entry in await self._store.get(self._catalog, ids)}
        except NotFoundError:
            pass  # the first write makes the catalogue
        own, problems = [], list(listing.problems)
        for candidate in listing.candidates:
            other = known.get(candidate.id)
            if other is not None and other.server != name:
                problems.append(f"the id {candidate.id[:100]!r} is a candidate's of {other.server!r}; it is left out")
            else:
                own.append(Entry(candidate))
        server = replace(listing.server, synced_at=time.time(), error=None)
        screened = await screen(self._store, self._catalog, own)
        quarantine = screened.flagged if self._quarantine else ()
        result = await self._store.replace_server(self._catalog, server, own, quarantine=quarantine)
        return Report(
            name,
            result.added,
            result.changed,
            result.removed,
            screened.redescribed,
            screened.findings,
            problems=tuple(problems),
        )

    async def _failed(self, source: Source, error: Exception) -> list[Report]:
        """Marks the source's servers; those that it is known to have, or the one of its name."""
        # Only our own errors are worded for people, and without secrets.
        words = str(error) if isinstance(error, LightRouterError) else f"unexpected {type(error).__name__}"
        if not isinstance(error, SourceError):
            logger.error("%r cannot be synchronised: %s", source.name, words)
        servers = await self._servers_of(source) or [Server(source.name)]
        reports = [Report(server.name, error=words) for server in servers]
        for server, report in zip(servers, reports, strict=True):
            await self._store.put_server(self._catalog, replace(server, source=source.record, error=words))
            self._report(report)
        return reports

    async def _told_failed(self, source: Source, error: Exception) -> None:
        try:
            await self._failed(source, error)
        except StoreError as trouble:
            logger.warning("%r is not marked stale: %s", source.name, trouble)

    async def _servers_of(self, source: Source) -> list[Server]:
        """The servers in the catalogue that came from this source, and no other source's."""
        try:
            servers = await self._store.servers(self._catalog)
        except NotFoundError:
            return []
        return [
            server
            for server in servers
            if self._owners.get(server.name, source) is source
            and (server.name == source.name or server.source == source.record)
        ]


def log(report: Report) -> None:
    """What became of a server, to the log."""
    if report.error:
        logger.warning("%s: stale: %s", report.server, report.error)
    elif report.added or report.changed or report.removed or report.problems:
        logger.info(
            "%s: %d added, %d changed (%d described anew), %d removed%s",
            report.server,
            len(report.added),
            len(report.changed),
            len(report.redescribed),
            len(report.removed),
            "".join(f"; {problem}" for problem in report.problems),
        )
    for finding in report.findings:
        logger.warning(
            "%s: %r: %s in %s: %s", report.server, finding.id[:100], finding.rule, finding.where, finding.excerpt
        )
