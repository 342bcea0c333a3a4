"""The one flow, with a real tiny model: what is decided, reported and refused in each readout."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from serving.assembly import build_router
from serving.config import Config
from serving.router import Router
from serving.types import Candidate, EngineTimeoutError, InvalidRequestError, Message, RouteRequest

pytestmark = pytest.mark.anyio

CANDIDATES = tuple(Candidate(f"id/{n}", f"tool_{n}", f"Does thing number {n}.") for n in range(12))
ASK = (Message("user", "please do thing number four"),)


@pytest.fixture
async def start(tiny_llama: Path, tiny_embedder: Path) -> AsyncIterator[Callable]:
    routers: list[Router] = []

    async def started(**model: object) -> Router:
        config = Config.model_validate(
            {
                "model": {"path": str(tiny_llama), **model},
                "engine": {"dtype": "float32", "threads": 1},
                "prefilter": {"embedder": str(tiny_embedder)},
            }
        )
        routers.append(build_router(config))
        await routers[-1].start()
        return routers[-1]

    yield started
    for router in routers:
        await router.close()


@pytest.mark.parametrize("readout", ["pointwise", "listwise", "generate"])
async def test_every_readout_gives_a_whole_posterior_over_the_kept(start: Callable, readout: str) -> None:
    router = await start(readout=readout)
    decision = await router.route(RouteRequest(ASK, CANDIDATES))
    assert decision.prefilter.considered == 12
    assert decision.prefilter.kept == len(decision.ranking) == 10
    probabilities = [ranked.probability for ranked in decision.ranking]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) + decision.none_probability == pytest.approx(1)
    if decision.chosen is None:
        assert decision.none_probability > probabilities[0]
    else:
        assert decision.chosen == decision.ranking[0]
    assert set(decision.timings_ms) == {"prefilter", "embedding", "prompt", "engine", "total"}
    assert decision.prompt_tokens > 100


@pytest.mark.parametrize("readout", ["pointwise", "listwise", "generate"])
async def test_none_can_be_forbidden(start: Callable, readout: str) -> None:
    router = await start(readout=readout)
    decision = await router.route(RouteRequest(ASK, CANDIDATES, allow_none=False, k=3))
    assert decision.chosen is not None
    assert decision.none_probability == 0
    assert sum(ranked.probability for ranked in decision.ranking) == pytest.approx(1)
    assert len(decision.ranking) == 3


async def test_pointwise_does_not_see_the_order(start: Callable) -> None:
    router = await start()
    one = await router.route(RouteRequest(ASK, CANDIDATES, cache_salt="a"))
    other = await router.route(RouteRequest(ASK, CANDIDATES[::-1], cache_salt="b"))
    assert [r.candidate.id for r in one.ranking] == [r.candidate.id for r in other.ranking]
    for mine, theirs in zip(one.ranking, other.ranking, strict=True):
        assert mine.probability == pytest.approx(theirs.probability, abs=1e-5)


async def test_a_writing_adapter_answers_with_its_choice_alone_where_no_ranking_is_asked(start: Callable) -> None:
    router = await start(readout="generate")
    whole = await router.route(RouteRequest(ASK, CANDIDATES[:5], allow_none=False))
    alone = await router.route(RouteRequest(ASK, CANDIDATES[:5], allow_none=False, ranking=False))
    assert len(whole.ranking) == 5
    assert alone.ranking == (alone.chosen,)
    assert alone.chosen is not None
    same = next(ranked for ranked in whole.ranking if ranked.candidate == alone.chosen.candidate)
    assert alone.chosen.probability == pytest.approx(same.probability, abs=1e-4)


async def test_coverage_gives_the_smallest_set(start: Callable) -> None:
    router = await start()
    decision = await router.route(RouteRequest(ASK, CANDIDATES, coverage=0.5, allow_none=False))
    mass = {ranked.candidate.id: ranked.probability for ranked in decision.ranking}
    assert decision.prediction_set is not None
    total = sum(mass[identity] for identity in decision.prediction_set)
    assert total >= 0.5 > total - mass[decision.prediction_set[-1]]


async def test_pinned_candidates_reach_the_model(start: Callable) -> None:
    router = await start()
    decision = await router.route(RouteRequest(ASK, CANDIDATES, k=1, pinned=frozenset({"id/11"})))
    assert [ranked.candidate.id for ranked in decision.ranking] == ["id/11"]


async def test_no_model_is_asked_where_nothing_is_open(start: Callable) -> None:
    router = await start()
    nothing = await router.route(RouteRequest(ASK, ()))
    assert (nothing.chosen, nothing.none_probability, nothing.prompt_tokens) == (None, 1.0, 0)
    only = await router.route(RouteRequest(ASK, CANDIDATES[:1], allow_none=False))
    assert only.chosen is not None
    assert (only.chosen.probability, only.prompt_tokens) == (1.0, 0)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (RouteRequest((), CANDIDATES), "no message"),
        (RouteRequest(ASK, (), allow_none=False), "nothing can be chosen"),
        (RouteRequest(ASK, CANDIDATES, k=0), "k is 0"),
        (RouteRequest(ASK, CANDIDATES, coverage=1.5), "coverage is 1.5"),
    ],
)
async def test_impossible_requests_are_named(start: Callable, request_: RouteRequest, message: str) -> None:
    router = await start()
    with pytest.raises(InvalidRequestError, match=message):
        await router.route(request_)


async def test_listwise_k_cannot_pass_the_labels(start: Callable) -> None:
    router = await start(readout="listwise")
    with pytest.raises(InvalidRequestError, match="from 1 to 52"):
        await router.route(RouteRequest(ASK, CANDIDATES, k=53))


async def test_a_deadline_that_passed_is_the_engines_timeout(start: Callable) -> None:
    router = await start()
    with pytest.raises(EngineTimeoutError):
        await router.route(RouteRequest(ASK, CANDIDATES[:4], deadline=0.0))


async def test_what_was_cut_is_in_the_answer(start: Callable) -> None:
    router = await start()
    decision = await router.route(RouteRequest((Message("user", "long " * 900),), CANDIDATES[:2]))
    assert [t.where for t in decision.truncated] == ["messages[0].content"]
