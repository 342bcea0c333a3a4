"""A catalogue's graph of servers, tools and intentions: made when it is first asked for, and anew after a change.

Knows the store and the catalogue's rows. Does not know how the graph is searched. The vectors of intentions are kept
in memory from one graph to the next, and in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving.catalog.embeddings import TextVectors
from serving.catalog.entry import Chain
from serving.catalog.store import Store
from serving.prefilter.embedder import Embedder
from serving.prefilter.intentions import IntentionGraph
from serving.prefilter.vectors import Vectors

if TYPE_CHECKING:
    from serving.catalog.index import Row

# Intentions that are embedded, or read from the store, before others have their turn.
TOGETHER = 1_000


class Intentions:
    """One catalogue's.

    Args:
        store: where its chains and servers are.
        name: the catalogue's.
        embedder: the embedder's name, under which the store keeps what it made.
    """

    def __init__(self, store: Store, name: str, embedder: str) -> None:
        self._store = store
        self._name = name
        self._embedder = embedder
        self._lock = asyncio.Lock()
        self._graph: IntentionGraph | None = None
        self._version = -1
        self._numbers: dict[str, int] = {}
        """Every intention there ever was, as `_same` writes it."""
        self._vectors: Vectors | None = None

    async def graph(
        self, version: int, rows: Sequence[Row], position: Mapping[str, int], embedder: Embedder
    ) -> IntentionGraph:
        """The graph of this version of the catalogue. Who asks while it is made waits.

        Args:
            rows: all; only those in `position`, by candidate id, are alive.

        Raises:
            NotFoundError: the catalogue is gone.
            StoreError: the database cannot be used.
        """
        async with self._lock:
            if self._graph is None or self._version != version:
                rows, position = tuple(rows), dict(position)  # both may grow meanwhile
                vectors = TextVectors(self._store, embedder, self._embedder)
                servers = [server for server in await self._store.servers(self._name) if server.description]
                about = await vectors.of_texts([f"{server.name}: {server.description}" for server in servers])
                described = dict(zip((server.name for server in servers), about, strict=True))
                chains = await self._store.chains(self._name)
                await self._number(rows, vectors)
                self._graph = await asyncio.to_thread(self._made, rows, position, chains, described)
                self._version = version
            return self._graph

    async def _number(self, rows: Sequence[Row], vectors: TextVectors) -> None:
        """Give the intentions that have none a number and a vector, some at a time: what is made stays so whenever
        the one who waits for it gives up."""
        missing = await asyncio.to_thread(self._missing, rows)
        for start in range(0, len(missing), TOGETHER):
            some = missing[start : start + TOGETHER]
            made = await vectors.of_texts(some)
            self._vectors = self._vectors or Vectors(made.shape[1])
            self._vectors.add(made)
            self._numbers |= {text: number for number, text in enumerate(some, len(self._numbers))}

    def _missing(self, rows: Sequence[Row]) -> list[str]:
        texts = dict.fromkeys(_same(text) for row in rows for text in row.intentions)
        return [text for text in texts if text not in self._numbers]

    def _made(
        self,
        rows: Sequence[Row],
        position: Mapping[str, int],
        chains: Sequence[Chain],
        described: Mapping[str, NDArray[np.float32]],
    ) -> IntentionGraph:
        alive = np.zeros(len(rows), dtype=bool)
        alive[list(position.values())] = True
        living = [row if lives else None for row, lives in zip(rows, alive.tolist(), strict=True)]
        return IntentionGraph(
            servers=[row.server if row else "" for row in living],
            intentions=[[self._numbers[_same(text)] for text in row.intentions] if row else [] for row in living],
            vectors=self._vectors,
            chains=[[position.get(id_) for id_ in chain.tools] for chain in chains],
            about=described,
        )


def _same(text: str) -> str:
    """An intention as all tools that have it share it: whatever its case and spaces."""
    return " ".join(text.casefold().split())
