"""The policy: what is searched for, what always passes, when nothing is filtered."""

import asyncio
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompts import Candidate, Message, ToolCall
from serving.config import PrefilterConfig
from serving.prefilter.base import (
    EARLIER_CHARACTERS,
    EARLIER_WEIGHT,
    OBSERVATION_CHARACTERS,
    QUERY_CHARACTERS,
    Pool,
    Ranking,
    RankingPrefilter,
    SearchText,
    search_text,
)
from serving.types import EngineTimeoutError, InvalidRequestError, RouteRequest

CONVERSATION = (
    Message("system", "You are the assistant of a travel agency."),
    Message("user", "hello"),
    Message("assistant", "What can I do?"),
    Message("user", "find me a flight to Oslo"),
    Message("assistant", "Looking.", (ToolCall("flights.search", '{"to": "OSL"}'),)),
    Message("tool", "SK 1478, 129 euros", name="flights.search"),
)


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

    async def rank(self, text, pool):
        self.asked.append((text, pool))
        return Ranking(np.array([self.scores(c.name.split("_")[1]) for c in pool.candidates]), embedding_ms=2.5)


def request(count: int, **changes) -> RouteRequest:
    return RouteRequest(CONVERSATION, changes.pop("candidates", candidates(count)), **changes)


def prefilter(ranker=None, **config) -> RankingPrefilter:
    return RankingPrefilter(ranker or ByNumber(), PrefilterConfig(**config))


# What is searched for


def test_query_then_observation_then_history_newest_first():
    assert search_text(CONVERSATION, 2).parts == (
        ("find me a flight to Oslo", 1.0),
        ("flights.search SK 1478, 129 euros", 1.0),
        ("flights.search Looking.", EARLIER_WEIGHT),
        ("What can I do?", EARLIER_WEIGHT),
    )


def test_the_text_of_all_parts_begins_with_the_query():
    assert search_text(CONVERSATION, 9).text.splitlines() == [
        "find me a flight to Oslo",
        "flights.search SK 1478, 129 euros",
        "flights.search Looking.",
        "What can I do?",
        "hello",
    ]


def test_without_history_query_and_observation_stay():
    assert [text for text, _ in search_text(CONVERSATION, 0).parts] == [
        "find me a flight to Oslo",
        "flights.search SK 1478, 129 euros",
    ]


def test_a_query_that_is_the_last_message_is_searched_for_once():
    assert search_text(CONVERSATION[:4], 1).parts == (
        ("find me a flight to Oslo", 1.0),
        ("What can I do?", EARLIER_WEIGHT),
    )


def test_without_a_user_the_observation_is_searched_for():
    assert search_text((Message("system", "Summarise."), Message("tool", "12 rows")), 4).parts == (("12 rows", 1.0),)
    assert search_text((Message("system", "Summarise."),), 4).parts == (("Summarise.", 1.0),)


def test_a_call_without_content_is_searched_for_by_its_name():
    messages = (Message("user", "go"), Message("assistant", "", (ToolCall("a.b", "{}"), ToolCall("c"))))
    assert search_text(messages, 4).text == "go\na.b c"


def test_silence_is_no_part():
    assert search_text((Message("user", " \n"), Message("assistant", "")), 4).parts == ()
    assert search_text((Message("user", ""),), 4).text == ""


def test_long_messages_are_searched_for_by_both_ends():
    long = "start " + "x" * 100_000 + " end"
    messages = (
        Message("assistant", long, tuple(ToolCall("n" * 10_000) for _ in range(500))),
        Message("user", long),
        Message("tool", long),
    )
    parts = [text for text, _ in search_text(messages, 4).parts]
    assert all("start" in part and part.endswith("end") for part in parts)
    marks = len(" ... ")
    assert len(parts[0]) <= QUERY_CHARACTERS + marks
    assert len(parts[1]) <= OBSERVATION_CHARACTERS + marks
    assert len(parts[2]) <= EARLIER_CHARACTERS + marks + 8 * 65


# Which candidates pass


@pytest.mark.anyio
@pytest.mark.parametrize(("count", "k"), [(0, None), (1, None), (10, None), (3, 3), (12, 20)])
async def test_a_list_of_at_most_k_passes_whole_in_its_own_order(count, k):
    ranker = ByNumber()
    kept = await prefilter(ranker).select(request(count, k=k))
    assert list(kept.positions) == list(range(count))
    assert list(kept.scores) == [0.0] * count
    assert (kept.report.method, kept.report.considered, kept.report.kept) == ("none", count, count)
    assert ranker.asked == []


@pytest.mark.anyio
@pytest.mark.parametrize(("k", "passing"), [(None, 10), (3, 3), (1, 1)])
async def test_the_best_pass_best_first(k, passing):
    kept = await prefilter().select(request(30, k=k))
    assert list(kept.positions) == list(range(29, 29 - passing, -1))
    assert list(kept.scores) == [float(p) for p in kept.positions]
    assert (kept.report.method, kept.report.considered, kept.report.kept) == ("by-number", 30, passing)
    assert kept.embedding_ms == 2.5


@pytest.mark.anyio
async def test_the_profile_says_how_many_and_how_much_history():
    ranker = ByNumber()
    kept = await prefilter(ranker, k=4, history_messages=1).select(request(11))
    assert len(kept.positions) == 4
    assert ranker.asked[0][0] == search_text(CONVERSATION, 1)


@pytest.mark.anyio
async def test_pinned_candidates_pass_within_k_and_at_their_place():
    kept = await prefilter().select(request(30, k=4, pinned=frozenset({"id-0", "id-28", "not-here"})))
    assert list(kept.positions) == [29, 28, 27, 0]


@pytest.mark.anyio
async def test_as_many_pinned_as_may_pass_leave_no_room():
    kept = await prefilter().select(request(30, k=2, pinned=frozenset({"id-0", "id-1"})))
    assert list(kept.positions) == [1, 0]


@pytest.mark.anyio
async def test_more_pinned_than_may_pass_is_the_callers_mistake():
    pinned = frozenset({"id-0", "id-1", "id-2"})
    with pytest.raises(InvalidRequestError, match=r"3 candidates are pinned, but at most k = 2"):
        await prefilter().select(request(30, k=2, pinned=pinned))
    assert len((await prefilter().select(request(3, k=3, pinned=pinned))).positions) == 3


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
        ids = [listed[position].id for position in kept.positions]
        assert ids == (first or ids)
        first = ids


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=20, unique_by=lambda pair: pair[0]))
def test_a_pool_holds_every_candidate_once_and_remembers_where(pairs):
    listed = [Candidate(id_, name) for id_, name in pairs]
    pool = Pool.of(listed)
    assert [listed[position] for position in pool.positions] == list(pool.candidates)
    assert sorted(pool.positions) == list(range(len(listed)))
    assert Pool.of(listed[::-1]).candidates == pool.candidates


@pytest.mark.anyio
async def test_a_ranker_past_the_deadline_is_given_up():
    class Stuck(ByNumber):
        async def rank(self, text, pool):
            await asyncio.Event().wait()

    with pytest.raises(EngineTimeoutError, match="30 candidates"):
        await prefilter(Stuck()).select(request(30, deadline=time.monotonic() + 0.05))
