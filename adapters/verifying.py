"""Verifiers of generated queries: each picks, among candidates, the one that a query was written for.

Knows candidates and queries. Does not know what becomes of a query that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import numpy as np

from prompts import Candidate, Message
from prompts.enrichment import choose_source
from serving.llm import LLM
from serving.prefilter.base import Ranker, search_text
from serving.prefilter.pool import Pool


class Verifier(Protocol):
    """Picks a query's candidate."""

    @property
    def name(self) -> str:
        """Who it is, as tables show it."""
        ...

    async def pick(self, query: str, offered: Sequence[Candidate]) -> Candidate | None:
        """The one of `offered` that the query needs; None where none fits. Raises EngineError."""
        ...


class SearchVerifier:
    """A search over what is offered: its first. Cheap, but it refuses the queries that a search would not find, which
    are those that an index gains most from."""

    def __init__(self, ranker: Ranker) -> None:
        self.name = f"search:{ranker.name}"
        self._ranker = ranker

    async def pick(self, query: str, offered: Sequence[Candidate]) -> Candidate | None:
        """See `Verifier.pick`."""
        pool = Pool.of(offered)
        ranking = await self._ranker.rank(search_text((Message("user", query),), 0), pool)
        best = int(np.argmax(ranking.scores))
        return pool.candidates[best] if ranking.scores[best] > 0 else None


class LLMVerifier:
    """A chat model, asked as enrichment asks it."""

    def __init__(self, llm: LLM) -> None:
        self.name = f"openai:{llm.model}"
        self._llm = llm

    async def pick(self, query: str, offered: Sequence[Candidate]) -> Candidate | None:
        """See `Verifier.pick`."""
        question = choose_source(query, offered)
        choice: int = (await self._llm.ask(question.messages, question.schema))["choice"]
        return offered[choice - 1] if choice else None


async def verified(
    verifier: Verifier,
    queries: Mapping[str, Sequence[str]],
    candidates: Mapping[str, Candidate],
    others: Callable[[Candidate, int], Sequence[Candidate]],
    number: int,
    done: Callable[[], None] = lambda: None,
) -> dict[str, tuple[str, ...]]:
    """The queries whose candidate is picked among `number` others; in the order, and for the ids, that they had.

    Args:
        candidates: by id; every id of `queries` is there.
        others: the distractors of a candidate.
        done: called after each candidate.
    """
    kept = {}
    for id_, texts in queries.items():
        source = candidates[id_]
        distractors = others(source, number)
        recovered = []
        for query in texts:
            offered = [source, *distractors]
            Random(f"{source.content_hash} {query}").shuffle(offered)  # noqa: S311
            if await verifier.pick(query, offered) is source:
                recovered.append(query)
        kept[id_] = tuple(recovered)
        done()
    return kept
