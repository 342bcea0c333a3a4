"""Fits what turns an adapter's log-scores into probabilities: temperature, none bias, blend and prediction sets.

Knows development cases and a router's engine. All is fitted on cases that training held out and that are
exchangeable with those the report is made on. What a prefilter kept is calibrated on lists that a prefilter kept,
gold or no gold; lists that pass whole are calibrated on such lists. Half of the cases fit a scale, the other half
(of other groups) its conformal thresholds: a threshold chosen on the cases that the probabilities were fitted on
would promise too much.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from adapters.cases import TrainingCase
from serving.posterior import Calibration, Scale
from serving.readout import read
from serving.router import Router

Floats = NDArray[np.float64]

# Lists of at least so many candidates share a none bias: short, medium and long ones.
LENGTHS = (1, 4, 8)
COVERAGES = (0.8, 0.9, 0.95)
# Fewer cases than this in either half say too little.
FEWEST = 50
# Questions in flight, so that the engine can put several into one pass.
TOGETHER = 4


@dataclass(frozen=True)
class Scored:
    """One case: what the model and the prefilter said of its list, and how right each option is.

    Attributes:
        group: cases of one group are dependent.
        scores: log-scores, none last.
        prefilter: the prefilter's scores of the candidates; all 0 where none ranked them.
        targets: how much of the right answer each option is, none last; sums to 1.
    """

    group: str
    scores: Floats
    prefilter: Floats
    targets: Floats


async def score(router: Router, cases: Sequence[TrainingCase], done: Callable[[], None] = lambda: None) -> list[Scored]:
    """Ask a started router's engine about every case's own list, without any calibration. `done` follows each."""
    waiting = list(enumerate(cases))
    scored: dict[int, Scored] = {}

    async def worker() -> None:
        while waiting:
            number, case = waiting.pop()
            prompt = router.template.render(case.messages, case.candidates)
            reading = await read(router.engine, router.template, prompt, salt="", deadline=None, whole=True)
            prefilter = np.array(case.prefilter or [0.0] * len(case.candidates))
            targets = np.array([*case.targets, case.none_weight], dtype=np.float64)
            group = case.group or case.case_id
            scored[number] = Scored(group, reading.scores, prefilter, targets / targets.sum())
            done()

    await asyncio.gather(*(worker() for _ in range(TOGETHER)))
    return [scored[number] for number in range(len(cases))]


def loss(scale: Scale, scored: Sequence[Scored]) -> float:
    """Mean negative log-likelihood in nats: of the mass on right options, where several are right."""
    total = 0.0
    for case in scored:
        posterior = scale.probabilities(case.scores, len(case.prefilter), case.prefilter.tolist())
        total -= float(np.log(max(posterior[case.targets > 0].sum(), 1e-12)))
    return total / len(scored)


class _Table:
    """Cases as rows of equal length, so that the optimiser's thousand looks at them take seconds.

    Columns are the candidates, padded by scores of minus infinity, then none.
    """

    def __init__(self, scored: Sequence[Scored]) -> None:
        lengths = np.array([len(case.prefilter) for case in scored])
        shape = len(scored), int(lengths.max()) + 1
        self._scores, self._prefilter, right = np.full(shape, -np.inf), np.zeros(shape), np.zeros(shape, dtype=bool)
        for row, case in enumerate(scored):
            columns = [*range(len(case.prefilter)), -1]
            self._scores[row, columns] = case.scores
            self._prefilter[row, columns[:-1]] = case.prefilter
            right[row, columns] = case.targets > 0
        self._right = np.where(right, 0.0, -np.inf)
        self._lengths = np.searchsorted(LENGTHS, lengths, side="right") - 1

    def loss(self, temperature: float, biases: Floats, weight: float) -> float:
        """As `loss`, of the scale that these numbers make."""
        values = self._scores / temperature + weight * self._prefilter
        values[:, -1] += biases[self._lengths]
        each = np.logaddexp.reduce(values, axis=1) - np.logaddexp.reduce(values + self._right, axis=1)
        return float(np.minimum(each, -np.log(1e-12)).mean())


def fit_scale(scored: Sequence[Scored], *, blend: bool) -> Scale:
    """The scale of least loss. A normal prior of deviation 1 keeps a bias near 0 where few cases speak for it."""
    table, count = _Table(scored), len(LENGTHS)

    def objective(values: Floats) -> float:
        biases = values[1 : 1 + count]
        data = table.loss(float(np.exp(values[0])), biases, float(values[-1]) if blend else 0.0)
        return data + 0.5 * float((biases**2).sum()) / len(scored)

    bounds = [(-3, 3)] + [(-6, 6)] * count + [(0, 200)] * blend
    best = minimize(objective, np.zeros(len(bounds)), method="Powell", bounds=bounds).x
    return Scale(
        temperature=float(np.exp(best[0])),
        none_bias=tuple((length, float(bias)) for length, bias in zip(LENGTHS, best[1 : 1 + count], strict=True)),
        weight=float(best[-1]) if blend else 0.0,
    )


def conformal_thresholds(scale: Scale, scored: Sequence[Scored]) -> tuple[tuple[float, float], ...]:
    """For each coverage the mass a set must reach (split conformal prediction with adaptive sets, Romano et al. 2020).

    A case's score is the mass of the options more probable than its most probable right one: a set that must reach
    more than that mass holds it. The threshold is the (1 + 1/n)-corrected quantile of the scores, and a little.
    """
    masses = []
    for case in scored:
        posterior = scale.probabilities(case.scores, len(case.prefilter), case.prefilter.tolist())
        right = posterior[case.targets > 0].max()
        masses.append(float(posterior[posterior > right].sum()))
    ordered = np.sort(masses)
    ranks = [min(int(np.ceil(coverage * (len(ordered) + 1))), len(ordered)) for coverage in COVERAGES]
    return tuple((coverage, float(ordered[rank - 1]) + 1e-9) for coverage, rank in zip(COVERAGES, ranks, strict=True))


def split_by_group(scored: Sequence[Scored]) -> tuple[list[Scored], list[Scored]]:
    """Two halves that share no group, the same in every run."""
    halves: tuple[list[Scored], list[Scored]] = ([], [])
    for case in scored:
        halves[hashlib.blake2b(case.group.encode(), digest_size=1).digest()[0] % 2].append(case)
    return halves


@dataclass(frozen=True)
class Fitted:
    """A scale and how it does: mean loss in nats, of the raw scores and of the scale, on cases that did not fit it."""

    scale: Scale
    cases: int
    raw: float
    scaled: float

    def __str__(self) -> str:
        return f"{self.cases} cases, {self.raw:.3f} nats raw, {self.scaled:.3f} scaled"


def fit(scored: Sequence[Scored], *, blend: bool) -> Fitted:
    """A scale with its thresholds: the raw scores, the scaled or the blended ones, whichever loses least on cases that
    did not fit it.

    Raises:
        ValueError: too few cases to fit on.
    """
    fitting, checking = split_by_group(scored)
    if min(len(fitting), len(checking)) < FEWEST:
        raise ValueError(f"{len(scored)} cases are too few to calibrate on; give at least {4 * FEWEST}")
    scales = [Scale(), fit_scale(fitting, blend=False), *([fit_scale(fitting, blend=True)] if blend else [])]
    losses = [loss(scale, checking) for scale in scales]
    best = int(np.argmin(losses))
    scale = scales[best].model_copy(update={"conformal": conformal_thresholds(scales[best], checking)})
    return Fitted(scale, len(scored), losses[0], losses[best])


async def calibrate(
    router: Router, listed: Sequence[TrainingCase], kept: Sequence[TrainingCase], done: Callable[[], None]
) -> tuple[Calibration, dict[str, Fitted]]:
    """The calibration of a started router's adapter, and what each part was fitted on.

    Args:
        router: asked by its engine and template alone.
        listed: held-out cases whose list passes whole.
        kept: held-out cases with what a prefilter kept of everything, and its scores.
        done: called after each case.

    Raises:
        ValueError: too few cases.
    """
    fitted = {
        "listed": fit(await score(router, listed, done), blend=False),
        "kept": fit(await score(router, kept, done), blend=True),
    }
    return Calibration(plain=fitted["listed"].scale, blended=fitted["kept"].scale), fitted
