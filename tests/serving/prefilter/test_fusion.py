"""Reciprocal rank fusion."""

import numpy as np
import pytest

from prompts import Candidate
from serving.prefilter.base import Ranking, SearchText
from serving.prefilter.fusion import RANK_CONSTANT, FusedRanker, reciprocal_rank_fusion
from serving.prefilter.pool import Pool


def place(rank):
    return 1 / (RANK_CONSTANT + rank)


def test_each_ranking_gives_the_reciprocal_of_the_rank():
    fused = reciprocal_rank_fusion([np.array([0.1, 0.9, 0.5]), np.array([7.0, 3.0, 5.0])])
    assert fused == pytest.approx([place(3) + place(1), place(1) + place(3), place(2) + place(2)])


def test_equal_scores_share_their_best_rank():
    fused = reciprocal_rank_fusion([np.array([2.0, 1.0, 2.0, 1.0, 0.5])])
    assert fused == pytest.approx([place(1), place(3), place(1), place(3), place(5)])


def test_what_a_ranking_did_not_find_gets_nothing_from_it():
    fused = reciprocal_rank_fusion([np.array([0.0, 4.0, 0.0]), np.array([0.2, -0.1, 0.3])])
    assert fused == pytest.approx([place(2), place(1), place(1)])


def test_nothing_found_is_all_zero():
    assert reciprocal_rank_fusion([np.zeros(4), -np.ones(4)]).tolist() == [0.0] * 4


@pytest.mark.anyio
async def test_rankers_are_asked_together():
    class Fixed:
        name = "fixed"

        def __init__(self, *scores, ms):
            self.ranking = Ranking(np.array(scores), ms)
            self.done = []

        async def start(self):
            self.done.append("start")

        async def rank(self, text, pool, allowed=None):
            self.done.append(text.text)
            return self.ranking

        async def close(self):
            self.done.append("close")

    one, two = Fixed(1.0, 2.0, ms=0.0), Fixed(3.0, 2.0, ms=4.5)
    fused = FusedRanker(one, two)
    await fused.start()
    ranking = await fused.rank(SearchText((("q", 1.0),)), Pool.of([Candidate("1", "a"), Candidate("2", "b")]))
    await fused.close()
    assert ranking.scores == pytest.approx([place(1) + place(2)] * 2)
    assert ranking.embedding_ms == 4.5
    assert one.done == two.done == ["q"]  # who made them starts and closes them
