"""Degraded mode: the engine is down, and the prefilter answers in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prompts import Template
from serving.prefilter.base import Kept
from serving.router import Router
from serving.types import (
    Candidate,
    Decision,
    EngineTimeoutError,
    EngineUnavailableError,
    Message,
    PrefilterReport,
    RouteRequest,
)

pytestmark = pytest.mark.anyio

CANDIDATES = tuple(Candidate(name, name, f"Does {name}") for name in ("a", "b", "c", "d"))
ASKED = RouteRequest((Message("user", "do b"),), CANDIDATES)
"""Three of these candidates are found, with the scores below; d is not."""
SCORES = {"a": 1.0, "b": 3.0, "c": -0.5}


class Prefilter:
    """Filters where more than `k` are sent."""

    catalogs = None
    methods = ("words",)

    def __init__(self, k: int) -> None:
        self._k = k

    async def select(self, request: RouteRequest) -> Kept:
        if len(request.candidates) <= self._k:
            number = len(request.candidates)
            return Kept(request.candidates, [0.0] * number, PrefilterReport("none", number, number))
        return await self.search(request)

    async def search(self, request: RouteRequest) -> Kept:
        assert not request.pinned, "what is pinned would not be found"
        found = [candidate for candidate in request.candidates if candidate.id in SCORES]
        scores = [SCORES[candidate.id] for candidate in found]
        return Kept(tuple(found), scores, PrefilterReport("words", len(request.candidates), len(found)))


class Engine:
    model = "m"

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def score(self, _: Any) -> Any:
        raise self._error


@pytest.fixture
def template(qwen3_tokenizer: Any) -> Template:
    from prompts import PromptTokenizer

    return Template(PromptTokenizer(qwen3_tokenizer), chat="qwen3")


async def decide(
    template: Template, request: RouteRequest, k: int, error: Exception | None = None, fallback: bool = True
) -> Decision:
    engine: Any = Engine(error or EngineUnavailableError("down"))
    prefilter: Any = Prefilter(k)
    router = Router(template=template, engine=engine, prefilter=prefilter, base_model="m", fallback=fallback)
    return await router.route(request)


@pytest.mark.parametrize("k", [2, 10])  # ranked already, or not
async def test_the_prefilters_best_is_chosen_and_marked(template: Template, k: int) -> None:
    decision = await decide(template, ASKED, k)
    assert decision.degraded
    assert decision.model == "prefilter/words"
    assert decision.chosen is decision.ranking[0]
    assert [(ranked.candidate.id, ranked.probability) for ranked in decision.ranking] == [("b", 0.75), ("a", 0.25)]
    assert decision.none_probability == 0.0
    assert decision.prompt_tokens == 0
    assert decision.prediction_set is None


async def test_what_is_pinned_is_ranked_like_the_rest(template: Template) -> None:
    decision = await decide(template, replace(ASKED, pinned=frozenset({"a"}), coverage=0.9), k=10)
    assert decision.prediction_set == ("b", "a")


@pytest.mark.parametrize(("allow_none", "chosen"), [(True, None), (False, "d")])
async def test_where_nothing_is_found_none_is_the_answer(
    template: Template, allow_none: bool, chosen: str | None
) -> None:
    candidates = (CANDIDATES[3], Candidate("e", "e", "Does e"))
    decision = await decide(template, replace(ASKED, candidates=candidates, allow_none=allow_none), k=10)
    assert (decision.chosen and decision.chosen.candidate.id) == chosen
    assert decision.none_probability == (1.0 if allow_none else 0.0)
    assert np.isclose(decision.none_probability + sum(ranked.probability for ranked in decision.ranking), 1.0)


async def test_a_slow_engine_and_a_profile_without_fallback_end_in_their_errors(template: Template) -> None:
    with pytest.raises(EngineTimeoutError):
        await decide(template, ASKED, 10, EngineTimeoutError("slow"))
    with pytest.raises(EngineUnavailableError):
        await decide(template, ASKED, 10, fallback=False)
