"""Every catalogue of one store, loaded and kept up with what this and other replicas write.

Knows the store and the indexes. Does not know how they are searched or who writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict

from serving.catalog.index import CatalogIndex
from serving.catalog.store import Store
from serving.catalog.tenants import tenant_of
from serving.prefilter.embedder import Embeddings
from serving.types import LightRouterError, NotFoundError

logger = logging.getLogger(__name__)

# Rows that nothing finds any more, before an index is built anew: so many, or half as many as there are others.
DEAD = 2_000


class Catalogs:
    """The catalogues of a store, in memory.

    Args:
        store: started and closed with this.
        embeddings: makes vectors; None where nothing is ranked by them. Started by whoever ranks.
        embedder: its name, under which the store keeps what it made.
        poll_s: how often other replicas' changes are looked for.
    """

    def __init__(self, store: Store, embeddings: Embeddings | None, embedder: str, poll_s: float = 1.0) -> None:
        self.store = store
        self._embeddings = embeddings
        self._embedder = embedder
        self._poll_s = poll_s
        self._indexes: dict[str, CatalogIndex] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._polled_at = time.monotonic()
        self._polling: asyncio.Task[None] | None = None
        self._embedding: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> frozenset[str]:
        """Names of the catalogues in memory."""
        return frozenset(self._indexes)

    def age_s(self) -> float:
        """Seconds since the database last said which versions there are."""
        return time.monotonic() - self._polled_at

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Candidates and version of every catalogue in memory, by name."""
        return {name: (len(index.position), index.version) for name, index in self._indexes.items()}

    async def start(self) -> None:
        """Open the store and load every catalogue. Vectors that no one has made yet are made in the background.

        Raises:
            StoreError: the database cannot be used.
        """
        await self.store.start()
        self.store.on_write = self._written
        for name in await self.store.versions():
            await self.refresh(name)
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        """Stop, and close the store."""
        for task in (self._polling, self._embedding):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.store.close()

    async def get(self, name: str) -> CatalogIndex:
        """The catalogue's index, loaded where it is not yet.

        Raises:
            NotFoundError: there is none of this name.
            StoreError: the database cannot be used, and the catalogue is not in memory.
        """
        return self._indexes.get(name) or await self.refresh(name)

    async def refresh(self, name: str) -> CatalogIndex:
        """Take over what was written to a catalogue, at once. Raises as `get`."""
        async with self._locks[name]:
            version = (await self.store.versions()).get(name, 0)
            index = self._indexes.get(name)
            # A version that goes back is that of another database under the same name.
            if index is None or index.dead > max(DEAD, len(index.position) // 2) or index.version > version:
                index = self._index(name)
            try:
                await index.refresh()
            except NotFoundError:
                self._indexes.pop(name, None)
                raise
            self._indexes[name] = index
        if index.waiting and (self._embedding is None or self._embedding.done()):
            self._embedding = asyncio.create_task(self._embed())
        return index

    def _index(self, name: str) -> CatalogIndex:
        """An empty index. Tenants share no vectors: who writes a text could tell from the time that another has it."""
        tenant, embeddings, embedder = tenant_of(name), self._embeddings, self._embedder
        if not tenant:
            return CatalogIndex(self.store, name, embeddings, embedder)
        return CatalogIndex(self.store, name, embeddings and embeddings.salted(tenant), f"{tenant}/{embedder}")

    async def embedded(self) -> None:
        """Wait until the vectors that were missing have been made."""
        if self._embedding is not None:
            await asyncio.shield(self._embedding)

    async def _written(self, name: str) -> None:
        """What is written here is found at once. A catalogue that was dropped is forgotten."""
        with contextlib.suppress(NotFoundError):
            await self.refresh(name)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                versions = await self.store.versions()
                self._polled_at = time.monotonic()
                for name in versions.keys() | self._indexes.keys():
                    index = self._indexes.get(name)
                    if index is None or index.version != versions.get(name):
                        await self._written(name)
            except LightRouterError as error:
                logger.warning("catalogues cannot be read: %s", error)

    async def _embed(self) -> None:
        """Make the vectors that are missing, catalogue by catalogue, until none is."""
        while waiting := [index for index in self._indexes.values() if index.waiting]:
            for index in waiting:
                try:
                    await index.embed_waiting()
                except LightRouterError as error:
                    logger.warning("catalogue %s: %d texts are not embedded: %s", index.name, index.waiting, error)
                    return
