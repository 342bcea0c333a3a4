"""The policy: what always passes, when nothing is filtered, which catalogue is searched."""

import asyncio
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompts import Candidate
from serving.config import PrefilterConfig
from serving.prefilter.base import Ranking, SearchText, best, search_text
from serving.prefilter.pool import Pool
from serving.prefilter.selection import RankingPrefilter
from serving.types import EngineTimeoutError, InvalidRequestError, RouteRequest
from tests.serving.prefilter.test_base import CONVERSATION


def candidates(count: int) -> tuple[Candidate, ...]:
    return tuple(Candidate(f"id-{i}", f"tool_{i}", f"does thing {i}") for i in range(count))


class ByNumber:
    """Scores by the number in the candidate's name; remembers what it was asked."""

    name = "by-number"

    def __init__(self, scores=float):
        self.asked: list[tuple[SearchText, Pool]] = []
        self.scores = scores

    async def start(self): ...
    async def close(self): ...

    async def rank(self, text, pool, allowed=None):
        self.asked.append((text, pool))
        return Ranking(np.array([self.scores(c.name.split("_")[1]) for c in pool.candidates]), embedding_ms=2.5)


def request(count: int, **changes) -> RouteRequest:
    return RouteRequest(CONVERSATION, changes.pop("candidates", candidates(count)), **changes)


def prefilter(ranker=None, **config) -> RankingPrefilter:
    return RankingPrefilter({"fused": ranker or ByNumber()}, PrefilterConfig(**config))


def numbers(kept) -> list[int]:
    return [int(candidate.name.split("_")[1]) for candidate in kept.candidates]


# Which candidates pass


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "k"), [(0, None), (1, None), (10, None), (3, 3), (12, 20)])
async def test_a_list_of_at_most_k_passes_whole_in_its_own_order(count, k):
    ranker = ByNumber()
    kept = await prefilter(ranker).select(request(count, k=k))
    assert numbers(kept) == list(range(count))
    assert list(kept.scores) == [0.0] * count
    assert (kept.report.method, kept.report.considered, kept.report.kept) == ("none", count, count)
    assert ranker.asked == []


@pytest.mark.anyio
@pytest.mark.parametrize(("k", "passing"), [(None, 10), (3, 3), (1, 1)])
async def test_the_best_pass_best_first(k, passing):
    kept = await prefilter().select(request(30, k=k))
    assert numbers(kept) == list(range(29, 29 - passing, -1))
    assert list(kept.scores) == [float(p) for p in numbers(kept)]
    assert (kept.report.method, kept.report.considered, kept.report.kept) == ("by-number", 30, passing)
    assert kept.embedding_ms == 2.5


@pytest.mark.anyio
async def test_the_profile_says_how_many_and_how_much_history():
    ranker = ByNumber()
    kept = await prefilter(ranker, k=4, history_messages=1).select(request(11))
    assert len(kept.candidates) == 4
    assert ranker.asked[0][0] == search_text(CONVERSATION, 1)


@pytest.mark.anyio
async def test_the_requests_subtasks_are_searched_for():
    ranker = ByNumber()
    await prefilter(ranker).select(request(11, subtasks=("find a flight", "book it")))
    assert ranker.asked[0][0].subtasks == ("find a flight", "book it")


@pytest.mark.anyio
async def test_pinned_candidates_pass_within_k_and_at_their_place():
    kept = await prefilter().select(request(30, k=4, pinned=frozenset({"id-0", "id-28", "not-here"})))
    assert numbers(kept) == [29, 28, 27, 0]


@pytest.mark.anyio
async def test_as_many_pinned_as_may_pass_leave_no_room():
    kept = await prefilter().select(request(30, k=2, pinned=frozenset({"id-0", "id-1"})))
    assert numbers(kept) == [1, 0]


@pytest.mark.anyio
async def test_more_pinned_than_may_pass_is_the_callers_mistake():
    pinned = frozenset({"id-0", "id-1", "id-2"})
    with pytest.raises(InvalidRequestError, match=r"3 candidates are pinned, but at most k = 2"):
        await prefilter().select(request(30, k=2, pinned=pinned))
    assert len((await prefilter().select(request(3, k=3, pinned=pinned))).candidates) == 3


@pytest.mark.anyio
@pytest.mark.parametrize("scores", [float, lambda number: int(number) // 7, lambda number: 0.0])
async def test_the_callers_order_decides_nothing(scores):
    """The same candidates pass in the same order, above all where scores are equal or candidates alike."""
    listed = [*candidates(40), *(Candidate(f"twin-{i}", "tool_1", "the same words") for i in range(5))]
    filters = prefilter(ByNumber(scores))
    first = None
    for seed in range(5):
        random.Random(seed).shuffle(listed)
        kept = await filters.select(request(0, candidates=tuple(listed), k=9))
        ids = [candidate.id for candidate in kept.candidates]
        assert ids == (first or ids)
        first = ids


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=20, unique_by=lambda pair: pair[0]))
def test_a_pool_holds_every_candidate_once_in_an_order_of_its_own(pairs):
    listed = [Candidate(id_, name) for id_, name in pairs]
    pool = Pool.of(listed)
    assert sorted(pool.candidates, key=listed.index) == listed
    assert Pool.of(listed[::-1]).candidates == pool.candidates


@pytest.mark.anyio
async def test_a_ranker_past_the_deadline_is_given_up():
    class Stuck(ByNumber):
        async def rank(self, text, pool, allowed=None):
            await asyncio.Event().wait()

    with pytest.raises(EngineTimeoutError, match="deadline passed"):
        await prefilter(Stuck()).select(request(30, deadline=time.monotonic() + 0.05))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 12), st.data())
def test_the_best_rows_are_those_of_a_full_sort(values, k, data):
    pinned = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=k, unique=True))
    order = sorted(range(len(values)), key=lambda row: (row not in pinned, -values[row], row))[:k]
    expected = sorted(order, key=lambda row: (-values[row], row))
    assert best(np.array(values, dtype=np.float32), k, pinned).tolist() == expected


@pytest.mark.anyio
async def test_the_same_candidates_make_one_pool_and_few_are_remembered(monkeypatch):
    ranker = ByNumber()
    filters = prefilter(ranker)
    for _ in range(2):
        await filters.select(request(30))
    assert ranker.asked[0][1] is ranker.asked[1][1]
    monkeypatch.setattr("serving.prefilter.selection.POOLED_CANDIDATES", 20)
    filters = prefilter(ranker)
    for _ in range(2):
        await filters.select(request(30))
    assert ranker.asked[2][1] is not ranker.asked[3][1]
