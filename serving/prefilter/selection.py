"""The prefilter's policy: which candidates are searched, what always passes, when nothing is filtered.

Knows requests and rankers by the names of their methods. How a ranker scores is its own matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from prompts.question import Candidate
from serving.cache import LRU
from serving.catalog.tenants import shown_name
from serving.config import PrefilterConfig
from serving.prefilter.base import Allowed, Kept, Ranker, Ranking, best, search_text, within
from serving.prefilter.fusion import FusedRanker
from serving.prefilter.pool import Pool, Searchable
from serving.types import EngineTimeoutError, InvalidRequestError, NotFoundError, PrefilterReport, RouteRequest

if TYPE_CHECKING:
    from serving.catalog.catalogs import Catalogs

# Candidates in all remembered pools together.
POOLED_CANDIDATES = 20_000


class RankingPrefilter:
    """Passes the pinned candidates and the best of the others. What has at most k candidates passes whole.

    Args:
        rankers: by the names of methods. A request that names several has them fused.
        config: the usual method, k, and what is searched for.
        catalogs: where catalogues are looked up; None where there are none.
        queries: generated user queries by candidate id, which a request's candidates are found by too.
    """

    def __init__(
        self,
        rankers: Mapping[str, Ranker],
        config: PrefilterConfig,
        catalogs: Catalogs | None = None,
        queries: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.rankers = rankers
        self._config = config
        self.catalogs = catalogs
        self._queries = queries or {}
        self._pools: LRU[tuple[str, tuple[Candidate, ...]], Pool] = LRU(POOLED_CANDIDATES, len)

    @property
    def methods(self) -> Collection[str]:
        """See `Prefilter.methods`."""
        return self.rankers.keys()

    async def start(self) -> None:
        """See `Prefilter.start`."""
        for ranker in self.rankers.values():
            await ranker.start()
        if self.catalogs is not None:
            await self.catalogs.start()

    async def close(self) -> None:
        """See `Prefilter.close`."""
        if self.catalogs is not None:
            await self.catalogs.close()
        for ranker in self.rankers.values():
            await ranker.close()

    async def select(self, request: RouteRequest) -> Kept:
        """See `Prefilter.select`."""
        k = self._config.k if request.k is None else request.k
        considered = len(request.candidates)
        if request.catalog is None and considered <= k:
            return Kept(tuple(request.candidates), [0.0] * considered, PrefilterReport("none", considered, considered))
        return await _in_time(request, self._select(request, k))

    async def search(self, request: RouteRequest) -> Kept:
        """See `Prefilter.search`."""
        return await _in_time(request, self._search(request, self._config.k if request.k is None else request.k))

    async def pinned(self, request: RouteRequest) -> tuple[Candidate, ...]:
        """See `Prefilter.pinned`."""
        pool = await self._searched(request)
        return tuple((await pool.fetch(pool.pinned(request))).values())

    async def _select(self, request: RouteRequest, k: int) -> Kept:
        pool = await self._searched(request)
        allowed, pinned = pool.allowed(request), pool.pinned(request)
        considered = len(pool) if allowed is None else int(np.count_nonzero(allowed))
        if len(pinned) > k:
            raise InvalidRequestError(
                f"{len(pinned)} candidates are pinned, but at most k = {k} may pass; pin fewer, or raise k", "k"
            )
        if considered <= k:
            rows = np.arange(len(pool)) if allowed is None else np.flatnonzero(allowed)
            kept = await pool.fetch(rows.tolist())
            return Kept(tuple(kept.values()), [0.0] * len(kept), PrefilterReport("none", considered, len(kept)))
        method, ranking = await self._rank(request, pool, allowed)
        rows = best(ranking.scores if allowed is None else np.where(allowed, ranking.scores, -np.inf), k, pinned)
        return await _kept(pool, rows, ranking, method, considered)

    async def _search(self, request: RouteRequest, k: int) -> Kept:
        pool = await self._searched(request)
        allowed = pool.allowed(request)
        deferred = np.ones(len(pool), dtype=bool) if allowed is None else allowed.copy()
        deferred[pool.pinned(request)] = False
        considered = int(np.count_nonzero(deferred))
        if not considered:
            return Kept((), [], PrefilterReport("none", 0, 0))
        method, ranking = await self._rank(request, pool, deferred)
        scores = within(ranking.scores, deferred)
        rows = best(scores, k)
        return await _kept(pool, rows[scores[rows] > 0], ranking, method, considered)

    async def _rank(self, request: RouteRequest, pool: Searchable, allowed: Allowed) -> tuple[str, Ranking]:
        """The method that counts for the request, and its ranking."""
        ranker = self._ranker(request.methods)
        text = search_text(request.messages, self._config.history_messages, request.subtasks)
        return ranker.name, await ranker.rank(text, pool, allowed)

    async def _searched(self, request: RouteRequest) -> Searchable:
        """The catalogue that is named, or the pool of the candidates sent: an agent sends the same again and again.

        What one caller sent makes nothing faster for another, who could tell from the time what others send.
        """
        if request.catalog is not None:
            if self.catalogs is None:
                raise NotFoundError(
                    f"there is no catalogue {shown_name(request.catalog)[:100]!r}: this server keeps none"
                )
            return await self.catalogs.get(request.catalog)
        key = request.cache_salt, tuple(request.candidates)
        pool = self._pools.get(key)
        if pool is None:
            pool = await asyncio.to_thread(Pool.of, request.candidates, self._queries, request.cache_salt)
            self._pools.put(key, pool)
        return pool

    def _ranker(self, methods: Sequence[str]) -> Ranker:
        """The profile's, the one named, or the fusion of those named."""
        for method in methods:
            if method not in self.rankers:
                known = ", ".join(self.rankers)
                raise InvalidRequestError(f"methods: {method[:100]!r} is not one of this server's: {known}", "methods")
        named = [self.rankers[method] for method in methods or [self._config.method]]
        return named[0] if len(named) == 1 else FusedRanker(*named)


async def _in_time(request: RouteRequest, work: Awaitable[Kept]) -> Kept:
    """What `work` gives before the request's deadline."""
    try:
        async with asyncio.timeout(request.remaining()):
            return await work
    except TimeoutError as error:
        raise EngineTimeoutError(
            "the deadline passed while the candidates were searched; send fewer, or allow more time"
        ) from error


async def _kept(pool: Searchable, rows: NDArray[np.intp], ranking: Ranking, method: str, considered: int) -> Kept:
    """These rows as what passed."""
    kept = await pool.fetch(rows.tolist())
    scores = ranking.scores[list(kept)].tolist()
    return Kept(
        candidates=tuple(kept.values()),
        scores=scores,
        report=PrefilterReport(method, considered, len(kept), _margin(scores)),
        embedding_ms=ranking.embedding_ms,
    )


def _margin(scores: Sequence[float]) -> float | None:
    """See `PrefilterReport`."""
    best, second = [*sorted(scores, reverse=True)[:2], 0.0, 0.0][:2]
    return (best - max(second, 0.0)) / best if len(scores) > 1 and best > 0 else None
