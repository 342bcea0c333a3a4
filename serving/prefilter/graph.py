"""Ranking over the graph of servers, tools and intentions (SING). Knows search texts and what is searched.

First servers, then the tools of the best ones, for each sub-task; a request's own pool has no graph, and is ranked by
descriptions alone.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
from numpy.typing import NDArray

from serving.config import GraphConfig
from serving.prefilter.base import Allowed, Ranking, SearchText, within
from serving.prefilter.embedder import Embeddings
from serving.prefilter.intentions import IntentionGraph
from serving.prefilter.pool import Searchable

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

# Intentions, and tools, that each sub-task starts walks from: its most similar ones.
SEEDS = 10


class GraphRanker:
    """Ranks the best tools of each sub-task first (equations 3 to 5), and behind them the others by description.

    Whoever made the embeddings starts and closes them.
    """

    name = "graph"

    def __init__(self, embeddings: Embeddings, config: GraphConfig) -> None:
        self._embeddings = embeddings
        self._config = config

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def close(self) -> None:
        """Nothing of its own to give back."""

    async def rank(self, text: SearchText, pool: Searchable, allowed: Allowed = None) -> Ranking:
        """See `Ranker.rank`. Its time counts embeddings: of the query, and of what was not seen before."""
        started = time.perf_counter()
        queries = await self._embeddings.embedder.embed([text.text, *text.subtasks])
        embedded = await pool.embedded("specification", self._embeddings)
        graph = await pool.graph(self._embeddings)
        embedding_ms = (time.perf_counter() - started) * 1e3
        rows = len(pool)
        described = np.zeros((len(queries), rows), dtype=np.float32)
        for position, query in enumerate(queries):
            described[position] = embedded.best(query, len(pool))[:rows]
            await asyncio.sleep(0)  # others have their turn
        scores = described.max(axis=0)
        if graph is not None and graph.rows:
            found = await asyncio.to_thread(self._found, graph, queries, described[:, : graph.rows], allowed)
            scores[: graph.rows] = np.maximum(scores[: graph.rows], found)
        return Ranking(within(scores, allowed), embedding_ms)

    def _found(self, graph: IntentionGraph, queries: Floats, described: Floats, allowed: Allowed) -> Floats:
        """Scores above 1 of the best tools of each sub-task, 0 of the others: array (rows,).

        Args:
            queries: vectors of the whole search text and of its sub-tasks, if there are any.
            described: cosines of descriptions with each: array (queries, rows).
        """
        rows = described.shape[1]
        mask = np.full(rows, allowed is None)
        if allowed is not None:
            mask[: len(allowed)] = allowed[:rows]
        tasks = slice(1 if len(queries) > 1 else 0, None)
        intended = np.stack([graph.intentions(query) for query in queries[tasks]])
        relevance = graph.relevance(
            _seeds(described, mask), _seeds(intended, graph.intended(mask)), self._config.damping
        )
        served = mask & self._served(graph, queries, described, relevance, mask)
        weights, found = self._config, np.zeros(rows, dtype=np.float32)
        spread = weights.graph * _normalised(relevance[:rows], mask)
        for cosines, of_intentions in zip(described[tasks], intended, strict=True):
            scores = weights.description * cosines + weights.intention * graph.best_intention(of_intentions) + spread
            best = _best(np.where(served, scores, 0), weights.tools)
            found[best] = np.maximum(found[best], 1 + scores[best])
        return found

    def _served(
        self, graph: IntentionGraph, queries: Floats, described: Floats, relevance: Floats, allowed: Mask
    ) -> Mask:
        """Rows of the best servers, and those that have no server: array (rows,).

        A server is as similar to a query as its description or the best of its tools: not all have a description.
        """
        here = graph.best_of_server(allowed.astype(np.float32)) > 0
        similar = np.maximum.reduce(
            [
                graph.best_of_server(np.where(allowed, described.max(axis=0), -np.inf)),
                *(graph.described(query) for query in queries),
            ]
        )
        relevance = relevance[graph.rows : graph.rows + graph.servers]
        scores = self._config.semantic * _normalised(similar, here) + self._config.pagerank * _normalised(
            relevance, here
        )
        chosen = np.zeros(graph.servers + 1, dtype=bool)
        chosen[-1] = True  # where those without a server look
        # Raised, because the last of few servers is one of the best though its normalised scores are 0.
        chosen[_best(np.where(here, 1 + scores, 0), self._config.servers)] = True
        return chosen[graph.server_of]


def _seeds(cosines: Floats, allowed: Mask) -> Floats:
    """The cosines of the SEEDS best allowed of each query, those of several queries added up."""
    seeds = np.zeros(cosines.shape[1], dtype=np.float32)
    for of_query in cosines:
        best = _best(np.where(allowed, of_query, 0), SEEDS)
        seeds[best] += of_query[best]
    return seeds


def _best(scores: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """At most `count` places of the highest scores above 0, in no order."""
    places = np.argpartition(-scores, count)[:count] if len(scores) > count else np.arange(len(scores))
    return places[scores[places] > 0]


def _normalised(values: Floats, among: Mask) -> Floats:
    """Values such that those `among` lie in 0 to 1; all 0 where they are all the same."""
    held = values[among]
    low, high = (held.min(), held.max()) if len(held) else (0.0, 0.0)
    if not high > low:
        return np.zeros_like(values)
    return np.where(among, (values - low) / (high - low), np.float32(0))
