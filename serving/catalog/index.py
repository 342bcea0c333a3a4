"""A catalogue in memory, as rankers search it: ids, texts, postings and vectors, one row for each candidate.

Knows entries and the numbers made of them. Reads the store where something changed, and for the full specifications
of the few rows that pass; it never holds those. A change appends a row and leaves the old one dead.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prompts import Candidate
from prompts.candidate import describe
from serving.cache import LRU
from serving.catalog.embeddings import text_key
from serving.catalog.entry import Entry
from serving.catalog.intentions import Intentions
from serving.catalog.names import CatalogNames
from serving.catalog.store import Store
from serving.prefilter.embedder import BATCH, Embeddings, batches
from serving.prefilter.intentions import IntentionGraph
from serving.prefilter.lines import Lines
from serving.prefilter.pool import BothFields, Embedded, Field, Similar, add_lines
from serving.prefilter.postings import Postings
from serving.prefilter.vectors import Vectors
from serving.types import Filter, RouteRequest

# Full specifications that are remembered.
SPECIFICATIONS = 2_000
# Rows that are indexed before other requests have their turn.
TOGETHER = 200


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of a candidate without asking the store."""

    id: str
    name: str
    server: str
    type: str
    tags: tuple[str, ...]
    content_hash: str
    queries: tuple[str, ...]
    intentions: tuple[str, ...]
    principals: tuple[str, ...]
    pinned: bool
    enabled: bool
    version: int


def _row(entry: Entry) -> Row:
    candidate = entry.candidate
    return Row(
        id=candidate.id,
        name=candidate.name,
        server=candidate.server,
        type=candidate.type,
        tags=candidate.tags,
        content_hash=candidate.content_hash,
        queries=entry.queries,
        intentions=entry.intentions,
        principals=entry.principals,
        pinned=entry.pinned,
        enabled=entry.enabled,
        version=entry.version,
    )


class _Owned:
    """Vectors of rows that come in any order; those whose text is not embedded yet wait."""

    def __init__(self) -> None:
        self._vectors: Vectors | None = None
        self._owners: list[int] = []
        self.waiting: dict[str, tuple[str, list[int]]] = {}
        """Text by key, and the rows that it belongs to."""

    def add(self, owners: Sequence[int], vectors: NDArray[np.float16]) -> None:
        """Vectors of these rows."""
        if len(owners):
            self._vectors = self._vectors or Vectors(vectors.shape[1])
            self._vectors.add(vectors)
            self._owners += owners

    def best(self, query: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
        """The best cosine of each row; 0 where it has no vector."""
        if self._vectors is None:
            return np.zeros(rows, dtype=np.float32)
        return Embedded(self._vectors, np.asarray(self._owners, dtype=np.int32)).best(query, rows)


class CatalogIndex:
    """One catalogue, loaded and kept up. `serving.prefilter.pool.Searchable`.

    Args:
        store: the truth.
        name: the catalogue's.
        embeddings: makes vectors; None where nothing is ranked by them.
        embedder: its name, under which the store keeps what it made.
    """

    def __init__(self, store: Store, name: str, embeddings: Embeddings | None, embedder: str) -> None:
        self.name = name
        self.version = 0
        self._store = store
        self._embeddings = embeddings
        self._embedder = embedder
        self._specifications: LRU[tuple[str, int], Candidate] = LRU(SPECIFICATIONS, lambda _: 1)
        self._intentions = Intentions(store, name, embedder)
        self._empty()

    def _empty(self) -> None:
        self.rows: list[Row] = []
        self.position: dict[str, int] = {}
        self.names = CatalogNames()
        self._texts: list[str] = []
        self._alive: list[bool] = []
        self._postings: dict[Field, Postings] = {"specification": Postings()}
        self._vectors: dict[Field, _Owned] = {"specification": _Owned(), "manual": _Owned()}
        self._lines = Lines(), Lines()
        self._columns: _Columns | None = None

    def __len__(self) -> int:
        return len(self.rows)

    # Keeping up

    async def refresh(self) -> None:
        """Take over what was written since. Whoever searches meanwhile sees a part of it. One call at a time.

        Raises:
            NotFoundError: the catalogue is gone.
            StoreError: the database cannot be used; what is in memory stays.
        """
        entries: list[Entry] = []
        removed: tuple[str, ...] = ()
        version = self.version
        async with contextlib.aclosing(self._store.stream_changes(self.name, self.version)) as parts:
            async for part in parts:
                version, removed = part.version, removed + part.removed
                entries += part.entries
        await self._apply(entries, removed)
        self.version = version

    async def _apply(self, entries: Sequence[Entry], removed: Iterable[str]) -> None:
        for id_ in removed:
            self._bury(id_)
        appended: list[tuple[Row, str]] = []
        for entry in entries:
            row = _row(entry)
            at = self.position.get(row.id)
            if at is not None and _reads_as(self.rows[at], row):
                self.rows[at] = row
            else:
                appended.append((row, describe(entry.candidate)))
        known = await self._known(appended)
        for start in range(0, len(appended), TOGETHER):
            first = len(self.rows)
            for row, text in appended[start : start + TOGETHER]:
                self._bury(row.id)
                self.position[row.id] = len(self.rows)
                self.names.add(row)
                self.rows.append(row)
                self._texts.append(text)
                self._alive.append(True)
            for field, postings in self._postings.items():
                postings.add(self._document(field, at) for at in range(first, len(self.rows)))
            self._add_vectors(first, known)
            self._columns = None
            await asyncio.sleep(0)  # others have their turn, and see whole rows
        self._columns = None
        for field in ("manual", "both"):
            if field not in self._postings and any(row.queries for row, _ in appended):
                made = Postings()
                for start in range(0, len(self.rows), TOGETHER):
                    made.add(self._document(field, at) for at in range(start, min(start + TOGETHER, len(self.rows))))
                    await asyncio.sleep(0)
                self._postings[field] = made

    def _bury(self, id_: str) -> None:
        if (at := self.position.pop(id_, None)) is not None:
            self._alive[at] = False
            self.names.remove(self.rows[at])

    def _document(self, field: Field, at: int) -> str:
        queries = self.rows[at].queries
        return " ".join(queries if field == "manual" else (self._texts[at], *(queries if field == "both" else ())))

    async def _known(self, appended: Sequence[tuple[Row, str]]) -> dict[str, NDArray[np.float16]]:
        """Vectors that the store has; and, where they are few, those that it does not have, made now."""
        if self._embeddings is None:
            return {}
        texts = {key: text for row, specification in appended for _, key, text in _keyed(row, specification)}
        known = await self._store.embeddings(self._embedder, list(texts))
        missing = {key: text for key, text in texts.items() if key not in known}
        return known | (await self._embed(missing) if len(missing) <= BATCH else {})

    async def _embed(self, texts: Mapping[str, str]) -> dict[str, NDArray[np.float16]]:
        """Embed, and have the store keep it."""
        if not texts or self._embeddings is None:
            return {}
        rows = await self._embeddings.of(list(texts.values()))
        made = dict(zip(texts, rows, strict=True))
        await self._store.put_embeddings(self._embedder, made)
        return made

    def _add_vectors(self, first: int, known: Mapping[str, NDArray[np.float16]]) -> None:
        found: defaultdict[Field, list[tuple[int, NDArray[np.float16]]]] = defaultdict(list)
        for at in range(first, len(self.rows)):
            for field, key, text in _keyed(self.rows[at], self._texts[at]):
                if key in known:
                    found[field].append((at, known[key]))
                elif self._embeddings is not None:
                    self._vectors[field].waiting.setdefault(key, (text, []))[1].append(at)
        for field, pairs in found.items():
            self._vectors[field].add([at for at, _ in pairs], np.stack([vector for _, vector in pairs]))

    async def embed_waiting(self) -> None:
        """Embed what waits, some at a time; each is searched as soon as it is there, and the store keeps it."""
        for owned in self._vectors.values():
            while owned.waiting:  # more may come meanwhile
                for batch in batches({key: text for key, (text, _) in owned.waiting.items()}):
                    made = await self._embed(batch)
                    ready = [(at, vector) for key, vector in made.items() for at in owned.waiting.pop(key)[1]]
                    owned.add([at for at, _ in ready], np.stack([vector for _, vector in ready]))

    @property
    def dead(self) -> int:
        """Rows that nothing finds any more."""
        return len(self.rows) - len(self.position)

    @property
    def waiting(self) -> int:
        """Texts that are not embedded yet."""
        return sum(len(owned.waiting) for owned in self._vectors.values())

    # Searching

    async def postings(self, field: Field) -> Postings:
        """See `Searchable.postings`. Without any generated query, both fields are the specification."""
        if field in self._postings:
            return self._postings[field]
        if field == "both":
            return self._postings["specification"]
        empty = Postings()
        empty.add("" for _ in self.rows)
        return empty

    async def embedded(self, field: Field, embeddings: Embeddings) -> Similar:
        """See `Searchable.embedded`."""
        if field == "both":
            return BothFields(self._vectors["specification"], self._vectors["manual"])
        return self._vectors[field]

    async def graph(self, embeddings: Embeddings) -> IntentionGraph:
        """See `Searchable.graph`. Kept from the first time it is asked for until something changes."""
        return await self._intentions.graph(self.version, self.rows, self.position, embeddings.embedder)

    async def lines(self) -> tuple[Lines, Lines]:
        """See `Searchable.lines`. Kept from the first time a pattern is searched for."""
        heads, whole = self._lines
        add_lines(heads, whole, self._texts[len(whole) :])
        return self._lines

    async def fetch(self, rows: Sequence[int]) -> dict[int, Candidate]:
        """See `Searchable.fetch`. From the store, where they are not remembered."""
        keys = {at: (self.rows[at].id, self.rows[at].version) for at in rows}
        found = {at: held for at, key in keys.items() if (held := self._specifications.get(key)) is not None}
        missing = {keys[at][0]: at for at in rows if at not in found}
        for entry in await self._store.get(self.name, list(missing)) if missing else ():
            at = missing[entry.candidate.id]
            found[at] = entry.candidate
            self._specifications.put((entry.candidate.id, entry.version), entry.candidate)
        return {at: found[at] for at in rows if at in found}

    def allowed(self, request: RouteRequest) -> NDArray[np.bool_]:
        """See `Searchable.allowed`: living, enabled, open to who asks, and what the filters let pass."""
        columns = self._seen()
        mask: NDArray[np.bool_] = columns.open.copy()
        for at, names in columns.restricted.items():
            mask[at] = not request.principals.isdisjoint(names)
        if request.include is not None:
            mask &= columns.matching(request.include, self.position)
        if request.exclude is not None:
            mask &= ~columns.matching(request.exclude, self.position)
        return mask

    def pinned(self, request: RouteRequest) -> list[int]:
        """See `Searchable.pinned`: those that the catalogue or the request pins, where they are allowed."""
        pinned = self._seen().pinned.copy()
        pinned[[self.position[id_] for id_ in request.pinned if id_ in self.position]] = True
        rows: list[int] = np.flatnonzero(pinned & self.allowed(request)).tolist()
        return rows

    def _seen(self) -> _Columns:
        if self._columns is None:
            self._columns = _Columns(self.rows, self._alive)
        return self._columns


class _Columns:
    """The rows' properties as arrays, made anew after a change."""

    def __init__(self, rows: Sequence[Row], alive: Sequence[bool]) -> None:
        living = np.asarray(alive, dtype=bool)
        enabled = np.fromiter((row.enabled for row in rows), bool, len(rows))
        self.restricted = {
            at: row.principals for at, row in enumerate(rows) if row.principals and row.enabled and alive[at]
        }
        self.open = living & enabled
        self.open[list(self.restricted)] = False
        self.pinned = living & np.fromiter((row.pinned for row in rows), bool, len(rows))
        self._rows = rows
        self._by: dict[str, dict[str, list[int]]] = {}

    def matching(self, wanted: Filter, position: Mapping[str, int]) -> NDArray[np.bool_]:
        """Rows that fit every kind of thing the filter names, by one of the things named."""
        mask = np.ones(len(self._rows), dtype=bool)
        for kind, values in (("server", wanted.servers), ("type", wanted.types), ("tags", wanted.tags)):
            if values:
                mask &= self._having(kind, values)
        if wanted.ids:
            named = np.zeros(len(self._rows), dtype=bool)
            named[[position[id_] for id_ in wanted.ids if id_ in position]] = True
            mask &= named
        return mask

    def _having(self, kind: str, values: Iterable[str]) -> NDArray[np.bool_]:
        if kind not in self._by:
            places: defaultdict[str, list[int]] = defaultdict(list)
            for at, row in enumerate(self._rows):
                held = getattr(row, kind)
                for value in (held,) if isinstance(held, str) else held:
                    places[value].append(at)
            self._by[kind] = dict(places)
        mask = np.zeros(len(self._rows), dtype=bool)
        for value in values:
            mask[self._by[kind].get(value, [])] = True
        return mask


def _reads_as(old: Row, new: Row) -> bool:
    """Whether nothing that is searched has changed."""
    return (old.content_hash, old.queries) == (new.content_hash, new.queries)


def _keyed(row: Row, text: str) -> list[tuple[Field, str, str]]:
    """Field, key and text of every vector that a row has. A specification's key is its content hash."""
    return [("specification", row.content_hash, text), *(("manual", text_key(query), query) for query in row.queries)]
