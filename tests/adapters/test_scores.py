"""From answers to rows: answers written by hand, scores worked out by hand."""

import pytest

from adapters import behaviour, scores
from adapters.answers import Answer
from adapters.datasets import Case
from adapters.questions import EvaluationSet, Pool, Question
from adapters.scores import Asked
from prompts import Candidate, Message

POOL = Pool(tuple(Candidate(id_, id_) for id_ in "abcdef"))
NO_GOLD = Pool(POOL.candidates[1:])


def case(number, gold=("a",), **fields):
    fields = {"group": f"g{number}", "split": "test", "messages": (Message("user", "ask"),), **fields}
    return Case(f"case{number}", "set", gold=tuple(gold), gold_mode="one" if gold else "none", **fields)


def pair(
    number, ranking, *, condition="main", pool=POOL, k=3, none=None, chosen="first", gold=("a",), fields=None, **answer
):
    """A question and its answer; `ranking` is text, a letter for each id."""
    question = Question(case(number, gold, **(fields or {})), pool, condition, k)
    chosen = (ranking[0] if ranking else None) if chosen == "first" else chosen
    return question, Answer(f"{condition}{number}", tuple(ranking), none_probability=none, chosen=chosen, **answer)


def asked(pairs, method="router", kind="router", name="set"):
    return Asked(EvaluationSet(name, tuple(q.case for q, _ in pairs), lambda _: POOL), method, kind, tuple(pairs))


def test_the_main_row():
    history = {"messages": (Message("user", "x"), Message("assistant", "y"), Message("user", "z"))}
    pairs = [
        pair(0, "abcdef", kept=3, probabilities=(0.5, 0.2, 0.1), none=0.2, prompt_tokens=100, ms=10.0),
        pair(1, "bacdef", kept=3, probabilities=(0.5, 0.2, 0.1), none=0.2, prompt_tokens=200, ms=30.0, fields=history),
        pair(2, "abcdef", kept=3, probabilities=(0.3, 0.2, 0.1), none=0.4, chosen=None,
             fields={**history, "repeats_last_call": True, "split": "late"}),
        pair(3, "bcdefa", kept=3, probabilities=(0.5, 0.2, 0.1), none=0.2),
        pair(4, "bcd", kept=3, gold=(), none=0.9, chosen=None),
        pair(5, "bcd", kept=3, gold=(), none=0.1),
    ]  # fmt: skip
    row = scores.result(asked(pairs), seed=0)
    assert (row["set"], row["method"], row["split"], row["n"]) == ("set", "router", "late,test", 4)
    assert row["hit@1"] == 0.5
    assert row["accuracy"] == 0.25
    assert row["recall@5"] == 0.75
    assert row["recall@10"] == row["full@10"] == 1
    assert row["gold_kept"] == 0.75
    assert (row["n_history"], row["hit@1_history"]) == (2, 0.5)
    assert (row["n_repeats"], row["hit@1_repeats"]) == (1, 1.0)
    assert (row["n_others"], row["hit@1_others"]) == (3, pytest.approx(1 / 3))
    assert (row["n_none"], row["none_accuracy"]) == (2, 0.5)
    assert row["by_split"] == {"late": {"n": 1, "hit@1": 1.0}, "test": {"n": 3, "hit@1": pytest.approx(1 / 3)}}
    assert row["prompt_tokens"] == 50
    low, high = row["intervals"]["hit@1"]
    assert 0 <= low < 0.5 < high <= 1


def test_a_set_without_gold_has_only_its_none_row():
    row = scores.result(asked([pair(0, "bc", gold=(), none=0.9, chosen=None, kept=2)]), seed=0)
    assert (row["n"], row["hit@1"], row["n_none"], row["none_accuracy"]) == (0, None, 1, 1.0)
    row = scores.result(asked([pair(0, "bc", gold=())], kind="retrieval"), seed=0)
    assert row["none_accuracy"] is None


def test_averages_weigh_sets_alike():
    big = asked([pair(i, "a") for i in range(90)], name="big")
    small = asked([pair(i, "b") for i in range(10)], name="small")
    [row] = scores.averages([big, small], seed=0)
    assert (row["sets"], row["n"], row["hit@1"]) == (2, 100, 0.5)


def hits(text, method, kind="retrieval", name="set", fields=None):
    """An answer for each letter: 1 where gold comes first."""
    return asked([pair(i, "a" if c == "1" else "b", fields=fields) for i, c in enumerate(text)], method, kind, name)


def test_a_router_is_compared_with_the_best_retrieval_of_each_set():
    everything = [
        hits("1111100000", "bm25"),
        hits("1111111000", "dense"),
        hits("1111111110", "router", "router"),
        hits("1111111110", "bm25", name="other"),
        hits("1111000000", "dense", name="other"),
        hits("1111111110", "router", "router", name="other"),
        hits("1" * 10, "repeat-last", "rule"),
    ]
    rows = scores.comparisons(everything, seed=0)
    assert [(row["set"], row["baseline"], row["n"]) for row in rows] == [
        ("set", "dense", 10),
        ("other", "bm25", 10),
        ("average", "best retrieval", 2),
    ]
    assert [row["hit@1_difference"] for row in rows] == pytest.approx([0.2, 0.0, 0.1])
    # Case by case: no case is lost, so no sample of cases shows a loss.
    assert rows[0]["interval"][0] == 0
    assert rows[1]["interval"] == (0, 0)


def test_a_router_is_compared_with_itself_without_history_where_there_is_any():
    history = {"messages": (Message("user", "x"), Message("user", "y"))}
    everything = [
        hits("1110", "router", "router", fields=history),
        hits("1000", "router-no-history", "router", fields=history),
        hits("1111", "router", "router", name="flat"),
        hits("1111", "router-no-history", "router", name="flat"),
    ]
    [row] = scores.comparisons(everything, seed=0)
    assert (row["set"], row["against"], row["n"], row["hit@1_difference"]) == ("set", "router-no-history", 4, 0.5)


def test_none_is_right_where_no_right_candidate_was_read():
    assert scores.right(pair(0, "bcdefa", kept=3, chosen=None))
    assert not scores.right(pair(0, "abcdef", kept=3, chosen=None))
    assert scores.right(pair(0, "abcdef", kept=3))
    assert not scores.right(pair(0, "bacdef", kept=3))


def test_calibration_and_coverage():
    pairs = [
        pair(0, "abc", kept=3, probabilities=(0.8, 0.1, 0.0), none=0.1, prediction_set=tuple("ab")),
        pair(1, "bac", kept=3, probabilities=(0.8, 0.1, 0.0), none=0.1, prediction_set=tuple("b"), set_has_none=True),
        pair(2, "bcda", kept=3, probabilities=(0.1, 0.1, 0.0), none=0.8, chosen=None, set_has_none=True),
        pair(3, "abcdef", kept=6, k=6, probabilities=(0.8, 0.1, 0.1, 0, 0, 0), none=0.0, prediction_set=tuple("abc")),
    ]
    rows = behaviour.calibration([asked(pairs)])
    assert [(row["length"], row["n"]) for row in rows] == [("all", 4), ("2-4", 3), ("5-8", 1)]
    everything = rows[0]
    assert everything["accuracy"] == 0.75
    assert everything["confidence"] == pytest.approx(0.8)
    assert everything["ece"] == pytest.approx(0.05)
    assert everything["coverage"] == 0.75
    assert everything["set_size"] == pytest.approx((2 + 2 + 1 + 3) / 4)
    assert everything["bins"] == [[4, pytest.approx(0.8), 0.75]]
    assert behaviour.calibration([asked([pair(0, "abc")], kind="retrieval")]) == []


def test_abstention_compares_present_and_absent():
    def asks(number, present, absent, **said):
        return [
            pair(number, "abc", condition="present", score=present, none=1 - present, **said),
            pair(number, "bcd", condition="absent", pool=NO_GOLD, score=absent, none=1 - absent, chosen=None),
        ]

    router = asked([*asks(0, 0.9, 0.2), *asks(1, 0.4, 0.5, chosen=None)])
    [row] = behaviour.abstention([router], seed=0)
    assert (row["kind"], row["n_present"], row["n_absent"], row["auroc"]) == ("removed", 2, 2, 0.75)
    assert (row["accuracy"], row["false_none"], row["missed_none"]) == (0.75, 0.5, 0.0)


def test_single_candidates_are_compared_across_sets_of_one_method():
    alone, only = Pool(POOL.candidates[:1]), Pool(POOL.candidates[1:2])
    positives = asked([pair(i, "a", condition="single", pool=alone, score=0.9, none=0.1) for i in range(3)], name="yes")
    negatives = asked([pair(i, "b", condition="single", pool=only, gold=(), score=0.2, none=0.8, chosen=None)
                       for i in range(3)], name="no")  # fmt: skip
    other = asked(positives.pairs, method="base", name="yes")
    [row] = behaviour.abstention([positives, other, negatives], seed=0)
    assert (row["set"], row["method"], row["kind"], row["auroc"]) == ("no / yes", "router", "single", 1.0)


def test_order_counts_changed_answers_and_slots():
    def shown(number, order, chosen, *probabilities):
        pool = Pool(tuple(Candidate(id_, id_) for id_ in order))
        ranking = sorted(order, key=lambda id_: id_ != chosen)
        return pair(number, ranking, condition=f"order:{order}", pool=pool, kept=3, probabilities=probabilities)

    pairs = [
        shown(0, "abc", "a", 0.6, 0.2, 0.1),
        shown(0, "cba", "c", 0.5, 0.3, 0.1),
        shown(1, "abc", "a", 0.6, 0.2, 0.1),
        shown(1, "cab", "a", 0.5, 0.2, 0.1),
    ]
    [row] = behaviour.order([asked(pairs)])
    assert (row["n"], row["orders"], row["flips"]) == (2, 2, 0.5)
    assert row["moved"] == pytest.approx(0.5)  # a: .6, then .1
    assert row["slots"] == [[0, 2, 1.0], [1, 1, 1.0], [2, 1, 0.0]]


def test_a_sweep_has_a_row_for_each_length_and_way_of_reading():
    pairs = [
        pair(0, "ab", condition="sweep:2", k=2, prompt_tokens=10, ms=1.0),
        pair(1, "ba", condition="sweep:2", k=2, prompt_tokens=30, ms=3.0),
        pair(0, "ab", condition="sweep-k:6", k=2, chosen=None),
    ]
    rows = behaviour.sweeps([asked(pairs)])
    assert [(r["K"], r["read"], r["n"], r["hit@1"], r["accuracy"]) for r in rows] == [
        ("2", "all", 2, 0.5, 0.5),
        ("6", "2", 1, 1.0, 0.0),
    ]
    assert rows[0]["prompt_tokens"] == 20
    assert rows[0]["ms_per_query"] == 2


def test_repeats_are_drawn_from_a_posterior_and_counted_where_asked():
    router = asked([pair(i, "ab", kept=2, probabilities=(0.6, 0.3), none=0.1) for i in range(500)])
    [row] = behaviour.repeats([router], 5, seed=0)
    assert (row["runs"], row["n"]) == (5, 500)
    assert row["accuracy"] == pytest.approx(0.6, abs=0.05)
    assert row["deviation"] > 0
    assert behaviour.repeats([router], 5, seed=0) == [row]
    assert behaviour.repeats([router], 0, seed=0) == []
    answers = [(run, number) for run in range(3) for number in range(2)]
    again = [pair(n, "a" if n < run else "b", condition=f"repeat:{run}") for run, n in answers]
    chat = asked([pair(0, "a"), pair(1, "a"), *again], method="openai:m@http://h", kind="chat")
    [row] = behaviour.repeats([chat], 3, seed=0)
    assert (row["runs"], row["accuracy"]) == (3, 0.5)
