"""From answers to the main table: ranking metrics with intervals, averages over sets, and paired comparisons.

Knows questions, answers and metrics. Does not know who answered, or how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from adapters.answers import Answer, Kind
from adapters.metrics import RANKING_METRICS, Floats, interval, ranking_metrics, resampled_means
from adapters.questions import EvaluationSet, Question, needs

Row = dict[str, Any]
Pair = tuple[Question, Answer]


@dataclass(frozen=True)
class Asked:
    """A method's answers to one set's questions."""

    set: EvaluationSet
    method: str
    kind: Kind
    pairs: tuple[Pair, ...]

    def under(self, condition: str) -> list[Pair]:
        """Pairs whose condition is this, or begins with it and a colon."""
        return [pair for pair in self.pairs if pair[0].condition.partition(":")[0] == condition]

    @cached_property
    def with_gold(self) -> list[Pair]:
        """The plain questions that have a right candidate."""
        return [pair for pair in self.under("main") if pair[0].case.gold]

    @cached_property
    def metrics(self) -> dict[str, Floats]:
        """Every ranking metric of `with_gold`."""
        rankings = [answer.ranking for _, answer in self.with_gold]
        return ranking_metrics(rankings, [needs(question.case) for question, _ in self.with_gold])

    @property
    def groups(self) -> list[str]:
        """Of `with_gold`: cases of one group are resampled together."""
        return [question.case.group for question, _ in self.with_gold]


def right(pair: Pair) -> bool:
    """Whether the decision is right, "none of these" being right where the model read no right candidate."""
    question, answer = pair
    if answer.chosen is not None:
        return answer.chosen in question.right
    return question.right.isdisjoint(answer.ranking[: answer.kept])


def result(asked: Asked, seed: int) -> Row:
    """One row of the main table. Ranking metrics are over the cases with gold; `hit@1` asks what comes first among
    the candidates, `accuracy` also counts "none of these", which is never right there."""
    pairs, n = asked.with_gold, len(asked.with_gold)
    splits = sorted({question.case.split for question, _ in pairs})
    row: Row = {
        "set": asked.set.name,
        "method": asked.method,
        "split": ",".join(splits) or "none",
        "n": n,
        **{name: _mean(values) for name, values in asked.metrics.items()},
    }
    if n:
        samples = resampled_means(np.stack([asked.metrics[m] for m in RANKING_METRICS], axis=1), asked.groups, seed)
        row["intervals"] = {name: interval(samples[:, i]) for i, name in enumerate(RANKING_METRICS)}
    hits = asked.metrics["hit@1"]
    chosen = np.array([answer.chosen in question.right for question, answer in pairs], dtype=np.float64)
    answers = [answer for _, answer in asked.under("main")]
    row |= {
        "accuracy": _mean(chosen),
        "gold_kept": _mean([not q.right.isdisjoint(a.ranking[: a.kept or q.k]) for q, a in pairs]),
        **_part("history", hits, (len(question.case.messages) > 1 for question, _ in pairs)),
        **_part("repeats", hits, (question.case.repeats_last_call for question, _ in pairs)),
        **_part("others", hits, (not question.case.repeats_last_call for question, _ in pairs)),
        **_none(asked),
        "ms_per_query": _mean([answer.ms for answer in answers]),
        "ms_p95": float(np.percentile([answer.ms for answer in answers], 95)) if answers else None,
        "prompt_tokens": _mean([answer.prompt_tokens for answer in answers]),
        "kept": _mean([answer.kept for answer in answers]),
        "by_split": {
            split: {"n": int(here.sum()), "hit@1": _mean(hits[here])}
            for split in splits
            for here in [np.array([question.case.split == split for question, _ in pairs])]
        },
    }
    return row


def _part(name: str, hits: Floats, here: Iterable[bool]) -> Row:
    chosen = np.fromiter(here, dtype=bool)
    return {f"n_{name}": int(chosen.sum()), f"hit@1_{name}": _mean(hits[chosen])}


def _none(asked: Asked) -> Row:
    """How often "none of these" is said where it is right."""
    pairs = [pair for pair in asked.under("main") if not pair[0].case.gold]
    if not pairs or pairs[0][1].none_probability is None:
        return {"n_none": len(pairs), "none_accuracy": None}
    return {"n_none": len(pairs), "none_accuracy": _mean([answer.chosen is None for _, answer in pairs])}


def _mean(values: Sequence[float] | Floats) -> float | None:
    return float(np.mean(values)) if len(values) else None


def averages(asked: Sequence[Asked], seed: int) -> list[Row]:
    """Each method's metrics averaged over the sets, every set weighing the same."""
    rows: list[Row] = []
    for method in dict.fromkeys(one.method for one in asked):
        parts = [one for one in asked if one.method == method and one.with_gold]
        values = [np.stack([part.metrics[m] for m in RANKING_METRICS], axis=1) for part in parts]
        if not parts:
            continue
        means = np.mean([value.mean(axis=0) for value in values], axis=0)
        # Sets are independent: the average of their samples is a sample of their average.
        each = [
            resampled_means(v, part.groups, seed + i) for i, (v, part) in enumerate(zip(values, parts, strict=True))
        ]
        samples = np.mean(each, axis=0)
        rows.append(
            {
                "method": method,
                "sets": len(parts),
                "n": sum(map(len, values)),
                **dict(zip(RANKING_METRICS, means.tolist(), strict=True)),
                "intervals": {name: interval(samples[:, i]) for i, name in enumerate(RANKING_METRICS)},
            }
        )
    return rows


def comparisons(asked: Sequence[Asked], seed: int) -> list[Row]:
    """Differences in Hit@1, case by case, with paired bootstrap intervals.

    Every router and chat model against the best retrieval method of each set (the one that did best on these very
    cases, which favours retrieval); `router` against itself without history, on the cases that have any, and
    against the bare base model. Behind the sets stands their average.
    """
    by_name = {(one.set.name, one.method): one for one in asked if one.with_gold}
    sets = list(dict.fromkeys(name for name, _ in by_name))
    rows: list[Row] = []

    def compare(method: str, against: Callable[[str], Asked | None], what: str, history: bool = False) -> None:
        samples: list[Floats] = []
        differences: list[float] = []
        for number, name in enumerate(sets):
            mine, theirs = by_name.get((name, method)), against(name)
            if mine is None or theirs is None:
                continue
            values = mine.metrics["hit@1"] - theirs.metrics["hit@1"]
            here = np.array([not history or len(question.case.messages) > 1 for question, _ in mine.with_gold])
            if not here.any():
                continue
            groups = [group for group, use in zip(mine.groups, here, strict=True) if use]
            samples.append(resampled_means(values[here, None], groups, seed + number)[:, 0])
            differences.append(float(values[here].mean()))
            low, high = interval(samples[-1])
            rows.append(
                {"set": name, "method": method, "against": what, "baseline": theirs.method, "n": int(here.sum()),
                 "hit@1_difference": differences[-1], "interval": (low, high)}
            )  # fmt: skip
        if len(samples) > 1:
            average = {"set": "average", "method": method, "against": what, "baseline": what, "n": len(samples)}
            average |= {"hit@1_difference": float(np.mean(differences)), "interval": interval(np.mean(samples, axis=0))}
            rows.append(average)

    def best_retrieval(name: str) -> Asked | None:
        retrieval = [one for (set_, _), one in by_name.items() if set_ == name and one.kind == "retrieval"]
        return max(retrieval, key=lambda one: one.metrics["hit@1"].mean(), default=None)

    for method in dict.fromkeys(one.method for one in asked if one.kind in {"router", "chat"}):
        compare(method, best_retrieval, "best retrieval")
    compare("router", lambda name: by_name.get((name, "router-no-history")), "router-no-history", history=True)
    compare("router", lambda name: by_name.get((name, "base")), "base")
    return rows
