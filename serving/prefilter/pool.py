"""What is searched: the candidates of one request, or a whole catalogue. Rankers see both alike.

Knows candidates, their texts and what is made of them for searching. Does not know requests, scores or methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from prompts.candidate import describe
from prompts.question import Candidate
from serving.prefilter.embedder import Embeddings
from serving.prefilter.intentions import IntentionGraph
from serving.prefilter.lines import Lines
from serving.prefilter.postings import Postings
from serving.prefilter.vectors import Vectors
from serving.types import RouteRequest

T = TypeVar("T")

# What is indexed of a candidate (Toollery): its specification, the user queries generated for it, or both.
Field = Literal["specification", "manual", "both"]

# What the most similar generated query counts beside the specification, in a ranking by vectors. Measured with other
# users' queries as if they had been generated (MetaTool, two sets of SGD): .25 gives more first hits than .5, 1, 2, or
# the better of the two alone.
QUERIES_WEIGHT = 0.25


@dataclass(slots=True)
class Embedded:
    """Vectors and the row that each belongs to; None where vector i is row i's."""

    vectors: Vectors
    owners: NDArray[np.int32] | None = None

    def best(self, query: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
        """The best cosine of each of `rows` rows with `query`; 0 where a row has no vector."""
        scores = self.vectors.scores(query)
        if self.owners is None:
            return scores
        best = np.zeros(rows, dtype=np.float32)
        np.maximum.at(best, self.owners, scores)
        return best


class Similar(Protocol):
    """Vectors of rows."""

    def best(self, query: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
        """The best cosine of each of `rows` rows with `query`; 0 where a row has no vector."""
        ...


@dataclass(frozen=True, slots=True)
class BothFields:
    """Vectors of specifications and of generated queries."""

    specification: Similar
    queries: Similar

    def best(self, query: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
        """The weighted mean of the cosine of each row's specification and the best of its queries.

        A row without queries is neither better nor worse off for it.
        """
        described = self.specification.best(query, rows)
        asked = self.queries.best(query, rows)
        queries = np.where(asked > 0, asked, described)
        means: NDArray[np.float32] = ((described + QUERIES_WEIGHT * queries) / (1 + QUERIES_WEIGHT)).astype(np.float32)
        return means


class Searchable(Protocol):
    """Numbered candidates ("rows") that can be searched."""

    def __len__(self) -> int:
        """How many rows there are."""
        ...

    async def postings(self, field: Field) -> Postings:
        """One document for each row."""
        ...

    async def embedded(self, field: Field, embeddings: Embeddings) -> Similar:
        """At least one vector for each row whose field says something."""
        ...

    async def graph(self, embeddings: Embeddings) -> IntentionGraph | None:
        """The rows with their servers and intentions; None where nothing is known of these."""
        ...

    def allowed(self, request: RouteRequest) -> NDArray[np.bool_] | None:
        """Rows that may be found for this request; None for all of them."""
        ...

    def pinned(self, request: RouteRequest) -> list[int]:
        """Rows that always pass."""
        ...

    async def fetch(self, rows: Sequence[int]) -> dict[int, Candidate]:
        """The whole candidates of rows, in their order; one that has gone meanwhile is left out."""
        ...

    async def lines(self) -> tuple[Lines, Lines]:
        """What a pattern is searched in, a line for each row: name and parameters; and these with the description."""
        ...


def add_lines(heads: Lines, whole: Lines, texts: Sequence[str]) -> None:
    """The lines of further rows, from what `describe` says of each."""
    heads.add([text.partition(": ")[0] for text in texts])
    whole.add(texts)


@dataclass(eq=False)
class Pool:
    """The candidates of a request, in an order of their own, by content and then by id: no ranking depends on the
    caller's.

    Attributes:
        candidates: in that order.
        queries: generated user queries of each, where there are any.
        salt: vectors are found again only among what was embedded under the same salt.
    """

    candidates: tuple[Candidate, ...]
    queries: tuple[tuple[str, ...], ...] = ()
    salt: str = ""
    _parts: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    _locks: dict[Hashable, asyncio.Lock] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        queries: Mapping[str, Sequence[str]] = MappingProxyType({}),
        salt: str = "",
    ) -> Pool:
        """The pool of these candidates, with generated user queries by candidate id."""
        order = sorted(range(len(candidates)), key=lambda i: (candidates[i].content_hash, candidates[i].id))
        ordered = tuple(candidates[i] for i in order)
        of_each = tuple(tuple(queries.get(candidate.id, ())) for candidate in ordered) if queries else ()
        return cls(ordered, of_each, salt)

    def __len__(self) -> int:
        return len(self.candidates)

    def allowed(self, request: RouteRequest) -> None:
        """See `Searchable.allowed`: all."""

    def pinned(self, request: RouteRequest) -> list[int]:
        """See `Searchable.pinned`: those that the request pins."""
        return [row for row, candidate in enumerate(self.candidates) if candidate.id in request.pinned]

    async def fetch(self, rows: Sequence[int]) -> dict[int, Candidate]:
        """See `Searchable.fetch`."""
        return {row: self.candidates[row] for row in rows}

    async def lines(self) -> tuple[Lines, Lines]:
        """See `Searchable.lines`."""

        async def build() -> tuple[Lines, Lines]:
            heads, whole = Lines(), Lines()
            add_lines(heads, whole, list(map(describe, self.candidates)))
            return heads, whole

        return await self._once("lines", build)

    async def postings(self, field: Field) -> Postings:
        """See `Searchable.postings`."""

        def build() -> Postings:
            postings = Postings()
            postings.add(" ".join(texts) for texts in self._indexed(field))
            return postings

        return await self._once(("postings", field), lambda: asyncio.to_thread(build))

    async def embedded(self, field: Field, embeddings: Embeddings) -> Similar:
        """See `Searchable.embedded`."""
        if field == "both":
            specification = await self.embedded("specification", embeddings)
            return BothFields(specification, await self.embedded("manual", embeddings))

        async def build() -> Embedded:
            texts = self._indexed(field)
            owners = np.repeat(np.arange(len(self), dtype=np.int32), [len(of_row) for of_row in texts])
            rows = await embeddings.salted(self.salt).of([text for of_row in texts for text in of_row])
            vectors = Vectors(rows.shape[1])
            vectors.add(rows)
            return Embedded(vectors, None if field == "specification" else owners)

        return await self._once(("embedded", field), build)

    async def graph(self, embeddings: Embeddings) -> IntentionGraph | None:
        """See `Searchable.graph`: none."""
        return None

    def _indexed(self, field: Field) -> list[tuple[str, ...]]:
        """The texts of each row that a field holds."""
        queries = self.queries or ((),) * len(self)
        if field == "manual":
            return list(queries)
        specifications = map(describe, self.candidates)
        return [(text, *(more if field == "both" else ())) for text, more in zip(specifications, queries, strict=True)]

    async def _once(self, key: Hashable, build: Callable[[], Awaitable[T]]) -> T:
        """What `build` makes, made by the first who asks while others wait; by the next where the first gives up."""
        if key not in self._parts:
            async with self._locks.setdefault(key, asyncio.Lock()):
                if key not in self._parts:
                    self._parts[key] = await build()
        part: T = self._parts[key]
        return part
