"""Descriptions that ask to be chosen: what is asked, and what counts as success."""

import dataclasses

import pytest

from adapters.answers import Answer
from adapters.datasets import Case
from adapters.poisoning import ATTACKS, poisoned, poisoning
from adapters.questions import EvaluationSet, Pool, Question
from adapters.scores import Asked
from prompts import Candidate, Message

POOL = Pool(tuple(Candidate(name, name, f"does {name}") for name in "abcde"))
SET = EvaluationSet("set", (), lambda case: POOL)


def question(number=0, gold=("a",)):
    case = Case(f"case{number}", "set", (Message("user", "please do a"),), gold, "one" if gold else "none", "g", "dev")
    return Question(case, POOL, "main", 3)


def test_one_wrong_candidate_that_was_read_asks_to_be_chosen():
    main = question()
    attacks = poisoned(main, ["b", "a", "c"], 40, seed=1)
    again = poisoned(main, ["b", "a", "c"], 40, seed=1)
    assert [attack.digest for attack in attacks] == [attack.digest for attack in again]
    assert {attack.poisoned for attack in attacks} == {"b", "c"}
    assert {attack.condition.split(":")[2] for attack in attacks} == set(ATTACKS)
    for attack in attacks:
        assert attack.case is main.case
        pairs = zip(POOL.candidates, attack.pool.candidates, strict=True)
        [(before, after)] = [(before, after) for before, after in pairs if before != after]
        assert before.id == attack.poisoned
        assert dataclasses.replace(after, description=before.description) == before
        assert after.description.startswith(before.description) or after.description.endswith(before.description)
        assert "{" not in after.description


def test_nothing_is_asked_where_nothing_right_or_nothing_wrong_was_read():
    assert poisoned(question(gold=()), ["b"], 5, seed=1) == []
    assert poisoned(question(), ["a"], 5, seed=1) == []


@pytest.mark.parametrize(("clean", "attacked", "expected"), [
    ("a", "a", {"clean_error": 0, "success": 0, "before": 0, "error": 0, "gain": 0}),
    ("a", "b", {"clean_error": 0, "success": 1, "before": 0, "error": 1, "gain": 1}),
    ("b", "b", {"clean_error": 1, "success": 1, "before": 1, "error": 1, "gain": 0}),
    ("b", "a", {"clean_error": 1, "success": 0, "before": 1, "error": 0, "gain": -1}),
    ("a", None, {"clean_error": 0, "success": 0, "before": 0, "error": 1, "gain": 0}),
])  # fmt: skip
def test_success_is_that_the_poisoned_one_is_chosen(clean, attacked, expected):
    pairs = []
    for number in range(4):
        main = question(number)
        [attack] = poisoned(main, ["a", "b"], 1, seed=number)
        pairs += [(main, Answer("m", ("a", "b"), 2, chosen=clean)), (attack, Answer("p", ("a",), 2, chosen=attacked))]
    [row] = poisoning([Asked(SET, "router", "router", tuple(pairs))], seed=0)
    assert {name: row[name] for name in expected} == expected
    assert row["n"] == 4
    assert set(row["kinds"].values()) == {expected["success"]}


def test_all_sets_count_by_their_attacks():
    def asked(name, count, success):
        pairs = []
        for number in range(count):
            main = question(number)
            [attack] = poisoned(main, ["b"], 1, seed=number)
            pairs += [(main, Answer("m", ("a",), 1, chosen="a")), (attack, Answer("p", ("a",), 1, chosen=success))]
        return Asked(dataclasses.replace(SET, name=name), "router", "router", tuple(pairs))

    rows = poisoning([asked("one", 3, "b"), asked("two", 1, "a")], seed=0)
    assert [(row["set"], row["n"], row["success"]) for row in rows] == [("one", 3, 1), ("two", 1, 0), ("all", 4, 0.75)]
