"""Fits what turns an adapter's log-scores into probabilities: temperature, none bias, blend and prediction sets.

Knows development cases and a router. All is fitted on cases that training held out and that are exchangeable with
those the report is made on; the values go into the manifest, and say what they were fitted on. Half of the cases fit
the scales, the other half (of other groups) the conformal thresholds: a threshold chosen on the cases that the
probabilities were fitted on would promise too much.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from adapters.cases import TrainingCase, read_cases
from serving.posterior import Calibration, Scale
from serving.prefilter.base import Pool, RankingPrefilter, search_text
from serving.readout import read
from serving.router import Router

Floats = NDArray[np.float64]

# Lists of at least so many candidates share a none bias: short, medium and long ones.
LENGTHS = (1, 4, 8)
COVERAGES = (0.8, 0.9, 0.95)
# Questions in flight, so that the engine can put several into one pass.
TOGETHER = 4


@dataclass(frozen=True)
class Scored:
    """One case: what the model and the prefilter's ranker said of its list, and how right each option is.

    Attributes:
        group: cases of one group are dependent.
        scores: log-scores, none last.
        prefilter: the ranker's scores of the candidates.
        targets: how much of the right answer each option is, none last; sums to 1.
    """

    group: str
    scores: Floats
    prefilter: Floats
    targets: Floats


async def score(router: Router, cases: Sequence[TrainingCase]) -> list[Scored]:
    """Ask a started router's engine and ranker about every case's own list, without any calibration.

    Raises:
        ValueError: the router's prefilter has no ranker.
    """
    if not isinstance(router.prefilter, RankingPrefilter):
        raise ValueError("the blend needs a prefilter that ranks; set prefilter.method in the profile")
    prefilter, waiting = router.prefilter, list(enumerate(cases))
    scored: dict[int, Scored] = {}

    async def worker() -> None:
        while waiting:
            number, case = waiting.pop()
            prompt = await asyncio.to_thread(router.template.render, case.messages, case.candidates)
            reading = await read(router.engine, router.template, prompt, salt="", deadline=None, whole=True)
            pool = Pool.of(case.candidates)
            ranking = await prefilter.ranker.rank(search_text(case.messages, prefilter.history_messages), pool)
            ranked = np.zeros(len(case.candidates))
            ranked[list(pool.positions)] = ranking.scores
            targets = np.array([*case.targets, case.none_weight], dtype=np.float64)
            scored[number] = Scored(
                case.case_id.rpartition(":")[0] or case.case_id, reading.scores, ranked, targets / targets.sum()
            )

    await asyncio.gather(*(worker() for _ in range(TOGETHER)))
    return [scored[number] for number in range(len(cases))]


def _scale(values: Floats, *, blend: bool) -> Scale:
    """A scale from the numbers that the optimiser moves; the temperature as its logarithm."""
    biases = tuple((length, float(bias)) for length, bias in zip(LENGTHS, values[1 : 1 + len(LENGTHS)], strict=True))
    return Scale(temperature=float(np.exp(values[0])), none_bias=biases, weight=float(values[-1]) if blend else 0.0)


def loss(scale: Scale, scored: Sequence[Scored]) -> float:
    """Mean negative log-likelihood in nats: of the mass on right options, where several are right."""
    total = 0.0
    for case in scored:
        posterior = scale.probabilities(case.scores, len(case.prefilter), case.prefilter.tolist())
        total -= float(np.log(max(posterior[case.targets > 0].sum(), 1e-12)))
    return total / len(scored)


def fit_scale(scored: Sequence[Scored], *, blend: bool) -> Scale:
    """The scale of least loss; a small quadratic penalty keeps a bias near 0 where few cases speak for it."""
    start = np.zeros(1 + len(LENGTHS) + blend)

    def objective(values: Floats) -> float:
        return loss(_scale(values, blend=blend), scored) + 0.01 * float((values[1 : 1 + len(LENGTHS)] ** 2).sum())

    best = minimize(objective, start, method="Powell", bounds=[(-3, 3)] + [(-6, 6)] * len(LENGTHS) + [(0, 200)] * blend)
    return _scale(np.asarray(best.x, dtype=np.float64), blend=blend)


def conformal_thresholds(scale: Scale, scored: Sequence[Scored]) -> tuple[tuple[float, float], ...]:
    """For each coverage the mass a set must reach (split conformal prediction with adaptive sets, Romano et al. 2020).

    A case's score is the mass of the options at least as probable as its most probable right one; the threshold is
    the (1 + 1/n)-corrected quantile of those.
    """
    masses = []
    for case in scored:
        posterior = scale.probabilities(case.scores, len(case.prefilter), case.prefilter.tolist())
        right = posterior[case.targets > 0].max()
        masses.append(float(posterior[posterior >= right].sum()))
    ordered = np.sort(masses)
    ranks = [min(int(np.ceil(coverage * (len(ordered) + 1))), len(ordered)) for coverage in COVERAGES]
    return tuple((coverage, float(ordered[rank - 1])) for coverage, rank in zip(COVERAGES, ranks, strict=True))


def split_by_group(scored: Sequence[Scored]) -> tuple[list[Scored], list[Scored]]:
    """Two halves that share no group, the same in every run."""
    halves: tuple[list[Scored], list[Scored]] = ([], [])
    for case in scored:
        halves[hashlib.blake2b(case.group.encode(), digest_size=1).digest()[0] % 2].append(case)
    return halves


@dataclass(frozen=True)
class Fitted:
    """A calibration and how it did: mean loss in nats on the half that did not fit the scales."""

    calibration: Calibration
    cases: int
    loss_before: float
    loss_plain: float
    loss_blended: float


def fit(scored: Sequence[Scored]) -> Fitted:
    """Fit everything. The blend is kept only where it lowers the loss of cases that did not fit it.

    Raises:
        ValueError: too few cases to fit on.
    """
    fitting, checking = split_by_group(scored)
    if min(len(fitting), len(checking)) < 50:
        raise ValueError(f"{len(scored)} cases are too few to calibrate on; give at least a few hundred")
    plain, blended = fit_scale(fitting, blend=False), fit_scale(fitting, blend=True)
    losses = loss(Scale(), checking), loss(plain, checking), loss(blended, checking)
    kept = blended if losses[2] < losses[1] else None
    thresholds = conformal_thresholds(kept or plain, checking)
    return Fitted(Calibration(plain=plain, blended=kept, conformal=thresholds), len(scored), *losses)


def read_development(path: Path, limit: int | None) -> list[TrainingCase]:
    """Development cases with at least one candidate."""
    cases = [case for case in read_cases(path) if case.candidates]
    return cases[:limit]
