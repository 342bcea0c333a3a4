"""What a catalogue holds: candidates with what it knows about them, and the servers they come from.

Knows candidates. Does not know how they are stored, searched or synchronised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prompts import Candidate


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate in a catalogue, with what the catalogue knows about it.

    Attributes:
        candidate: its `content_hash` is the key of embeddings.
        pinned: always passes the prefilter and is always loaded.
        enabled: whether it may be chosen at all.
        principals: who may see it; empty means everyone.
        queries: enrichment: user queries that an LLM made for it.
        intentions: enrichment: what it is for, as SING's graph links it.
        version: the catalogue's version at which it was last written; set by the store.
        stale: its server could not be reached at the last synchronisation; set by the store.
    """

    candidate: Candidate
    pinned: bool = False
    enabled: bool = True
    principals: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    intentions: tuple[str, ...] = ()
    version: int = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """Where candidates come from.

    Attributes:
        source: how it is synchronised, such as `{"kind": "mcp", "url": ...}`; never a secret's value.
        synced_at: Unix seconds of the last success.
        ttl_ms: how long its answer may be kept, as it said itself.
        error: the last failure; the server's candidates are stale while it is set.
    """

    name: str
    description: str = ""
    source: dict[str, Any] | None = None
    synced_at: float | None = None
    ttl_ms: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Bearer:
    """A candidate's id, and the name that it has on its server."""

    id: str
    server: str
    name: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything written after a version, in one consistent read.

    Attributes:
        version: the catalogue's version that was read.
        entries: the current state of each changed candidate, disabled ones included.
        removed: ids that were removed since and are not back.
    """

    version: int
    entries: tuple[Entry, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Candidates that were used one after the other for a query, in that order."""

    query: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CatalogInfo:
    """A catalogue at a glance: its version and how many candidates it holds."""

    name: str
    version: int
    candidates: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a catalogue in the order of ids. `next` is the id to ask after for the rest; None at the end."""

    entries: tuple[Entry, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What a synchronisation did: ids by what happened to them, and the catalogue's version afterwards."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    version: int
