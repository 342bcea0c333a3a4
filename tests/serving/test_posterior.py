"""Numbers in, probabilities and sets out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.posterior import Calibration, Scale, prediction_set

scores = st.lists(st.floats(-50, 50), min_size=1, max_size=30).map(np.array)


@given(scores=scores, temperature=st.floats(0.1, 10), weight=st.floats(0, 5))
def test_probabilities_sum_to_one_and_keep_the_order(scores: np.ndarray, temperature: float, weight: float) -> None:
    plain = Scale(temperature=temperature).probabilities(scores, len(scores))
    assert plain.sum() == pytest.approx(1)
    assert scores[np.argmax(plain)] == pytest.approx(scores.max(), abs=1e-6)
    same = [1.0] * len(scores)
    blended = Scale(weight=weight).probabilities(scores, len(scores), same)
    np.testing.assert_allclose(blended, Scale().probabilities(scores, len(scores)), atol=1e-9)


def test_the_prefilters_scores_count_only_where_it_ranked() -> None:
    calibration = Calibration(plain=Scale(temperature=2), blended=Scale(weight=3))
    scores, prefilter = np.array([2.0, 0.0, 0.0]), [0.0, 1.0]
    unfiltered = calibration.scale(filtered=False).probabilities(scores, 2, prefilter)
    np.testing.assert_allclose(np.log(unfiltered / unfiltered[2]), [1, 0, 0], atol=1e-9)
    filtered = calibration.scale(filtered=True).probabilities(scores, 2, prefilter)
    np.testing.assert_allclose(np.log(filtered / filtered[2]), [2, 3, 0], atol=1e-9)
    assert Calibration(plain=Scale(temperature=2)).scale(filtered=True) == Scale(temperature=2)


def test_the_none_bias_depends_on_the_number_of_candidates() -> None:
    scale = Scale(none_bias=((1, 0.0), (5, 2.0), (20, 4.0)))
    none = [
        scale.probabilities(np.zeros(count + 1), count)[-1] * (count + np.exp(bias))
        for count, bias in ((4, 0.0), (5, 2.0), (19, 2.0), (20, 4.0))
    ]
    np.testing.assert_allclose(none, np.exp([0.0, 2.0, 2.0, 4.0]))


def test_no_bias_where_none_is_not_allowed() -> None:
    np.testing.assert_allclose(Scale(none_bias=((1, 9.0),)).probabilities(np.zeros(4), 4), [0.25] * 4)


@given(scores=scores, coverage=st.floats(0.01, 0.99))
def test_the_set_is_the_smallest_that_reaches_its_mass(scores: np.ndarray, coverage: float) -> None:
    probabilities = Scale().probabilities(scores, len(scores))
    chosen = prediction_set(probabilities, coverage)
    assert probabilities[chosen].sum() >= coverage - 1e-9
    assert probabilities[chosen[:-1]].sum() < coverage
    assert probabilities[chosen].min() >= max(np.delete(probabilities, chosen), default=0)


def test_thresholds_are_taken_from_the_next_higher_fitted_coverage() -> None:
    scale = Scale(conformal=((0.8, 0.7), (0.9, 0.85)))
    assert scale.set_threshold(0.8) == 0.7
    assert scale.set_threshold(0.85) == 0.85
    assert scale.set_threshold(0.95) == 0.95  # beyond what was fitted: the model's word
    assert Scale().set_threshold(0.5) == 0.5


def test_an_unknown_constant_is_refused() -> None:
    with pytest.raises(ValueError, match="temprature"):
        Calibration.model_validate({"temprature": 2})
