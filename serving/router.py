"""The one flow, on one page: request -> prefilter -> prompt -> engine -> posterior -> decision.

Every surface calls `Router.route`; none repeats a part of it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from prompts import Prompt, Template
from serving.canary import AdapterCheck
from serving.catalog.names import surface_names
from serving.engine.base import Engine
from serving.fallback import prefilters_best
from serving.posterior import Calibration, Scale, prediction_set
from serving.prefilter.base import Kept, Prefilter
from serving.readout import Reading, read
from serving.tracing import Stages, tokens
from serving.types import (
    Candidate,
    Decision,
    EngineUnavailableError,
    InvalidRequestError,
    Ranked,
    RouteRequest,
)

# Messages and candidates that are worded in the event loop: a usual question takes less time than a thread to wake; so
# many long texts, none seen before, take 30 ms.
_AT_ONCE = 32


class Router:
    """Answers routing questions with one model.

    Attributes:
        template: how a question is worded; it belongs to the adapter.
        base_model: the base model's name.
        adapter: the adapter's name, or None where the bare model decides.
        engine: the model's engine.
        prefilter: what bounds the candidates before the model reads them.
        calibration: how log-scores become probabilities; it belongs to the adapter.

    With `fallback` the prefilter decides while the engine is down.
    """

    def __init__(
        self,
        *,
        template: Template,
        engine: Engine,
        prefilter: Prefilter,
        base_model: str,
        adapter: str | None = None,
        check: AdapterCheck | None = None,
        calibration: Calibration | None = None,
        timeout_s: float = 30.0,
        fallback: bool = False,
    ) -> None:
        self.template = template
        self.engine = engine
        self.base_model = base_model
        self.adapter = adapter
        self.prefilter = prefilter
        self.calibration = calibration or Calibration()
        self._check_adapter = check
        self._timeout_s = timeout_s
        self._fallback = fallback

    @property
    def model(self) -> str:
        """The name that answers carry."""
        return self.adapter or self.base_model

    @property
    def max_k(self) -> int | None:
        """The most candidates that one question can hold; None where there is no limit."""
        return self.template.max_candidates

    async def start(self) -> None:
        """Load and warm up everything a decision needs.

        Raises:
            ValueError: the adapter does not work; the message says how that shows.
            EngineUnavailableError: a model cannot be reached or loaded.
        """
        # One after the other: transformers cannot load two models in two threads at once.
        if self._check_adapter is None:
            await self.engine.start()
        else:
            await self._check_adapter.start(self.engine)
        await self.prefilter.start()

    async def close(self) -> None:
        """Stop work and give back what is held."""
        await asyncio.gather(self.engine.close(), self.prefilter.close())

    async def route(self, request: RouteRequest) -> Decision:
        """Decide which of the request's candidates acts next, or none.

        Raises:
            InvalidRequestError: no message, an impossible `k`, or more than the prompt can hold.
            EngineError: the engine is too slow or wrong; or down, where no fallback is allowed.
        """
        started = time.perf_counter()
        self._check(request)
        if request.deadline is None:
            request = replace(request, deadline=time.monotonic() + self._timeout_s)
        stages = Stages()
        with stages.stage("prefilter"):
            kept = await self.prefilter.select(request)
        candidates = list(kept.candidates)
        if not candidates or (len(candidates) == 1 and not request.allow_none):
            return self._without_question(request, kept, started)
        with stages.stage("prompt"):
            if len(request.messages) + len(candidates) <= _AT_ONCE:
                prompt = self._ask(request, candidates)
            else:
                prompt = await asyncio.to_thread(self._ask, request, candidates)
        try:
            with stages.engine(self.engine.model) as span:
                reading = await read(
                    self.engine,
                    self.template,
                    prompt,
                    salt=request.cache_salt,
                    deadline=request.deadline,
                    whole=request.ranking or request.coverage is not None,
                )
                span.set_attributes(tokens(reading.prompt_tokens, reading.cached_tokens))
        except EngineUnavailableError:
            if not self._fallback:
                raise
            return await prefilters_best(self.prefilter, request, kept, started)
        decision = self._decide(request, kept, candidates, prompt, reading)
        timings = {
            "prefilter": stages.ms["prefilter"] - kept.embedding_ms,
            "embedding": kept.embedding_ms,
            "prompt": stages.ms["prompt"],
            "engine": stages.ms["engine"],
            "total": (time.perf_counter() - started) * 1e3,
        }
        return replace(decision, timings_ms=timings)

    def _check(self, request: RouteRequest) -> None:
        if not request.messages:
            raise InvalidRequestError("there is no message; send at least the query", "messages")
        if request.k is not None and not 1 <= request.k <= (self.max_k or request.k):
            raise InvalidRequestError(f"k is {request.k}; it must be from 1 to {self.max_k or 'any number'}", "k")
        if request.coverage is not None and not 0 < request.coverage < 1:
            raise InvalidRequestError(f"coverage is {request.coverage}; it must lie between 0 and 1", "coverage")
        if not request.candidates and request.catalog is None and not request.allow_none:
            raise InvalidRequestError("there is no candidate, and none is not allowed: nothing can be chosen")

    def _ask(self, request: RouteRequest, candidates: list[Candidate]) -> Prompt:
        names = surface_names(candidates) if self.template.readout == "generate" else None
        try:
            return self.template.render(
                request.messages, candidates, allow_none=request.allow_none, names=names, salt=request.cache_salt
            )
        except ValueError as error:
            raise InvalidRequestError(str(error), "candidates") from error

    def _decide(
        self, request: RouteRequest, kept: Kept, candidates: list[Candidate], prompt: Prompt, reading: Reading
    ) -> Decision:
        scale = self.calibration.scale(filtered=kept.filtered)
        posterior = scale.probabilities(reading.scores, len(candidates), kept.scores)
        order = np.argsort(-posterior, kind="stable")
        ranked = {int(i): Ranked(candidates[i], float(posterior[i])) for i in order if i < len(candidates)}
        best = int(order[0]) if reading.chosen is None else reading.chosen
        return Decision(
            chosen=ranked.get(best),
            none_probability=float(posterior[-1]) if request.allow_none else 0.0,
            ranking=tuple(ranked.values()) if reading.chosen is None else tuple(r for r in [ranked.get(best)] if r),
            prediction_set=_set(request, candidates, posterior, scale),
            prefilter=kept.report,
            truncated=tuple(prompt.truncated),
            prompt_tokens=reading.prompt_tokens,
            cached_tokens=reading.cached_tokens,
            model=self.model,
        )

    def _without_question(self, request: RouteRequest, kept: Kept, started: float) -> Decision:
        """No candidates: none. One candidate that must be taken: that one. No model is asked."""
        ranking = tuple(Ranked(candidate, 1.0) for candidate in kept.candidates)
        return Decision(
            chosen=ranking[0] if ranking else None,
            none_probability=0.0 if ranking else 1.0,
            ranking=ranking,
            prediction_set=None if request.coverage is None else tuple(c.id for c in kept.candidates),
            prefilter=kept.report,
            truncated=(),
            prompt_tokens=0,
            cached_tokens=0,
            model=self.model,
            timings_ms={"total": (time.perf_counter() - started) * 1e3},
        )


def _set(
    request: RouteRequest, candidates: list[Candidate], posterior: NDArray[np.float64], scale: Scale
) -> tuple[str, ...] | None:
    """Ids of the prediction set, where one is asked for."""
    if request.coverage is None:
        return None
    positions = prediction_set(posterior, scale.set_threshold(request.coverage))
    return tuple(candidates[position].id for position in positions if position < len(candidates))
