"""Calibration on scores whose truth is known: the numbers come back, and what is promised holds."""

import numpy as np
import pytest

from adapters.calibrate import FEWEST, LENGTHS, Scored, _Table, fit, fit_scale, loss, split_by_group
from serving.posterior import Scale, prediction_set


def world(count, *, temperature=1.0, bias=0.0, weight=0.0, seed=0, candidates=6):
    """Cases whose right option is drawn from a known posterior; the model's log-scores are `temperature` times it."""
    rng = np.random.default_rng(seed)
    truth = Scale(temperature=temperature, none_bias=((1, bias),), weight=weight)
    cases = []
    for number in range(count):
        scores = temperature * rng.normal(0, 2, candidates + 1)
        prefilter = rng.uniform(0, 0.2, candidates)
        posterior = truth.probabilities(scores, candidates, prefilter)
        targets = np.zeros(candidates + 1)
        targets[rng.choice(candidates + 1, p=posterior)] = 1
        cases.append(Scored(f"group{number // 3}", scores, prefilter, targets))
    return cases


def test_the_fit_finds_what_made_the_answers():
    scale = fit_scale(world(3000, temperature=2.5, bias=1.5, weight=12.0), blend=True)
    assert scale.temperature == pytest.approx(2.5, rel=0.1)
    assert dict(scale.none_bias)[LENGTHS[1]] == pytest.approx(1.5, abs=0.25)
    assert scale.weight == pytest.approx(12.0, abs=2.5)


def test_a_bias_of_which_no_case_speaks_stays_zero():
    scale = fit_scale(world(300, candidates=6), blend=False)
    assert [round(bias, 2) for length, bias in scale.none_bias if length in (1, 8)] == [0, 0]


def test_the_blend_is_kept_only_where_it_helps_cases_that_did_not_fit_it():
    assert fit(world(2000, weight=12.0), blend=True).scale.weight > 5
    useless = fit(world(2000), blend=True)
    assert loss(useless.scale, world(2000, seed=1)) <= loss(Scale(), world(2000, seed=1)) + 0.01


def test_the_optimisers_table_loses_what_the_scale_loses():
    cases = [*world(50, candidates=3), *world(50, candidates=9)]
    scale = Scale(temperature=0.7, none_bias=((1, 0.4), (4, -1.0), (8, 2.0)), weight=3.0)
    biases = np.array([bias for _, bias in scale.none_bias])
    assert _Table(cases).loss(0.7, biases, 3.0) == pytest.approx(loss(scale, cases), abs=1e-9)


def test_scaling_helps_and_says_by_how_much():
    fitted = fit(world(2000, temperature=3.0), blend=False)
    assert fitted.scaled < fitted.raw - 0.1
    assert "2000 cases" in str(fitted)


def test_sets_hold_a_right_option_as_often_as_promised():
    scale = fit(world(4000, temperature=3.0), blend=False).scale
    fresh = world(4000, temperature=3.0, seed=7)
    for coverage, _ in scale.conformal:
        held = 0
        for case in fresh:
            posterior = scale.probabilities(case.scores, len(case.prefilter))
            held += any(case.targets[i] for i in prediction_set(posterior, scale.set_threshold(coverage)))
        assert held / len(fresh) == pytest.approx(coverage, abs=0.03)


def test_halves_share_no_group():
    one, other = split_by_group(world(400))
    assert one
    assert other
    assert not {case.group for case in one} & {case.group for case in other}


def test_too_few_cases_are_refused():
    with pytest.raises(ValueError, match=f"at least {4 * FEWEST}"):
        fit(world(60), blend=False)
