"""From answers to how a method behaves: sampling, abstention, calibration, order of candidates, length of the list.

Knows questions, answers and metrics. Does not know who answered, or how.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from adapters.metrics import (
    auroc,
    brier,
    expected_calibration_error,
    mean_by,
    reliability,
    sampled_accuracy,
)
from adapters.mixture import generator
from adapters.questions import needs
from adapters.scores import Asked, Pair, Row, right

# Calibration is shown for all lists, and apart by how many candidates the model read: name, from, to.
LENGTHS = (
    ("all", 1, math.inf),
    ("1", 1, 1),
    ("2-4", 2, 4),
    ("5-8", 5, 8),
    ("9-11", 9, 11),
    ("12-16", 12, 16),
    ("17-24", 17, 24),
    ("25+", 25, math.inf),
)


def repeats(asked: Sequence[Asked], runs: int, seed: int) -> list[Row]:
    """Accuracy over `runs` answers to each case with gold, drawn at temperature 1 (the avg@5 of ToolACE-MCP, 4.1).

    A router's answers are drawn from its posterior; a chat model was asked as often.
    """
    if not runs:
        return []
    return [row for one in asked for row in [_sampled(one, runs, seed) or _asked_again(one)] if row]


def _sampled(asked: Asked, runs: int, seed: int) -> Row | None:
    pairs = [pair for pair in asked.with_gold if pair[1].probabilities]
    if not pairs:
        return None
    posteriors = [np.array([*a.probabilities, a.none_probability or 0.0]) for _, a in pairs]
    answers = [np.array([*(id_ in q.right for id_ in a.ranking[: a.kept]), 0.0]) for q, a in pairs]
    accuracy = sampled_accuracy(
        posteriors, answers, runs, lambda number: generator(seed, "repeat", pairs[number][0].case.case_id)
    )
    return _repeated(asked, len(pairs), accuracy.tolist())


def _asked_again(asked: Asked) -> Row | None:
    runs: dict[str, list[bool]] = {}
    for question, answer in asked.under("repeat"):
        if question.case.gold:
            runs.setdefault(question.condition, []).append(answer.chosen in question.right)
    return _repeated(asked, len(asked.with_gold), [float(np.mean(run)) for run in runs.values()]) if runs else None


def _repeated(asked: Asked, n: int, accuracy: list[float]) -> Row:
    row = {"set": asked.set.name, "method": asked.method, "n": n, "runs": len(accuracy)}
    return {**row, "accuracy": float(np.mean(accuracy)), "deviation": float(np.std(accuracy))}


def abstention(asked: Sequence[Asked], seed: int) -> list[Row]:
    """Telling questions that have a right candidate from those that have none, at lists of equal lengths.

    `removed`: each case with gold surely on offer and with gold taken away. `single`: one candidate; a set whose
    cases have no gold against every set that has. AUROC is that of the score (for a router 1 - P(none), for
    retrieval the best candidate's); accuracy that of the decision.
    """
    rows: list[Row] = []
    for one in asked:
        pairs = [*one.under("present"), *one.under("absent")]
        if pairs:
            rows.append(_told_apart(one.set.name, one.method, "removed", pairs, seed))
    for negatives in asked:
        without = [pair for pair in negatives.under("single") if not pair[0].right]
        for positives in asked if without else ():
            with_gold = [pair for pair in positives.under("single") if pair[0].right]
            if with_gold and positives.method == negatives.method:
                name = f"{negatives.set.name} / {positives.set.name}"
                rows.append(_told_apart(name, negatives.method, "single", [*without, *with_gold], seed))
    return rows


def _told_apart(name: str, method: str, kind: str, pairs: Sequence[Pair], seed: int) -> Row:
    has_gold = np.array([bool(question.right) for question, _ in pairs], dtype=np.float64)
    score = np.array([answer.score for _, answer in pairs])
    value, bounds = auroc(score, has_gold, [question.case.group for question, _ in pairs], seed)
    row: Row = {"set": name, "method": method, "kind": kind, "n_present": int(has_gold.sum())}
    row |= {"n_absent": len(pairs) - int(has_gold.sum()), "auroc": value, "interval": bounds}
    if all(answer.none_probability is not None for _, answer in pairs):
        said = np.array([answer.chosen is not None for _, answer in pairs], dtype=np.float64)
        row |= {
            "accuracy": float((said == has_gold).mean()),
            "false_none": float(1 - said[has_gold == 1].mean()),
            "missed_none": float(said[has_gold == 0].mean()),
        }
    return row


def calibration(asked: Sequence[Asked]) -> list[Row]:
    """Whether a router's probabilities can be taken at their word, over the plain questions and by list length.

    The confidence is the decision's probability; "none of these" is right where no right candidate was read. A set
    of COVERAGE covers where it holds the right answer, none included. Cases that need several candidates are left
    out: there the probability of one of them is not that of a right answer.
    """
    rows: list[Row] = []
    for one in asked:
        pairs = [pair for pair in one.under("main") if pair[1].probabilities and len(needs(pair[0].case)) <= 1]
        for name, low, high in LENGTHS:
            here = [pair for pair in pairs if low <= pair[1].kept <= high]
            if here:
                rows.append({"set": one.set.name, "method": one.method, "length": name, **_calibrated(here)})
    return rows


def _calibrated(pairs: Sequence[Pair]) -> Row:
    answers = [answer for _, answer in pairs]
    confidence = np.array([a.probabilities[0] if a.chosen else a.none_probability or 0.0 for a in answers])
    correct = np.array([right(pair) for pair in pairs], dtype=np.float64)
    covered = [_covered(pair) for pair in pairs]
    return {
        "n": len(pairs),
        "accuracy": float(correct.mean()),
        "confidence": float(confidence.mean()),
        "ece": expected_calibration_error(confidence, correct),
        "brier": brier(confidence, correct),
        "coverage": float(np.mean(covered)),
        "set_size": float(np.mean([len(a.prediction_set or ()) + a.set_has_none for a in answers])),
        "bins": [[b.count, b.confidence, b.accuracy] for b in reliability(confidence, correct)],
    }


def _covered(pair: Pair) -> bool:
    question, answer = pair
    if question.right.isdisjoint(answer.ranking[: answer.kept]):
        return answer.set_has_none
    return not question.right.isdisjoint(answer.prediction_set or ())


def order(asked: Sequence[Asked]) -> list[Row]:
    """What changes when the same candidates stand in other orders.

    `flips`: share of cases whose answer is not the same in all orders. `moved`: the largest change of any
    probability. `slots`: accuracy by the place of the first right candidate, as [place, cases, accuracy].
    """
    return [_ordered(one, pairs) for one in asked for pairs in [one.under("order")] if pairs]


def _ordered(asked: Asked, pairs: Sequence[Pair]) -> Row:
    cases: dict[str, list[Pair]] = {}
    for pair in pairs:
        cases.setdefault(pair[0].case.case_id, []).append(pair)
    slots: list[int] = []
    hits: list[float] = []
    for question, answer in pairs:
        shown = [candidate.id for candidate in question.pool.candidates]
        slot = next((place for place, id_ in enumerate(shown) if id_ in question.right), None)
        if slot is not None:
            slots.append(slot)
            hits.append(float(answer.chosen in question.right))
    return {
        "set": asked.set.name,
        "method": asked.method,
        "n": len(cases),
        "orders": max(map(len, cases.values())),
        "flips": float(np.mean([len({answer.chosen for _, answer in same}) > 1 for same in cases.values()])),
        "moved": max(_moved(same) for same in cases.values()),
        "slots": [[slot, *values] for slot, values in mean_by(slots, np.array(hits)).items()] if slots else [],
    }


def _moved(same: Iterable[Pair]) -> float:
    """The largest change of one id's probability between two answers."""
    seen: dict[str, list[float]] = {}
    for _, answer in same:
        for id_, probability in zip(answer.ranking, answer.probabilities, strict=False):
            seen.setdefault(id_, []).append(probability)
    return max((max(values) - min(values) for values in seen.values()), default=0.0)


def sweeps(asked: Sequence[Asked]) -> list[Row]:
    """Selection among K candidates, gold one of them: all K before the model, or what the prefilter keeps of them."""
    rows: list[Row] = []
    for one in asked:
        by_condition: dict[str, list[Pair]] = {}
        for condition in ("sweep", "sweep-k"):
            for pair in one.under(condition):
                by_condition.setdefault(pair[0].condition, []).append(pair)
        for condition, pairs in by_condition.items():
            kind, _, size = condition.partition(":")
            rows.append(
                {
                    "set": one.set.name,
                    "method": one.method,
                    "K": size,
                    "read": "all" if kind == "sweep" else str(pairs[0][0].k),
                    "n": len(pairs),
                    "hit@1": float(np.mean([a.ranking[:1] and a.ranking[0] in q.right for q, a in pairs])),
                    "accuracy": float(np.mean([a.chosen in q.right for q, a in pairs])),
                    "prompt_tokens": float(np.mean([a.prompt_tokens for _, a in pairs])),
                    "ms_per_query": float(np.mean([a.ms for _, a in pairs])),
                }
            )
    return rows
