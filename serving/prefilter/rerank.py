"""Reranking: a model that reads query and candidate together orders the best of another ranking anew.

Knows search texts and what is searched. torch and sentence-transformers (the extra `cpu`) are imported when the local
model starts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from prompts.candidate import describe
from serving.prefilter.base import Allowed, Ranker, Ranking, SearchText, best
from serving.prefilter.pool import Searchable
from serving.types import EngineUnavailableError


class CrossEncoder(Protocol):
    """Scores texts for a query."""

    async def start(self) -> None:
        """Load and warm up. Raises EngineUnavailableError where that fails."""
        ...

    async def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Array (texts,), higher is better."""
        ...

    async def close(self) -> None:
        """Give back what is held."""
        ...


class LocalCrossEncoder:
    """A sentence-transformers cross-encoder on the CPU, in one thread of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="reranker")
        self._model: Any = None

    async def start(self) -> None:
        """See `CrossEncoder.start`."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._worker, self._load)
        except Exception as error:
            raise EngineUnavailableError(f"cannot load the reranker {self._path!r}: {error}") from error

    def _load(self) -> None:
        from sentence_transformers import CrossEncoder as Model  # noqa: PLC0415

        self._model = Model(self._path, device="cpu")

    async def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `CrossEncoder.scores`."""
        if self._model is None:
            raise EngineUnavailableError("the reranker is not started")
        pairs = [(query, text) for text in texts]
        scored = await asyncio.get_running_loop().run_in_executor(self._worker, self._model.predict, pairs)
        return np.asarray(scored, dtype=np.float32).reshape(len(texts))

    async def close(self) -> None:
        """See `CrossEncoder.close`."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._model = None


class RerankedRanker:
    """Puts the best `depth` rows of another ranker in a cross-encoder's order; the rest stay behind them.

    The time that the cross-encoder takes counts as embedding: it is the model's, not the search's.
    """

    name = "rerank"

    def __init__(self, ranker: Ranker, encoder: CrossEncoder, depth: int) -> None:
        self._ranker = ranker
        self._encoder = encoder
        self._depth = depth

    async def start(self) -> None:
        """Start the cross-encoder; the other ranker is started by whoever made it."""
        await self._encoder.start()

    async def close(self) -> None:
        """Close the cross-encoder."""
        await self._encoder.close()

    async def rank(self, text: SearchText, pool: Searchable, allowed: Allowed = None) -> Ranking:
        """See `Ranker.rank`. Scores are places: as many as there are reranked rows, then falling."""
        first = await self._ranker.rank(text, pool, allowed)
        rows = best(first.scores, self._depth)
        found = await pool.fetch(rows[first.scores[rows] > 0].tolist())
        if not found:
            return first
        started = time.perf_counter()
        order = np.argsort(-await self._encoder.scores(text.text, list(map(describe, found.values()))), kind="stable")
        took = (time.perf_counter() - started) * 1e3
        scores = np.asarray(first.scores, dtype=np.float32) / max(float(first.scores.max()), 1e-9)
        scores[np.array(list(found))[order]] = np.arange(len(found) + 1, 1, -1, dtype=np.float32)
        return Ranking(scores, first.embedding_ms + took)
