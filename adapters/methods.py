"""Who answers: the router and its variants, retrieval, and repeating the last tool.

Knows the serving room's own parts: a router's answer is `Router.route`'s, a retriever's the prefilter's. Does not
know what is right.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from adapters.answers import COVERAGE, Answer, Kind
from adapters.datasets import file_sha256, without_history
from adapters.questions import Question
from adapters.retrieval import Retriever
from prompts import Message
from prompts.question import query_position
from serving.assembly import build_engine, build_router
from serving.config import Config
from serving.engine.base import Engine
from serving.prefilter import make_embeddings, make_rankers
from serving.prefilter.base import Ranker
from serving.prefilter.selection import RankingPrefilter
from serving.router import Router
from serving.types import InvalidRequestError, RouteRequest

# A question over a whole catalogue may take a small machine minutes; an evaluation waits for it.
PATIENCE_S = 1800.0

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


class Retrieval:
    """A prefilter as a method."""

    kind: Kind = "retrieval"

    def __init__(self, name: str, retriever: Retriever, shown: Shown, settings: Any) -> None:
        self.name = name
        self.fingerprint = _digest(name, settings)
        self._retriever = retriever
        self._shown = shown

    async def answer(self, question: Question, key: str) -> Answer:
        """The ranking; its first is chosen."""
        await self._retriever.warm(question)
        started = time.perf_counter()
        retrieved = await self._retriever.rank(self._shown(question), question)
        ms = (time.perf_counter() - started) * 1e3
        return Answer(key, retrieved.ids, chosen=next(iter(retrieved.ids), None), score=retrieved.score, ms=ms)


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

    def __init__(self, name: str, router: Router, retriever: Retriever, shown: Shown, settings: Any) -> None:
        self.name = name
        self._retriever = retriever
        self.fingerprint = _digest(name, settings, router.template.fingerprint(), router.calibration.model_dump())
        self.router = router
        self._shown = shown

    async def answer(self, question: Question, key: str) -> Answer | None:
        """`Router.route`'s decision."""
        router, messages = self.router, tuple(self._shown(question))
        if router.max_k is not None and question.k > router.max_k:
            return None
        await self._retriever.warm(question)
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
        probabilities = tuple(ranked.probability for ranked in decision.ranking)
        chosen = decision.prediction_set or ()
        mass = sum(p for id_, p in zip(kept, probabilities, strict=True) if id_ in chosen)
        scale = router.calibration.scale(filtered=decision.prefilter.method != "none")
        return Answer(
            key,
            await self._retriever.behind(kept, messages, question),
            kept=len(kept),
            probabilities=probabilities,
            none_probability=decision.none_probability,
            chosen=decision.chosen.candidate.id if decision.chosen else None,
            score=1.0 - decision.none_probability,
            prediction_set=tuple(chosen),
            set_has_none=mass < scale.set_threshold(COVERAGE) - 1e-9,
            prompt_tokens=decision.prompt_tokens,
            ms=decision.timings_ms["total"],
        )


class Parts:
    """Routers and retrievers that methods share, made when first asked for. Nothing is loaded before `start`."""

    def __init__(
        self,
        config: Config,
        *,
        queries: Mapping[str, Sequence[str]] | None = None,
        make_chat: Callable[[str, Retriever], Method],
    ) -> None:
        self.config = config
        self._queries = queries or {}
        self._make_chat = make_chat
        self._retrievers: dict[str, Retriever] = {}
        self._routers: list[Router] = []

    @cached_property
    def router(self) -> Router:
        """The profile's router."""
        self._routers.append(build_router(self.config, self.own_retriever.prefilter))
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

    @cached_property
    def unblended(self) -> Router:
        """The profile's router without the prefilter's score in its posterior."""
        router = self.router
        return Router(
            template=router.template,
            engine=router.engine,
            prefilter=router.prefilter,
            base_model=router.base_model,
            adapter=router.adapter,
            calibration=router.calibration.model_copy(update={"blended": None}),
        )

    @property
    def own_retriever(self) -> Retriever:
        """The profile's own ranking method."""
        return self.retriever(self.config.prefilter.method)

    def retriever(self, method: str) -> Retriever:
        """The profile's prefilter with this ranking method."""
        if method not in self._retrievers:
            settings = self.config.prefilter.model_copy(update={"method": method})
            prefilter = RankingPrefilter(self._rankers, settings, queries=self._queries)
            self._retrievers[method] = Retriever(prefilter)
        return self._retrievers[method]

    @cached_property
    def _rankers(self) -> Mapping[str, Ranker]:
        """The methods of RETRIEVAL. They share an embedder and its vectors: a pool is embedded once."""
        settings = self.config.prefilter.model_copy(update={"method": "fused"})
        return make_rankers(settings, make_embeddings(settings))

    def settings(self) -> Any:
        """What an answer depends on beside the code: the profile and the adapter's weights."""
        folder = self.config.model.adapter
        weights = [file_sha256(path) for path in sorted(Path(folder).glob("*.safetensors"))] if folder else []
        engine = self.config.engine
        return [self.config.model.model_dump(mode="json"), self.retrieval(), engine.kind, engine.dtype, weights]

    def retrieval(self) -> Any:
        """What a ranking depends on beside the code."""
        return [self.config.prefilter.model_dump(mode="json"), dict(self._queries)]

    def method(self, name: str) -> Method:
        """A method by its name on the command line.

        Raises:
            ValueError: there is none of this name.
        """
        if name.startswith("openai:"):
            return self._make_chat(name, self.own_retriever)
        if name not in METHODS:
            raise ValueError(f"unknown method {name!r}; known are {', '.join(METHODS)} and openai:MODEL@URL")
        return METHODS[name](name, self)

    async def start(self) -> None:
        """Load every part that a method made so far needs."""
        # One after the other: transformers cannot load two models in two threads at once.
        for part in self._parts():
            await part.start()

    async def close(self) -> None:
        """Give back what was loaded."""
        for part in self._parts():
            await part.close()

    def _parts(self) -> Sequence[Ranker | Engine]:
        # The fused ranker is the others.
        methods = {"bm25", "dense"} if "fused" in self._retrievers else set(self._retrievers)
        return [*(self._rankers[method] for method in methods), *(router.engine for router in self._routers)]


def _router(
    shown: Shown = whole_conversation, which: Callable[[Parts], Router] = lambda parts: parts.router
) -> Callable[[str, Parts], Method]:
    return lambda name, parts: Routed(name, which(parts), parts.own_retriever, shown, parts.settings())


def _retrieval(method: str, shown: Shown) -> Callable[[str, Parts], Method]:
    return lambda name, parts: Retrieval(name, parts.retriever(method), shown, parts.retrieval())


METHODS: Mapping[str, Callable[[str, Parts], Method]] = {
    "router": _router(),
    "router-no-history": _router(no_history),
    "router-no-blend": _router(which=lambda parts: parts.unblended),
    "base": _router(which=lambda parts: parts.base),
    **{method: _retrieval(method, whole_conversation) for method in RETRIEVAL},
    **{f"{method}-query": _retrieval(method, query_only) for method in RETRIEVAL},
    "repeat-last": lambda name, parts: RepeatLast(),
}


def _digest(*parts: Any) -> str:
    return hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=12).hexdigest()
