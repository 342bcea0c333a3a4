"""Fusion of rankings, by score and by rank."""

import numpy as np
import pytest

from prompts import Candidate
from serving.prefilter.base import Ranking, SearchText
from serving.prefilter.fusion import RANK_CONSTANT, WEIGHTS, FusedRanker, reciprocal_rank_fusion, score_fusion
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


def test_scores_are_shares_of_each_rankings_best():
    fused = score_fusion([np.array([0.1, 0.2, -0.4]), np.array([8.0, 2.0, 4.0])])
    assert fused == pytest.approx([0.75, 0.625, 0.25])


def test_a_ranking_counts_by_its_weight_and_not_at_all_where_it_found_nothing():
    fused = score_fusion([np.array([1.0, 0.5]), np.array([0.0, 3.0])], [3.0, 1.0])
    assert fused == pytest.approx([0.75, 0.375 + 0.25])
    assert score_fusion([np.zeros(3), -np.ones(3)]).tolist() == [0.0] * 3


@pytest.mark.anyio
@pytest.mark.parametrize("by_rank", [False, True])
async def test_rankers_are_asked_together(by_rank):
    class Fixed:
        def __init__(self, name, *scores, ms):
            self.name = name
            self.ranking = Ranking(np.array(scores), ms)
            self.done = []

        async def start(self):
            self.done.append("start")

        async def rank(self, text, pool, allowed=None):
            self.done.append(text.text)
            return self.ranking

        async def close(self):
            self.done.append("close")

    one, two = Fixed("bm25", 1.0, 2.0, ms=0.0), Fixed("fixed", 3.0, 2.0, ms=4.5)
    fused = FusedRanker(one, two, by_rank=by_rank)
    await fused.start()
    ranking = await fused.rank(SearchText((("q", 1.0),)), Pool.of([Candidate("1", "a"), Candidate("2", "b")]))
    await fused.close()
    less = WEIGHTS["bm25"]
    by_score = [(less / 2 + 1) / (less + 1), (less + 2 / 3) / (less + 1)]
    assert ranking.scores == pytest.approx([place(1) + place(2)] * 2 if by_rank else by_score)
    assert fused.name == ("rrf" if by_rank else "fused")
    assert ranking.embedding_ms == 4.5
    assert one.done == two.done == ["q"]  # who made them starts and closes them
