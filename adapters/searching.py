"""Searches the pools of cases, and says how well: rankings, metrics of them, and their bootstrap intervals.

Knows sets of cases and rankers. Does not know which searches are compared, or how a comparison is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from adapters.answers import RANKING_DEPTH
from adapters.methods import Shown, query_only, whole_conversation
from adapters.metrics import Floats, interval, resampled_means
from adapters.questions import EvaluationSet, Question, needs
from adapters.retrieval import Retriever
from adapters.scores import Row
from prompts import Candidate
from prompts.tokenizer import PromptTokenizer
from serving.catalog.advice import schema
from serving.config import PrefilterConfig
from serving.prefilter.base import Ranker
from serving.prefilter.dense import DenseRanker
from serving.prefilter.embedder import Embeddings
from serving.prefilter.fusion import FusedRanker
from serving.prefilter.lexical import BM25Ranker
from serving.prefilter.pool import Field
from serving.prefilter.selection import RankingPrefilter

Queries = Mapping[str, Sequence[str]]
"""Generated user queries by candidate id."""

SHOWN: Mapping[str, Shown] = {"query": query_only, "history": whole_conversation}
"""What of a conversation is read: the latest user message alone, or everything."""


@dataclass(frozen=True, eq=False)
class Found:
    """What one way of searching found for every case of a set that has a right candidate.

    Attributes:
        rankings: ids of each question, best first, at most RANKING_DEPTH.
        ms: how long each took.
    """

    questions: tuple[Question, ...]
    rankings: tuple[tuple[str, ...], ...]
    ms: tuple[float, ...] = ()

    @property
    def groups(self) -> list[str]:
        """Cases of one group are resampled together."""
        return [question.case.group for question in self.questions]

    @cached_property
    def _places(self) -> list[Floats]:
        return [
            places(ranking, needs(question.case))
            for question, ranking in zip(self.questions, self.rankings, strict=True)
        ]

    def metric(self, name: str) -> Floats:
        """One value for each question: `recall@K`, the share of what is needed that the first K hold; `full@K`,
        whether they hold all of it; `hit@K`, any of it; `mrr`."""
        return metric(name, self._places)


def places(ranking: Sequence[str], groups: Sequence[frozenset[str]]) -> Floats:
    """Where in a ranking each group is found first, from 1; infinity where it is not. An id counts for one group."""
    found = np.full(len(groups), np.inf)
    for place, id_ in enumerate(ranking, start=1):
        group = next((g for g, ids in enumerate(groups) if id_ in ids and np.isinf(found[g])), None)
        if group is not None:
            found[group] = place
    return found


def metric(name: str, found: Sequence[Floats]) -> Floats:
    """A metric of `Found.metric`, given the places at which the needed was found."""
    kind, _, size = name.partition("@")
    match kind:
        case "recall":
            values = [float(np.mean(at <= int(size))) for at in found]
        case "full":
            values = [float(np.all(at <= int(size))) for at in found]
        case "hit":
            values = [float(np.any(at <= int(size))) for at in found]
        case "mrr":
            values = [float(1 / at.min()) for at in found]
        case _:
            raise ValueError(f"no such metric: {name!r}")
    return np.array(values)


def summary(
    value: Callable[[str], Floats], groups: Sequence[str], names: Sequence[str], seed: int, *, intervals: bool = True
) -> Row:
    """Means of metrics and, by name under `intervals`, their 95% bootstrap intervals."""
    values = np.stack([value(name) for name in names], axis=1)
    row: Row = {"n": len(values), **dict(zip(names, values.mean(axis=0).tolist(), strict=True))}
    if intervals:
        samples = resampled_means(values, groups, seed)
        row["intervals"] = {name: interval(samples[:, i]) for i, name in enumerate(names)}
    return row


def paired(ours: Floats, theirs: Floats, groups: Sequence[str], seed: int) -> Row:
    """The mean difference, case by case, with its 95% bootstrap interval."""
    samples = resampled_means((ours - theirs)[:, None], groups, seed)[:, 0]
    return {"difference": float((ours - theirs).mean()), "interval": interval(samples)}


class Searcher:
    """Searches the pools of cases. What was asked once is remembered, and so are the vectors of candidates.

    Args:
        config: what is searched for of a conversation.
        embeddings: started and closed by whoever made it.
        tokenizer: counts what candidates cost.
        progress: called with a title and a number of cases; what it returns is called after each.
    """

    def __init__(
        self,
        config: PrefilterConfig,
        embeddings: Embeddings,
        tokenizer: PromptTokenizer,
        progress: Callable[[str, int], Callable[[], None]] = lambda title, count: lambda: None,
    ) -> None:
        self.config = config
        self.embeddings = embeddings
        self._tokenizer = tokenizer
        self.progress = progress
        self._found: dict[tuple[object, ...], Found] = {}
        self._retrievers: dict[tuple[object, ...], Retriever] = {}
        self._lengths: dict[str, int] = {}

    def rankers(self, field: Field) -> dict[str, Ranker]:
        """The methods of RETRIEVAL over one field."""
        bm25, dense = BM25Ranker(field), DenseRanker(self.embeddings, field)
        return {"bm25": bm25, "dense": dense, "fused": FusedRanker(dense, bm25)}

    async def found(
        self, cases: EvaluationSet, method: str, shown: str = "history", field: Field = "specification",
        queries: Queries | None = None,
    ) -> Found:  # fmt: skip
        """What `method` finds when it reads this of the conversation, and candidates by this of them."""
        indexed = tuple(sorted((id_, tuple(texts)) for id_, texts in (queries or {}).items()))
        key = (cases.name, method, shown, field, indexed)
        if key not in self._found:
            self._found[key] = await self._search(cases, self._retriever(method, field, queries, indexed), shown, key)
        return self._found[key]

    def _retriever(self, method: str, field: Field, queries: Queries | None, indexed: object) -> Retriever:
        if (method, field, indexed) not in self._retrievers:
            settings = self.config.model_copy(update={"method": method})
            prefilter = RankingPrefilter(self.rankers(field), settings, queries=queries)
            self._retrievers[method, field, indexed] = Retriever(prefilter)
        return self._retrievers[method, field, indexed]

    async def _search(self, cases: EvaluationSet, retriever: Retriever, shown: str, key: Sequence[object]) -> Found:
        questions = tuple(cases.main(case, RANKING_DEPTH) for case in cases.cases if case.gold)
        done = self.progress(f"{cases.name}, {key[1]}, {shown}, {key[3]}", len(questions))
        rankings, took = [], []
        for question in questions:
            await retriever.warm(question)
            started = time.perf_counter()
            rankings.append((await retriever.rank(SHOWN[shown](question), question)).ids)
            took.append((time.perf_counter() - started) * 1e3)
            done()
        return Found(questions, tuple(rankings), tuple(took))

    def tokens(self, candidates: Iterable[Candidate]) -> int:
        """What these candidates cost in a prompt, as JSON schemas of tools."""
        total = 0
        for candidate in candidates:
            if candidate.id not in self._lengths:
                self._lengths[candidate.id] = self.text_tokens(schema(candidate))
            total += self._lengths[candidate.id]
        return total

    def text_tokens(self, text: str) -> int:
        """What a text costs in a prompt."""
        return len(self._tokenizer.text(text))
