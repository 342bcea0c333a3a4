"""Simulated upstreams that replay what was recorded, and the ways of discovery that are compared.

Knows a task's recorded calls, routers and retrievers. Does not know which model works on the task, or what success is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from adapters.agent_tasks import Task
from adapters.methods import PATIENCE_S, RETRIEVAL, Parts
from adapters.questions import Pool, Question
from adapters.retrieval import Retriever
from prompts import Candidate, Message
from serving.agent.arguments import Schemas, shown_schema
from serving.agent.description import summary
from serving.agent.loop import Discovery, Observation
from serving.catalog.names import Names
from serving.router import Router
from serving.types import RouteRequest

ALL = "all"
METHODS = ("router", *RETRIEVAL, *(f"{name}-query" for name in RETRIEVAL), ALL)


class Finder(Protocol):
    """A way to find what may act next. `settings` change with what it would find."""

    settings: Any

    async def find(self, messages: Sequence[Message], task: Task) -> Discovery:
        """Out of the task's pool."""
        ...


class RouterFinder:
    """`Router.route`, with `k` candidates that its prefilter keeps."""

    def __init__(self, router: Router, k: int, settings: Any) -> None:
        self.settings = [k, settings, router.calibration.model_dump()]
        self._router = router
        self._k = k

    async def find(self, messages: Sequence[Message], task: Task) -> Discovery:
        """The decision and what else the model read."""
        request = RouteRequest(tuple(messages), task.pool.candidates, k=self._k, deadline=time.monotonic() + PATIENCE_S)
        decision = await self._router.route(request)
        chosen = decision.chosen.candidate if decision.chosen else None
        others = [ranked.candidate for ranked in decision.ranking if ranked.candidate != chosen]
        return Discovery(chosen, others, decision.prompt_tokens)


class RetrievalFinder:
    """A prefilter's best `k`, whose first counts as chosen: as many as a router would read.

    `query_only`: of what is needed, without what happened.
    """

    def __init__(self, retriever: Retriever, query_only: bool, k: int, settings: Any) -> None:
        self.settings = [query_only, k, settings]
        self._k = k
        self._retriever = retriever
        self._query_only = query_only

    async def find(self, messages: Sequence[Message], task: Task) -> Discovery:
        """The ranking."""
        shown = [_need(messages)] if self._query_only else messages
        retrieved = await self._retriever.rank(shown, Question(task.case, task.pool, "main", 1))
        by_id = {candidate.id: candidate for candidate in task.pool.candidates}
        first, *others = [by_id[id_] for id_ in retrieved.ids[: self._k]]
        return Discovery(first, others)


def _need(messages: Sequence[Message]) -> Message:
    """What was announced, or else the user's latest words."""
    return next(message for message in reversed(messages) if message.role != "tool" and not message.tool_calls)


def finder(method: str, parts: Parts, k: int) -> Finder | None:
    """The way of a method of METHODS; None for all candidates in the context.

    Raises:
        ValueError: there is no such method.
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r} for an agent; known are {', '.join(METHODS)}")
    if method == ALL:
        return None
    if method == "router":
        return RouterFinder(parts.router, k, parts.settings())
    name = method.removesuffix("-query")
    return RetrievalFinder(parts.retriever(name), name != method, k, [name, parts.retrieval()])


@lru_cache(maxsize=64)
def names(pool: Pool) -> Names:
    """What a pool's candidates are called as functions."""
    return Names(pool.candidates)


class Replay:
    """One task's upstreams (`serving.agent.loop.Toolbox`).

    A call gives the result that was recorded for it: the one with these arguments, or else the candidate's next that
    was not given yet, or its last. What the trajectory never called has nothing to give.
    """

    def __init__(self, task: Task, finder: Finder | None, schemas: Schemas) -> None:
        self._task = task
        self._finder = finder
        self._schemas = schemas
        self._left = list(range(len(task.calls)))

    async def behind(self) -> str:
        """The pool's servers."""
        return summary(self._task.pool.candidates)

    def name(self, candidate: Candidate) -> str:
        """Its name among all of the pool."""
        return names(self._task.pool).surface[candidate.id]

    async def discover(self, messages: Sequence[Message]) -> Discovery:
        """What the method finds."""
        if self._finder is None:
            raise RuntimeError("with all candidates in the context nothing is discovered")
        return await self._finder.find(messages, self._task)

    async def invoke(self, candidate: Candidate, arguments: dict[str, Any]) -> Observation:
        """What was recorded. Raises InvalidRequestError where the arguments do not fit the candidate's schema."""
        calls = self._task.calls
        own = [at for at, call in enumerate(calls) if call.candidate == candidate.id]
        same = [at for at in own if _object(calls[at].arguments) == arguments]
        if not same:  # what was recorded has run as it was
            self._schemas.fitting(arguments, shown_schema(candidate.input_schema, candidate.type))
        if not own:
            return Observation(f"{candidate.name} has found nothing and changed nothing", failed=True)
        at = next((at for at in (*same, *own) if at in self._left), (same or own)[-1])
        if at in self._left:
            self._left.remove(at)
        return Observation(calls[at].result)


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {} if not text.strip() else None
