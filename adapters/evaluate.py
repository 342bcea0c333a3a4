"""Runs an evaluation: every method answers every question of every set, then the answers are scored.

Knows the order of things and that an answer already stored is not asked again. What a question is, who answers and
what a score means stand in `questions`, `methods`, `scores` and `behaviour`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from adapters import behaviour, scores
from adapters.answers import Answer, AnswerStore, Kind, answer_key, code_digest
from adapters.methods import Method
from adapters.poisoning import poisoned, poisoning
from adapters.questions import EvaluationSet, Question, abstention_pair, shuffles, single, sweep
from adapters.scores import Asked

Progress = Callable[[str, int], Callable[[], None]]
"""Announces a stretch of work and its length; returns what is called after each piece."""


class Settings(BaseModel):
    """What is asked beside the plain question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: int = Field(default=10, ge=1)
    """Candidates that the prefilter keeps for the model."""
    seed: int = 0
    repeat: int = Field(default=0, ge=0)
    """Answers drawn at temperature 1 for each case."""
    abstention: bool = False
    """Ask each case with gold surely on offer, and without it."""
    shuffles: int = Field(default=0, ge=0)
    """Orders in which each kept list is shown again."""
    poison: int = Field(default=0, ge=0)
    """Attacks on each case: a wrong candidate whose description asks to be chosen."""
    sweep: tuple[int | None, ...] = ()
    """Lengths of lists of gold and random candidates; None: the whole pool."""
    concurrency: int = Field(default=1, ge=1)
    """Questions in flight. Engines that batch answer more at once; each then waits for the others."""


async def evaluate(
    sets: Sequence[EvaluationSet],
    methods: Sequence[Method],
    settings: Settings,
    store: AnswerStore,
    progress: Progress = lambda _title, _count: lambda: None,
) -> dict[str, Any]:
    """Ask, score, and return the report: lists of rows under the name of each experiment.

    The methods' parts must be started.

    Raises:
        LightRouterError: a question could not be answered.
    """
    asker = _Asker(settings, store, progress)
    asked = [await asker.everything(set_, method) for set_ in sets for method in methods]
    return {
        "results": [scores.result(one, settings.seed) for one in asked],
        "averages": scores.averages(asked, settings.seed),
        "comparisons": scores.comparisons(asked, settings.seed),
        "repeats": behaviour.repeats(asked, settings.repeat, settings.seed),
        "abstention": behaviour.abstention(asked, settings.seed),
        "calibration": behaviour.calibration(asked),
        "order": behaviour.order(asked),
        "poisoning": poisoning(asked, settings.seed),
        "sweep": behaviour.sweeps(asked),
    }


class _Asker:
    """Asks what is not stored yet, some questions at once."""

    def __init__(self, settings: Settings, store: AnswerStore, progress: Progress) -> None:
        self._settings = settings
        self._store = store
        self._progress = progress
        self._code = code_digest()

    async def everything(self, set_: EvaluationSet, method: Method) -> Asked:
        """Every question that makes sense for this method."""
        settings = self._settings
        main = [set_.main(case, settings.k) for case in set_.cases]
        pairs = await self._ask(set_.name, method, main)
        more = [q for question in main for q in _before(question, method.kind, settings)]
        if method.kind in {"router", "chat"}:
            for question, answer in pairs:
                more += shuffles(question, answer.ranking[: answer.kept], settings.shuffles, settings.seed)
        if method.kind != "rule":
            for question, answer in pairs:
                read = answer.ranking[: answer.kept or question.k]
                more += poisoned(question, read, settings.poison, settings.seed)
        pairs += await self._ask(set_.name, method, more)
        return Asked(set_, method.name, method.kind, tuple(pairs))

    async def _ask(self, title: str, method: Method, questions: Sequence[Question]) -> list[tuple[Question, Answer]]:
        """The questions that the method can be asked, with its answers."""
        free = asyncio.Semaphore(self._settings.concurrency)
        done = self._progress(f"{title} · {method.name}", len(questions))

        async def one(question: Question) -> Answer | None:
            key = answer_key(method.fingerprint, question, self._code)
            answer = self._store.get(key)
            if answer is None:
                async with free:
                    answer = await method.answer(question, key)
                if answer is not None:
                    self._store.add(answer)
            done()
            return answer

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(question)) for question in questions]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        answers = (task.result() for task in tasks)
        return [(question, answer) for question, answer in zip(questions, answers, strict=True) if answer is not None]


def _before(main: Question, kind: Kind, settings: Settings) -> Iterable[Question]:
    """The questions about a case that do not depend on the answer to the plain one."""
    if kind == "rule":
        return
    if settings.abstention:
        yield from abstention_pair(main)
        alone = single(main)
        if alone is not None and kind != "retrieval":
            yield alone
    for question in sweep(main, settings.sweep, settings.seed):
        if kind != "retrieval" or question.condition.startswith("sweep:"):
            yield question
    if kind == "chat":
        for number in range(settings.repeat):
            yield dataclasses.replace(main, condition=f"repeat:{number}", temperature=1.0)
