"""Metrics against values worked out by hand."""

import math

import numpy as np
import pytest

from adapters.metrics import (
    RANKING_METRICS,
    auroc,
    brier,
    expected_calibration_error,
    interval,
    ranking_metrics,
    reliability,
    resampled_means,
    sampled_accuracy,
)


def of(ranking, *groups):
    """The metrics of one ranking."""
    return {name: values[0] for name, values in ranking_metrics([ranking], [[frozenset(g) for g in groups]]).items()}


def test_one_right_id_in_third_place():
    values = of(["x", "y", "gold", "z"], {"gold"})
    assert set(values) == set(RANKING_METRICS)
    assert values["hit@1"] == 0
    assert values["recall@5"] == values["recall@10"] == values["full@10"] == 1
    assert values["mrr@10"] == pytest.approx(1 / 3)
    assert values["ndcg@10"] == pytest.approx(1 / math.log2(4))


def test_any_of_several_right_ids_is_enough_and_a_second_adds_nothing():
    assert of(["b", "a"], {"a", "b"}) == of(["b", "x"], {"a", "b"})
    assert of(["b"], {"a", "b"})["recall@5"] == 1


def test_all_needed_ids_are_counted_apart():
    values = of(["a", "x", "b", "x2", "x3", "x4"], {"a"}, {"b"}, {"c"})
    assert values["hit@1"] == 1
    assert values["recall@5"] == pytest.approx(2 / 3)
    assert values["full@10"] == 0
    assert of([*"xyzuv", "a", "b", "c"], {"a"}, {"b"}, {"c"})["full@10"] == 1
    # Ideal: all three at the top.
    ideal = sum(1 / math.log2(rank + 1) for rank in (1, 2, 3))
    assert values["ndcg@10"] == pytest.approx((1 + 1 / math.log2(4)) / ideal)


def test_one_of_each_group_is_enough_and_its_twin_keeps_its_place():
    values = of(["a1", "a2", "b2"], {"a1", "a2"}, {"b1", "b2"})
    assert values["recall@5"] == values["full@10"] == 1
    ideal = 1 + 1 / math.log2(3)
    assert values["ndcg@10"] == pytest.approx((1 + 1 / math.log2(4)) / ideal)


def test_depths_differ():
    ranking = [f"x{i}" for i in range(7)] + ["a"] + [f"y{i}" for i in range(20)] + ["b"]
    values = of(ranking, {"a"}, {"b"})
    assert [values[f"recall@{k}"] for k in (5, 10, 50)] == [0, 0.5, 1]
    assert values["mrr@10"] == pytest.approx(1 / 8)


def test_an_empty_ranking_finds_nothing():
    assert set(of([], {"a"}).values()) == {0.0}
    assert all(len(values) == 0 for values in ranking_metrics([], []).values())


def test_order_of_many_rankings_is_kept():
    hits = [i % 3 == 0 for i in range(40)]
    values = ranking_metrics([["a"] if hit else ["x"] for hit in hits], [[frozenset({"a"})]] * 40)
    assert values["hit@1"].tolist() == hits


def test_intervals_hold_the_mean_shrink_with_cases_and_depend_only_on_the_seed():
    rng = np.random.default_rng(1)
    values = (rng.random(400) < 0.6).astype(float)[:, None]
    groups = [str(i) for i in range(400)]
    low, high = interval(resampled_means(values, groups, 0)[:, 0])
    assert low < values.mean() < high
    # The normal approximation of a proportion's interval.
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.6 * 0.4 / 400), rel=0.15)
    assert (low, high) == interval(resampled_means(values, groups, 0)[:, 0])
    few = interval(resampled_means(values[:40], groups[:40], 0)[:, 0])
    assert few[1] - few[0] > 2 * (high - low)


def test_cases_of_one_group_are_no_more_than_one():
    values = np.repeat((np.arange(20) % 2).astype(float), 30)[:, None]
    alone = interval(resampled_means(values, [str(i) for i in range(600)], 0)[:, 0])
    together = interval(resampled_means(values, [str(i // 30) for i in range(600)], 0)[:, 0])
    assert together[1] - together[0] > 4 * (alone[1] - alone[0])


def test_calibration_error_is_the_distance_of_confidence_and_accuracy():
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.3, 0.3])
    correct = np.array([1, 1, 1, 0, 0, 0], dtype=float)
    assert [(b.count, round(b.confidence, 6), b.accuracy) for b in reliability(confidence, correct)] == [
        (2, 0.3, 0.0),
        (4, 0.9, 0.75),
    ]
    assert expected_calibration_error(confidence, correct) == pytest.approx((2 * 0.3 + 4 * 0.15) / 6)
    assert brier(confidence, correct) == pytest.approx((3 * 0.01 + 0.81 + 2 * 0.09) / 6)
    assert expected_calibration_error(np.ones(3), np.ones(3)) == 0


def test_auroc_is_the_share_of_pairs_in_order():
    scores, positive = np.array([0.9, 0.8, 0.4, 0.3]), np.array([1, 0, 1, 0], dtype=float)
    value, (low, high) = auroc(scores, positive, list("abcd"), 0)
    assert value == pytest.approx(3 / 4)
    assert 0 <= low <= value <= high <= 1


def test_aurocs_interval_is_around_it_ties_included():
    rng = np.random.default_rng(2)
    positive = (np.arange(400) % 2).astype(float)
    scores = np.round(rng.normal(positive, 1.0), 1)
    value, (low, high) = auroc(scores, positive, [str(i) for i in range(400)], 0)
    # Hanley and McNeil 1982.
    one, both = value / (2 - value), 2 * value**2 / (1 + value)
    error = math.sqrt((value * (1 - value) + 199 * (one - value**2) + 199 * (both - value**2)) / 200**2)
    assert (low, high) == pytest.approx((value - 1.96 * error, value + 1.96 * error), abs=0.015)
    assert auroc(np.zeros(400), positive, [str(i) for i in range(400)], 0) == (0.5, (0.5, 0.5))


def test_sampling_follows_the_posterior():
    posterior, right = np.array([0.7, 0.2, 0.1]), np.array([1.0, 0.0, 0.0])
    accuracy = sampled_accuracy([posterior] * 2000, [right] * 2000, 3, np.random.default_rng)
    assert accuracy.shape == (3,)
    assert accuracy == pytest.approx([0.7] * 3, abs=0.04)
    assert len(set(accuracy.tolist())) == 3
