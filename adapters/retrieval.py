"""The prefilter as the evaluation uses it: whole rankings, warm before they are timed, with generated queries.

Knows prefilters, candidates and enrichment files. Does not know what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from adapters.answers import RANKING_DEPTH
from adapters.datasets import open_lines
from adapters.questions import Question
from prompts import Message
from serving.prefilter import Prefilter
from serving.types import RouteRequest


class _Enrichment(BaseModel):
    id: str
    queries: tuple[str, ...] = ()


def read_enrichment(path: Path) -> Mapping[str, tuple[str, ...]]:
    """Generated queries by candidate id.

    Raises:
        ValueError: the file cannot be read, or a line is wrong; the message names it.
    """
    queries: dict[str, tuple[str, ...]] = {}
    for place, line in open_lines(path):
        try:
            read = _Enrichment.model_validate_json(line)
        except ValidationError as error:
            raise ValueError(f"{place}: no line of an enrichment file: {error.errors()[0]['msg']}") from error
        queries[read.id] = (*queries.get(read.id, ()), *read.queries)
    return queries


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The ids of a pool, best first, at most RANKING_DEPTH, and the best one's score."""

    ids: tuple[str, ...]
    score: float


class Retriever:
    """Ranks pools with a prefilter."""

    def __init__(self, prefilter: Prefilter) -> None:
        self.prefilter = prefilter
        self._warm: set[str] = set()

    async def warm(self, question: Question) -> None:
        """Index the pool of a plain question, as a server has indexed its catalogue before a request comes."""
        if question.condition == "main" and question.pool.digest not in self._warm:
            self._warm.add(question.pool.digest)
            await self.rank(question.case.messages, question)

    async def rank(self, messages: Sequence[Message], question: Question) -> Retrieved:
        """The pool's ranking. A prefilter passes short lists as they are, so it is asked for all but one."""
        candidates = question.pool.candidates
        depth = min(RANKING_DEPTH, len(candidates) - 1)
        if depth < 1:
            return Retrieved(tuple(candidate.id for candidate in candidates), 0.0)
        kept = await self.prefilter.select(RouteRequest(tuple(messages), candidates, k=depth))
        ids = [candidate.id for candidate in kept.candidates]
        if len(candidates) <= RANKING_DEPTH:
            ids += question.pool.ids.difference(ids)  # the one that is left
        return Retrieved(tuple(ids), float(kept.scores[0]))

    async def behind(self, kept: Sequence[str], messages: Sequence[Message], question: Question) -> tuple[str, ...]:
        """`kept`, and behind it what else the prefilter found: recall beyond k of a model that reads k."""
        if question.condition != "main" or len(kept) == len(question.pool.candidates):
            return tuple(kept)
        retrieved = await self.rank(messages, question)
        more = (id_ for id_ in retrieved.ids if id_ not in kept)
        return (*kept, *more)[: max(RANKING_DEPTH, len(kept))]
