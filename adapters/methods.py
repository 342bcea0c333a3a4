"""Who answers: the router and its variants, retrieval, and repeating the last tool.

Knows the serving room's own parts: a router's answer is `Router.route`'s, a retriever's the prefilter's. Does not
know what is right.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from adapters.answers import COVERAGE, RANKING_DEPTH, Answer
from adapters.datasets import file_sha256, without_history
from adapters.questions import Question
from prompts import Message
from prompts.question import query_position
from serving.assembly import build_engine, build_router
from serving.config import Config
from serving.prefilter.base import Prefilter, make_prefilter
from serving.router import Router
from serving.types import InvalidRequestError, RouteRequest

# A question over a whole catalogue may take a small machine minutes; an evaluation waits for it.
PATIENCE_S = 1800.0

Kind = Literal["router", "chat", "retrieval", "rule"]
RETRIEVAL = ("bm25", "dense", "fused")
Shown = Callable[[Question], Sequence[Message]]
"""What of the conversation a method sees."""


class Method(Protocol):
    """Answers questions. `kind` says which experiments make sense; `fingerprint` changes with what it would answer."""

    name: str
    kind: Kind
    fingerprint: str

    async def answer(self, question: Question, key: str) -> Answer | None:
        """One answer; None where the method cannot be asked this."""
        ...


@dataclass(frozen=True, slots=True)
class Retrieved:
    """A retriever's ranking of a pool: positions, best first, at most RANKING_DEPTH, and the best one's score."""

    positions: tuple[int, ...]
    score: float


def whole_conversation(question: Question) -> tuple[Message, ...]:
    """Every message."""
    return question.case.messages


def no_history(question: Question) -> tuple[Message, ...]:
    """Query and observation."""
    return without_history(question.case).messages


def query_only(question: Question) -> tuple[Message, ...]:
    """The latest user message alone."""
    position = query_position(question.case.messages)
    return (question.case.messages[-1 if position is None else position],)


async def retrieve(prefilter: Prefilter, messages: Sequence[Message], question: Question) -> Retrieved:
    """Rank the pool with a prefilter, whatever its length: the prefilter passes short lists on as they are, so it is
    asked for one candidate less than there are."""
    candidates = question.pool.candidates
    depth = min(RANKING_DEPTH, len(candidates) - 1)
    if depth < 1:
        return Retrieved(tuple(range(len(candidates))), 0.0)
    kept = await prefilter.select(RouteRequest(tuple(messages), candidates, k=depth))
    positions = tuple(kept.positions)
    if len(candidates) <= RANKING_DEPTH:
        positions += tuple(set(range(len(candidates))) - set(positions))
    return Retrieved(positions, float(kept.scores[0]))


class Retrieval:
    """A prefilter as a method."""

    kind: Kind = "retrieval"

    def __init__(self, name: str, prefilter: Prefilter, shown: Shown, settings: Any) -> None:
        self.name = name
        self.fingerprint = _digest(name, settings)
        self._prefilter = prefilter
        self._shown = shown

    async def answer(self, question: Question, key: str) -> Answer:
        """The ranking; its first is chosen."""
        started = time.perf_counter()
        retrieved = await retrieve(self._prefilter, self._shown(question), question)
        ms = (time.perf_counter() - started) * 1e3
        ranking = tuple(question.pool.candidates[position].id for position in retrieved.positions)
        return Answer(key, ranking, chosen=ranking[0] if ranking else None, score=retrieved.score, ms=ms)


class RepeatLast:
    """Chooses the candidate that was called last. Where it does well, the cases say little about a router."""

    name = "repeat-last"
    kind: Kind = "rule"
    fingerprint = "repeat-last"

    async def answer(self, question: Question, key: str) -> Answer:
        """The last call's candidate, or an empty ranking."""
        calls = [call.name for message in question.case.messages for call in message.tool_calls]
        last = next((c.id for c in question.pool.candidates if calls and calls[-1] in {c.id, c.name}), None)
        return Answer(key, (last,) if last else (), chosen=last)


class Routed:
    """A router as a method. Behind what it kept stand the rest of its prefilter's ranking, so that recall beyond k
    has a meaning."""

    kind: Kind = "router"

    def __init__(self, name: str, router: Router, shown: Shown, settings: Any) -> None:
        self.name = name
        self.fingerprint = _digest(name, settings, router.template.fingerprint(), router.calibration.model_dump())
        self._router = router
        self._shown = shown

    async def answer(self, question: Question, key: str) -> Answer | None:
        """`Router.route`'s decision."""
        router, messages = self._router, tuple(self._shown(question))
        if router.max_k is not None and question.k > router.max_k:
            return None
        request = RouteRequest(
            messages,
            question.pool.candidates,
            k=question.k,
            coverage=COVERAGE,
            pinned=question.pinned,
            deadline=time.monotonic() + PATIENCE_S,
        )
        try:
            decision = await router.route(request)
        except InvalidRequestError:
            if not question.condition.startswith("sweep"):
                raise
            return None  # more than one prompt can hold
        kept = tuple(ranked.candidate.id for ranked in decision.ranking)
        ranking = kept
        if question.condition == "main" and len(kept) < len(question.pool.candidates):
            retrieved = await retrieve(router.prefilter, messages, question)
            rest = (question.pool.candidates[position].id for position in retrieved.positions)
            ranking = (*kept, *(id_ for id_ in rest if id_ not in kept))
        probabilities = tuple(ranked.probability for ranked in decision.ranking)
        chosen = decision.prediction_set or ()
        mass = sum(p for id_, p in zip(kept, probabilities, strict=True) if id_ in chosen)
        return Answer(
            key,
            ranking[: max(RANKING_DEPTH, len(kept))],
            kept=len(kept),
            probabilities=probabilities,
            none_probability=decision.none_probability,
            chosen=decision.chosen.candidate.id if decision.chosen else None,
            score=1.0 - decision.none_probability,
            prediction_set=tuple(chosen),
            set_has_none=mass < router.calibration.set_threshold(COVERAGE) - 1e-9,
            prompt_tokens=decision.prompt_tokens,
            ms=decision.timings_ms["total"],
        )


class Parts:
    """Routers and prefilters that methods share, made when first asked for. Nothing is loaded before `start`."""

    def __init__(self, config: Config, make_chat: Callable[[str, Prefilter], Method]) -> None:
        self.config = config
        self._prefilters: dict[str, Prefilter] = {}
        self._routers: list[Router] = []
        self._make_chat = make_chat

    @cached_property
    def router(self) -> Router:
        """The profile's router."""
        self._routers.append(build_router(self.config, self.prefilter(self.config.prefilter.method)))
        return self._routers[-1]

    @cached_property
    def base(self) -> Router:
        """The bare base model, asked and read as the router is."""
        model = self.config.model
        if model.adapter is None:
            return self.router
        bare = self.config.model_copy(update={"model": model.model_copy(update={"adapter": None})})
        template, prefilter = self.router.template, self.router.prefilter
        self._routers.append(
            Router(template=template, engine=build_engine(bare), prefilter=prefilter, base_model=model.name)
        )
        return self._routers[-1]

    def prefilter(self, method: str) -> Prefilter:
        """The profile's prefilter with another ranking method."""
        if method not in self._prefilters:
            self._prefilters[method] = make_prefilter(self.config.prefilter.model_copy(update={"method": method}))
        return self._prefilters[method]

    def settings(self) -> Any:
        """What an answer depends on beside the code: the profile and the adapter's weights."""
        folder = self.config.model.adapter
        weights = [file_sha256(path) for path in sorted(Path(folder).glob("*.safetensors"))] if folder else []
        engine = self.config.engine
        return [self.config.model.model_dump(mode="json"), self.retrieval(), engine.kind, engine.dtype, weights]

    def retrieval(self) -> Any:
        """What a ranking depends on beside the code."""
        return self.config.prefilter.model_dump(mode="json")

    def method(self, name: str) -> Method:
        """A method by its name on the command line.

        Raises:
            ValueError: there is none of this name.
        """
        if name.startswith("openai:"):
            return self._make_chat(name, self.prefilter(self.config.prefilter.method))
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}; known are {', '.join(METHODS)} and openai:MODEL@URL")
        return METHODS[name](name, self)

    async def start(self) -> None:
        """Load every part that a method made so far needs."""
        await asyncio.gather(*(prefilter.start() for prefilter in self._prefilters.values()))
        await asyncio.gather(*(router.engine.start() for router in self._routers))

    async def close(self) -> None:
        """Stop the engines."""
        for router in self._routers:
            await router.close()


def _router(shown: Shown, bare: bool = False) -> Callable[[str, Parts], Method]:
    return lambda name, parts: Routed(name, parts.base if bare else parts.router, shown, parts.settings())


def _retrieval(method: str, shown: Shown) -> Callable[[str, Parts], Method]:
    return lambda name, parts: Retrieval(name, parts.prefilter(method), shown, parts.retrieval())


METHODS: Mapping[str, Callable[[str, Parts], Method]] = {
    "router": _router(whole_conversation),
    "router-no-history": _router(no_history),
    "base": _router(whole_conversation, bare=True),
    **{method: _retrieval(method, whole_conversation) for method in RETRIEVAL},
    **{f"{method}-query": _retrieval(method, query_only) for method in RETRIEVAL},
    "repeat-last": lambda name, parts: RepeatLast(),
}


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=12).hexdigest()
