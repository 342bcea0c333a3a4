"""Ranking by the cosine of embeddings. Knows search texts and what is searched; embeds nothing but the query."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from serving.prefilter.base import Allowed, Ranking, SearchText, within
from serving.prefilter.embedder import Embeddings
from serving.prefilter.pool import Field, Searchable


def mean_vector(text: SearchText, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The weighted mean of the vectors of `text.voices` (voices, dimensions), of unit length."""
    mean = np.einsum("v,vd->d", np.array([weight for _, weight in text.voices], dtype=np.float32), vectors)
    unit: NDArray[np.float32] = mean / max(float(np.linalg.norm(mean)), 1e-9)
    return unit


class DenseRanker:
    """Ranks by the best cosine of a candidate's vectors with the weighted mean of the search text's."""

    name = "dense"

    def __init__(self, embeddings: Embeddings, field: Field = "both") -> None:
        self._embeddings = embeddings
        self._field = field

    async def start(self) -> None:
        """Start the embedder."""
        await self._embeddings.embedder.start()

    async def close(self) -> None:
        """Close the embedder."""
        await self._embeddings.embedder.close()

    async def rank(self, text: SearchText, pool: Searchable, allowed: Allowed = None) -> Ranking:
        """See `Ranker.rank`. Its time counts the query's embedding, and that of candidates not seen before."""
        started = time.perf_counter()
        query = mean_vector(text, await self._embeddings.embedder.embed([voice for voice, _ in text.voices]))
        embedded = await pool.embedded(self._field, self._embeddings)
        embedding_ms = (time.perf_counter() - started) * 1e3
        return Ranking(within(embedded.best(query, len(pool)), allowed), embedding_ms)
