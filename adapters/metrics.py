"""Numbers of merit: ranking metrics, calibration, abstention, and bootstrap intervals.

Knows rankings as lists of ids, probabilities and right-or-wrong. Does not know cases, methods or files. Ranking
metrics come from ir-measures (trec_eval), AUROC and Brier score from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import ir_measures
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import brier_score_loss, roc_auc_score

Floats = NDArray[np.float64]
Interval = tuple[float, float]

_MEASURES = {
    "hit@1": ir_measures.Success @ 1,
    "recall@5": ir_measures.R @ 5,
    "recall@10": ir_measures.R @ 10,
    "recall@50": ir_measures.R @ 50,
    "mrr@10": ir_measures.RR @ 10,
    "ndcg@10": ir_measures.nDCG @ 10,
}
RANKING_METRICS = (*_MEASURES, "full@10")

BOOTSTRAP_SAMPLES = 2000
# Resamples drawn at once: bounds the memory of sets with ten thousand groups.
_SAMPLES_AT_ONCE = 200
# Bins of a reliability diagram and of the ECE, of equal width (Guo et al. 2017 use 15).
BINS = 15


def ranking_metrics(rankings: Sequence[Sequence[str]], needs: Sequence[Sequence[frozenset[str]]]) -> dict[str, Floats]:
    """Every metric of RANKING_METRICS, one value for each ranking.

    Args:
        rankings: ids, best first; an id that is not in it was not found.
        needs: for each ranking what has to be found, as groups: one id of a group is as good as another. Only the
            first of a group that the ranking holds counts. Recall is the share of groups found.
    """
    qrels = {str(n): {str(g): 1 for g in range(len(groups))} for n, groups in enumerate(needs)}
    runs = {str(n): _run(ranking, groups) for n, (ranking, groups) in enumerate(zip(rankings, needs, strict=True))}
    values = {name: np.zeros(len(rankings)) for name in _MEASURES}
    names = {measure: name for name, measure in _MEASURES.items()}
    for result in ir_measures.iter_calc(list(names), qrels, runs):
        values[names[result.measure]][int(result.query_id)] = result.value
    return {**values, "full@10": (values["recall@10"] > 1 - 1e-9).astype(np.float64)}


def _run(ranking: Sequence[str], groups: Sequence[frozenset[str]]) -> dict[str, float]:
    """The ranking as trec_eval reads it: documents with falling scores; a found group is a document."""
    found: set[int] = set()
    run: dict[str, float] = {}
    for rank, id_ in enumerate(ranking):
        group = next((g for g, ids in enumerate(groups) if id_ in ids and g not in found), None)
        if group is not None:
            found.add(group)
        run[f"other {rank}" if group is None else str(group)] = -float(rank)
    return run


def resampled_means(values: Floats, groups: Sequence[str], seed: int) -> Floats:
    """Means of `values` (cases, columns) over bootstrap samples, shape (BOOTSTRAP_SAMPLES, columns).

    Whole groups are drawn, with replacement: steps of one dialogue are not independent (cluster bootstrap, Davison
    and Hinkley 1997, 2.4 and 3.8).
    """
    codes = _codes(groups)
    sums = np.zeros((codes.max() + 1, values.shape[1]))
    np.add.at(sums, codes, values)
    sizes = np.bincount(codes).astype(np.float64)
    return np.concatenate([drawn @ sums / (drawn @ sizes)[:, None] for drawn in _draws(len(sizes), seed)])


def _draws(groups: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each group stands in each bootstrap sample: arrays (samples, groups), BOOTSTRAP_SAMPLES in all."""
    rng = np.random.default_rng(seed)
    for _ in range(BOOTSTRAP_SAMPLES // _SAMPLES_AT_ONCE):
        yield rng.multinomial(groups, np.full(groups, 1 / groups), size=_SAMPLES_AT_ONCE)


def interval(samples: Floats) -> Interval:
    """The central 95% of bootstrap samples."""
    low, high = np.percentile(samples, (2.5, 97.5))
    return float(low), float(high)


def _codes(groups: Sequence[str]) -> NDArray[np.intp]:
    first: dict[str, int] = {}
    return np.array([first.setdefault(group, len(first)) for group in groups], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class Reliability:
    """One bin of a reliability diagram: decisions, their mean confidence, and the share that was right."""

    count: int
    confidence: float
    accuracy: float


def reliability(confidence: Floats, correct: Floats) -> list[Reliability]:
    """Bins of equal width over the confidence, empty ones left out."""
    bins = np.minimum((confidence * BINS).astype(np.intp), BINS - 1)
    return [
        Reliability(int(here.sum()), float(confidence[here].mean()), float(correct[here].mean()))
        for here in (bins == b for b in range(BINS))
        if here.any()
    ]


def expected_calibration_error(confidence: Floats, correct: Floats) -> float:
    """Mean distance between confidence and accuracy over the bins, weighted by their size (Guo et al. 2017)."""
    return sum(b.count * abs(b.confidence - b.accuracy) for b in reliability(confidence, correct)) / len(confidence)


def brier(confidence: Floats, correct: Floats) -> float:
    """Mean squared distance between the confidence in a decision and whether it was right."""
    return float(brier_score_loss(correct, confidence))


def auroc(scores: Floats, positive: Floats, groups: Sequence[str], seed: int) -> tuple[float, Interval]:
    """Area under the ROC curve with its 95% interval over resampled groups; both classes must occur."""
    codes = _codes(groups)
    samples = np.concatenate([_areas(scores, positive, drawn[:, codes]) for drawn in _draws(codes.max() + 1, seed)])
    return float(roc_auc_score(positive, scores)), interval(samples[~np.isnan(samples)])


def _areas(scores: Floats, positive: Floats, weights: NDArray[np.int64]) -> Floats:
    """The area for each row of `weights` (samples, cases): the share of pairs in the right order, half for ties."""
    order = np.argsort(scores, kind="stable")
    starts = np.flatnonzero(np.diff(scores[order], prepend=-np.inf))
    above = np.add.reduceat(weights[:, order] * positive[order], starts, axis=1)
    below = np.add.reduceat(weights[:, order] * (1 - positive[order]), starts, axis=1)
    beaten = np.cumsum(below, axis=1) - below / 2
    pairs = above.sum(axis=1) * below.sum(axis=1)
    areas: Floats = np.where(pairs > 0, (above * beaten).sum(axis=1) / np.maximum(pairs, 1), np.nan)
    return areas


def mean_by(keys: Sequence[int], values: Floats) -> Mapping[int, tuple[int, float]]:
    """For each key: how many values, and their mean."""
    codes = np.asarray(keys)
    return {int(key): (int((codes == key).sum()), float(values[codes == key].mean())) for key in np.unique(codes)}


def sampled_accuracy(
    posteriors: Sequence[Floats], right: Sequence[Floats], runs: int, generators: Callable[[int], np.random.Generator]
) -> Floats:
    """Accuracy of each of `runs` runs that draw every answer from its posterior: temperature 1 (avg@runs).

    Args:
        posteriors: for each question, probabilities that sum to 1.
        right: for each question, 1 where an answer is right.
        generators: the random numbers of each question.
    """
    hits = np.zeros((len(posteriors), runs))
    for number, (posterior, answers) in enumerate(zip(posteriors, right, strict=True)):
        drawn = generators(number).choice(len(posterior), size=runs, p=posterior / posterior.sum())
        hits[number] = answers[drawn]
    return np.asarray(hits.mean(axis=0), dtype=np.float64)
