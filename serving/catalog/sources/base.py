"""What every source of candidates has in common: the protocol, the bounds, and what is left out of a listing.

Knows servers and candidates. Does not know how any kind of source is reached, nor the store. Whatever a source
sends is untrusted: too much of it is an error, and a candidate that no store could hold is left out and reported.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from serving.catalog.entry import Entry, Server
from serving.catalog.tables import row_of
from serving.types import Candidate, InvalidRequestError, LightRouterError

# A listing reports at most this many of its problems; a thousand bad tools are one story.
REPORTED_PROBLEMS = 20
# An error stands in a database row and in a log line.
ERROR_CHARACTERS = 1_000
_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")


class SourceError(LightRouterError):
    """A source could not be read. The message names it and says what would be right; it never holds a secret."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one reading of a source may take; more is an error, because a cut list would look like a complete one.

    Attributes:
        candidates: of one server.
        pages: of one listing.
        total_size: characters in one listing, and bytes of one HTTP answer.
        candidate_size: characters in one candidate; a larger one alone is left out.
        timeout_s: to connect, and again to list everything.
    """

    candidates: int = 10_000
    pages: int = 1_000
    total_size: int = 64 * 2**20
    candidate_size: int = 2**18
    timeout_s: float = 30.0


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Listing:
    """What one server has now.

    Attributes:
        server: its name, description and source, and `ttl_ms` where it said how long this may be kept.
        problems: what was left out or looks wrong, in words.
    """

    server: Server
    candidates: tuple[Candidate, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Watch:
    """An open source.

    Attributes:
        read: reads it; raises SourceError.
        changed: returns when the source says that its list has changed, and raises SourceError where the connection
            that would say so is lost; None where this source says nothing by itself.
    """

    read: Callable[[], Awaitable[list[Listing]]]
    changed: Callable[[], Awaitable[None]] | None = None


class Source(ABC):
    """One thing that candidates are read from: a server, an agent, a folder or a file.

    Attributes:
        name: of its server, or of the file where that describes several.
        record: how it is read, as `Server.source` keeps it; without any secret.
    """

    name: str
    record: dict[str, Any]

    @abstractmethod
    async def read(self) -> list[Listing]:
        """Everything it has now, one listing for each of its servers.

        Raises:
            SourceError: it cannot be reached or answers something else.
        """

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch]:
        """Keeps it open between readings. Most kinds have nothing to keep open, and do not tell of changes."""
        yield Watch(self.read)


def candidate_id(server: str, name: str) -> str:
    """The id of a server's candidate: `server/name`, where a slash in the server's name is written %2F.

    So no two pairs share an id. It is for comparing only: nothing takes it apart again.
    """
    return f"{server.replace('%', '%25').replace('/', '%2F')}/{name}"


class Collector:
    """Takes one server's candidates as they come, and leaves out what no store could hold or name.

    Of two candidates with the same id the first one stays. Everything left out is a problem of the listing.
    """

    def __init__(self, server: str, limits: Limits) -> None:
        self._server = server
        self._limits = limits
        self._kept: dict[str, Candidate] = {}
        self._problems: list[str] = []
        self._count = self._size = 0

    def add(self, candidate: Candidate) -> None:
        """Takes one more.

        Raises:
            SourceError: it is more, in number or characters, than the limits allow.
        """
        position, self._count = self._count, self._count + 1
        if self._count > self._limits.candidates:
            raise SourceError(f"{self._server!r} lists more than {self._limits.candidates:,} candidates")
        size, fault = _fault(candidate, position, self._limits)
        self._size += size
        if self._size > self._limits.total_size:
            raise SourceError(f"{self._server!r} lists more than {self._limits.total_size:,} characters of candidates")
        if not fault and candidate.id in self._kept:
            fault = "has the name of an earlier one"
        if fault:
            self.report(f"{candidate.type} {position} ({_shown(candidate.name)}) {fault}; it is left out")
        else:
            self._kept[candidate.id] = candidate

    def report(self, problem: str) -> None:
        """Takes a problem of the listing."""
        self._problems.append(problem)

    def listing(self, server: Server) -> Listing:
        """All that was taken, as this server's."""
        more = len(self._problems) - REPORTED_PROBLEMS
        tail = [f"and {more} more"] if more > 0 else []
        return Listing(server, tuple(self._kept.values()), (*self._problems[:REPORTED_PROBLEMS], *tail))


def plain(text: str) -> str:
    """The text without characters that databases refuse: NUL and lone surrogates."""
    return _NOT_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)


def first_cause(error: BaseException) -> BaseException:
    """The error itself, or the first one in the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _fault(candidate: Candidate, position: int, limits: Limits) -> tuple[int, str]:
    """Characters that the candidate takes in the store, and why it cannot be kept; empty where it can."""
    if not candidate.name.strip():
        return 0, "has no name"
    try:
        row = row_of("", Entry(candidate), 0, f"{candidate.type} {position}")
    except InvalidRequestError as error:
        return 0, f"cannot be stored: {error}"
    size = sum(len(value) for value in row.values() if isinstance(value, str))
    return size, f"takes {size:,} characters; at most {limits.candidate_size:,} are kept" * (
        size > limits.candidate_size
    )


def _shown(name: str) -> str:
    return repr(plain(name[:60])) + ("..." if len(name) > 60 else "")
