"""From log-scores to calibrated probabilities and prediction sets.

Knows numbers only. The constants come from an adapter's manifest, where `adapters/calibrate.py` fitted them on
development cases; the defaults change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field


class Scale(BaseModel):
    """Temperature scaling (Guo et al. 2017) with a bias for none.

    Attributes:
        temperature: divides the log-scores.
        none_bias: added to none's scaled log-score, by number of candidates: pairs of (at least this many
            candidates, bias); the last pair that applies counts.
        weight: of the prefilter's scores, added to the candidates' scaled log-scores. 0 leaves them out.
        conformal: pairs of (coverage, threshold): the smallest set whose probabilities reach `threshold` holds a
            right answer with that coverage on data exchangeable with the calibration set.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=1.0, gt=0)
    none_bias: tuple[tuple[int, float], ...] = ()
    weight: float = 0.0
    conformal: tuple[tuple[float, float], ...] = ()

    def probabilities(
        self, scores: NDArray[np.float64], candidates: int, prefilter_scores: Sequence[float] = ()
    ) -> NDArray[np.float64]:
        """Softmax of the scaled scores (candidates first, then none where there is one more); sums to 1."""
        values = scores / self.temperature
        if self.weight:
            values[:candidates] += self.weight * np.asarray(prefilter_scores)
        if len(values) > candidates:
            values[candidates] += max((pair for pair in self.none_bias if pair[0] <= candidates), default=(0, 0.0))[1]
        exponentials = np.exp(values - values.max())
        posterior: NDArray[np.float64] = exponentials / exponentials.sum()
        return posterior

    def set_threshold(self, coverage: float) -> float:
        """Probability mass that a set must reach for this coverage.

        Without fitted thresholds the model is taken at its word: the mass is the coverage. Between two fitted
        coverages the higher one is used, so that the promise holds.
        """
        return min((mass for fitted, mass in self.conformal if fitted >= coverage), default=coverage)


class Calibration(BaseModel):
    """How raw log-scores become probabilities and sets.

    Attributes:
        plain: where all candidates reached the model without a prefilter.
        blended: where a prefilter ranked them first; None scales those as `plain`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    plain: Scale = Scale()
    blended: Scale | None = None

    def scale(self, *, filtered: bool) -> Scale:
        """What applies to candidates that a prefilter kept, or to a list that passed whole."""
        return self.blended if filtered and self.blended else self.plain


def prediction_set(probabilities: NDArray[np.float64], threshold: float) -> list[int]:
    """Positions of the smallest set whose probability reaches `threshold`, most probable first."""
    order = np.argsort(-probabilities, kind="stable")
    total = np.cumsum(probabilities[order])
    count = int(np.searchsorted(total, threshold - 1e-12)) + 1
    return [int(position) for position in order[:count]]
