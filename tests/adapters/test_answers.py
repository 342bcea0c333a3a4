"""Answers that outlive an interruption."""

import dataclasses

import pytest

from adapters.answers import Answer, AnswerStore, answer_key
from adapters.questions import read_set

ANSWERS = [
    Answer("key one", ("a", "b"), 2, (0.5, 0.25), 0.25, "a", 0.75, ("a", "b"), True, 120, 3.5),
    Answer("key two", (), prediction_set=()),
    Answer("key three", ("é\u2028",), chosen="é\u2028"),
]


def stored(path, answers):
    store = AnswerStore(path)
    for answer in answers:
        store.add(answer)
    store.close()


def test_what_was_added_is_read_again(tmp_path):
    path = tmp_path / "deep/answers.jsonl"
    stored(path, ANSWERS)
    store = AnswerStore(path)
    assert [store.get(answer.key) for answer in ANSWERS] == ANSWERS
    assert store.get("other") is None
    store.close()


def test_a_line_that_was_cut_is_dropped_and_the_file_goes_on(tmp_path):
    path = tmp_path / "answers.jsonl"
    stored(path, ANSWERS[:2])
    path.write_bytes(path.read_bytes()[:-9])
    stored(path, ANSWERS[2:])
    store = AnswerStore(path)
    assert [store.get(answer.key) for answer in ANSWERS] == [ANSWERS[0], None, ANSWERS[2]]
    store.close()


def test_another_file_is_not_written_to(tmp_path):
    path = tmp_path / "notes.jsonl"
    path.write_text('{"note": "mine"}\n')
    with pytest.raises(ValueError, match=r"notes\.jsonl:1 is no answer"):
        AnswerStore(path)
    assert path.read_text() == '{"note": "mine"}\n'


def test_without_a_file_answers_stay_in_memory():
    store = AnswerStore()
    store.add(ANSWERS[0])
    assert store.get("key one") == ANSWERS[0]
    store.close()


def test_a_key_belongs_to_method_question_case_and_code(world):
    set_ = read_set(world / "sets", "tasks")
    question = set_.main(set_.cases[0], 5)
    twin = dataclasses.replace(question, case=dataclasses.replace(question.case, case_id="twin"))
    keys = [
        answer_key("m", question, "code"),
        answer_key("other", question, "code"),
        answer_key("m", twin, "code"),
        answer_key("m", set_.main(set_.cases[0], 6), "code"),
        answer_key("m", question, "other code"),
    ]
    assert len(set(keys)) == len(keys)
    assert answer_key("m", question, "code") == keys[0]
