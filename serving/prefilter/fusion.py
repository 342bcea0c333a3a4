"""Fusion of several rankings, by their scores or by their ranks. Knows only scores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from serving.prefilter.base import Allowed, Ranker, Ranking, SearchText
from serving.prefilter.pool import Searchable

Scores = Sequence[NDArray[np.floating]]
"""Rankings of the same candidates, each an array of scores (candidates,)."""

# What a method counts beside others, which count 1. On eight public sets, trajectories and agent teams .75 gave more
# first hits than 1 and as many among the first ten; .5 gave more first hits still, and fewer among the first ten.
WEIGHTS: Mapping[str, float] = {"bm25": 0.75}

# The paper fixed 60 on long rankings of documents. Here a candidate that one ranker puts first has to outweigh those
# that both put in the middle: Recall@10 .836 with 10, .811 with 60 (five public pools, trajectories, agent teams).
RANK_CONSTANT = 10


# Places of a ranking that count: of a hundred thousand candidates nearly all have some cosine above 0.
PLACES = 1_000


def score_fusion(rankings: Scores, weights: Sequence[float] | None = None) -> NDArray[np.float64]:
    """Weighted mean of the scores, each as a share of its ranking's best; 0 or less counts as 0.

    A convex combination whose minimum is the theoretical one (Bruch, Gai and Ingber, TOIS 2023), so that it does not
    depend on what else is in the catalogue. Ranks say that a candidate is first, scores also by how much.
    """
    shares = np.ones(len(rankings)) if weights is None else np.asarray(weights)
    fused = np.zeros(len(rankings[0]))
    for scores, share in zip(rankings, shares / shares.sum(), strict=True):
        if (best := float(scores.max(initial=0.0))) > 0:
            fused += share / best * np.maximum(scores, 0)
    return fused


def reciprocal_rank_fusion(rankings: Scores) -> NDArray[np.float64]:
    """Sum of 1 / (constant + rank) over rankings (Cormack, Clarke and Büttcher, SIGIR 2009).

    Equal scores share the best rank of them, so that the order in which candidates stand decides nothing. A score
    of 0 or less is no place in a ranking, nor is one behind the first PLACES.
    """
    fused = np.zeros(len(rankings[0]))
    for scores in rankings:
        placed = np.flatnonzero(scores > 0)
        if len(placed) > PLACES:
            last = -np.partition(-scores, PLACES - 1)[PLACES - 1]
            placed = placed[scores[placed] >= last]
        values = -scores[placed]
        fused[placed] += 1 / (RANK_CONSTANT + 1 + np.searchsorted(np.sort(values), values))
    return fused


class FusedRanker:
    """Ranks by the fusion of other rankers, which whoever made them starts and closes."""

    def __init__(self, *rankers: Ranker, by_rank: bool = False) -> None:
        self.name = "rrf" if by_rank else "fused"
        self._rankers = rankers
        self._by_rank = by_rank

    async def start(self) -> None:
        """Nothing of its own to load."""

    async def close(self) -> None:
        """Nothing of its own to give back."""

    async def rank(self, text: SearchText, pool: Searchable, allowed: Allowed = None) -> Ranking:
        """See `Ranker.rank`."""
        rankings = await asyncio.gather(*(ranker.rank(text, pool, allowed) for ranker in self._rankers))
        scores = [ranking.scores for ranking in rankings]
        fused = (
            reciprocal_rank_fusion(scores)
            if self._by_rank
            else score_fusion(scores, [WEIGHTS.get(ranker.name, 1.0) for ranker in self._rankers])
        )
        return Ranking(fused, sum(ranking.embedding_ms for ranking in rankings))
