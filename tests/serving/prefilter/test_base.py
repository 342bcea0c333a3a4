"""What is searched for of a conversation."""

from prompts import Message, ToolCall
from serving.prefilter.base import (
    EARLIER_CHARACTERS,
    EARLIER_WEIGHT,
    OBSERVATION_CHARACTERS,
    QUERY_CHARACTERS,
    SENTENCES,
    search_text,
)

CONVERSATION = (
    Message("system", "You are the assistant of a travel agency."),
    Message("user", "hello"),
    Message("assistant", "What can I do?"),
    Message("user", "find me a flight to Oslo"),
    Message("assistant", "Looking.", (ToolCall("flights.search", '{"to": "OSL"}'),)),
    Message("tool", "SK 1478, 129 euros", name="flights.search"),
)


# What is searched for


def test_query_then_observation_then_history_newest_first():
    assert search_text(CONVERSATION, 2).parts == (
        ("find me a flight to Oslo", 1.0),
        ("flights.search SK 1478, 129 euros", 1.0),
        ("flights.search Looking.", EARLIER_WEIGHT),
        ("What can I do?", EARLIER_WEIGHT),
    )


def test_the_text_of_all_parts_begins_with_the_query():
    assert search_text(CONVERSATION, 9).text.splitlines() == [
        "find me a flight to Oslo",
        "flights.search SK 1478, 129 euros",
        "flights.search Looking.",
        "What can I do?",
        "hello",
    ]


def test_query_observation_and_the_whole_history_are_three_voices():
    assert search_text(CONVERSATION, 2).voices == (
        ("find me a flight to Oslo", 1.0),
        ("flights.search SK 1478, 129 euros", 1.0),
        ("flights.search Looking.\nWhat can I do?", 2 * EARLIER_WEIGHT),
    )
    assert search_text(CONVERSATION[:2], 4).voices == (("hello", 1.0),)
    assert search_text((Message("user", ""),), 4).voices == (("", 1.0),)


def test_without_history_query_and_observation_stay():
    assert [text for text, _ in search_text(CONVERSATION, 0).parts] == [
        "find me a flight to Oslo",
        "flights.search SK 1478, 129 euros",
    ]


def test_a_query_that_is_the_last_message_is_searched_for_once():
    assert search_text(CONVERSATION[:4], 1).parts == (
        ("find me a flight to Oslo", 1.0),
        ("What can I do?", EARLIER_WEIGHT),
    )


def test_without_a_user_the_observation_is_searched_for():
    assert search_text((Message("system", "Summarise."), Message("tool", "12 rows")), 4).parts == (("12 rows", 1.0),)
    assert search_text((Message("system", "Summarise."),), 4).parts == (("Summarise.", 1.0),)


def test_a_task_of_several_sentences_has_them_as_subtasks():
    for query, sentences in (
        (
            "Find a flight to Oslo. Then book it!  Is it v2.5?",
            ("Find a flight to Oslo.", "Then book it!", "Is it v2.5?"),
        ),
        ("查询天气。预订航班", ("查询天气。", "预订航班")),
        ("first thing\n\n- second  thing", ("first thing", "- second thing")),
        ("Find a flight to Oslo.", ()),
        ("", ()),
    ):
        text = search_text((Message("user", query),), 4)
        assert text.subtasks == sentences
        assert text.parts == (((" ".join(query.split()), 1.0),) if query else ())
    assert len(search_text((Message("user", "No. " * 100),), 4).subtasks) == SENTENCES
    assert search_text((Message("tool", "One. Two."),), 4).subtasks == ()


def test_subtasks_that_are_given_are_taken_as_they_are_within_bounds():
    messages = (Message("user", "One. Two."),)
    assert search_text(messages, 4, ("Do this. And that.", " ", "other\nthing")).subtasks == (
        "Do this. And that.",
        "other thing",
    )
    assert len(search_text(messages, 4, ("x" * 10_000,)).subtasks[0]) <= QUERY_CHARACTERS + 5


def test_a_call_without_content_is_searched_for_by_its_name():
    messages = (Message("user", "go"), Message("assistant", "", (ToolCall("a.b", "{}"), ToolCall("c"))))
    assert search_text(messages, 4).text == "go\na.b c"


def test_silence_is_no_part():
    assert search_text((Message("user", " \n"), Message("assistant", "")), 4).parts == ()
    assert search_text((Message("user", ""),), 4).text == ""


def test_long_messages_are_searched_for_by_both_ends():
    long = "start " + "x" * 100_000 + " end"
    messages = (
        Message("assistant", long, tuple(ToolCall("n" * 10_000) for _ in range(500))),
        Message("user", long),
        Message("tool", long),
    )
    parts = [text for text, _ in search_text(messages, 4).parts]
    assert all("start" in part and part.endswith("end") for part in parts)
    marks = len(" ... ")
    assert len(parts[0]) <= QUERY_CHARACTERS + marks
    assert len(parts[1]) <= OBSERVATION_CHARACTERS + marks
    assert len(parts[2]) <= EARLIER_CHARACTERS + marks + 8 * 65
