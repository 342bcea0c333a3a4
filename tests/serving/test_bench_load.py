import pytest

from serving.bench_load import Answers, numbers


def test_numbers_of_a_run() -> None:
    answers = Answers()
    for hundredths in range(100):
        answers.add(429, hundredths / 100)
    for seconds in (1.0, 2.0, 31.0):  # the last came after the deadline
        answers.add(200, seconds)
    answers.add(504, 30.0)
    answers.add(0, 0.1)
    answers.resident = [(10.0, 100.0), (40.0, 101.0), (70.0, 102.0)]
    answers.offered_per_s = 4.0
    found = numbers(answers, deadline_s=30.0)
    assert found == {
        "offered_per_s": 4.0,
        "status_none": 1,
        "status_200": 3,
        "status_429": 100,
        "status_504": 1,
        "refused_ms_p50": pytest.approx(500),
        "refused_ms_p99": pytest.approx(990),
        "accepted_in_time_ratio": 0.5,
        "late_ratio": 0.25,
        "rss_mb": 102.0,
        "rss_slope_mb_per_minute": pytest.approx(2.0),
    }
