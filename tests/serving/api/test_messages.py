from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.messages import messages_from
from serving.types import InvalidRequestError, Message, ToolCall, Truncation


def test_openai_conversation() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Lisbon?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lisbon"}'}},
                {"id": "2", "type": "custom", "custom": {"name": "run", "input": "print()"}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "sunny"}]},
        {"role": "tool", "tool_call_id": "2", "content": "done"},
        {"role": "assistant", "content": None, "refusal": "No.", "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": "result"},
    ]
    assert messages_from(items) == (
        (
            Message("system", "Be brief."),
            Message("user", "Weather\nin Lisbon?"),
            Message("assistant", "", (ToolCall("weather", '{"city": "Lisbon"}'), ToolCall("run", "print()"))),
            Message("tool", "sunny", name="weather"),
            Message("tool", "done", name="run"),
            Message("assistant", "No.", (ToolCall("old", "{}"),)),
            Message("tool", "result", name="old"),
        ),
        [],
    )


def test_history_of_ours() -> None:
    items = [
        {"role": "assistant", "content": "", "tool_calls": [{"name": "a/b", "arguments": '{"x": 1}'}, {"name": "c"}]},
        {"role": "assistant", "tool_calls": [{"name": "d", "arguments": {"y": "ü"}}]},
        {"role": "tool", "name": "a/b", "content": "ok"},
    ]
    assert messages_from(items)[0] == (
        Message("assistant", "", (ToolCall("a/b", '{"x": 1}'), ToolCall("c", ""))),
        Message("assistant", "", (ToolCall("d", '{"y": "ü"}'),)),
        Message("tool", "ok", name="a/b"),
    )


def test_a_name_given_counts_more_than_the_id_it_answers() -> None:
    items = [
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a"}}]},
        {"role": "tool", "tool_call_id": "1", "name": "b"},
        {"role": "tool", "tool_call_id": "unknown", "content": "x"},
        {"role": "user", "name": "Ada", "content": "hi"},
    ]
    assert [message.name for message in messages_from(items)[0]] == [None, "b", None, None]


def test_what_is_no_text_leaves_a_marker_and_is_reported() -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    messages, truncated = messages_from([{"role": "user", "content": parts}])
    assert messages == (Message("user", "What is this?\n[image_url]\n[input_audio]"),)
    assert truncated == [Truncation("messages[0].content[1]", 0, 0), Truncation("messages[0].content[2]", 0, 0)]


@pytest.mark.parametrize(
    ("item", "where"),
    [
        ("hi", "messages[0]"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": "robot"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].name"),
        ({"role": "assistant", "tool_calls": [{"custom": "x"}]}, "messages[0].tool_calls[0].custom"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"name": "x", "arguments": 3}]}, "messages[0].tool_calls[0].arguments"),
    ],
)
def test_faults_have_a_path(item: Any, where: str) -> None:
    with pytest.raises(InvalidRequestError) as fault:
        messages_from([item])
    assert fault.value.where == where


KEYS = ["role", "content", "tool_calls", "function", "name", "arguments", "id", "tool_call_id", "type", "text"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["user", "assistant", "tool", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(VALUES | st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES), max_size=5))
def test_anything_else_is_refused_and_nothing_else_is_raised(items: Any) -> None:
    where = "messages"
    try:
        messages, _ = messages_from(items)
    except InvalidRequestError as fault:
        where = fault.where or ""
    else:
        assert len(messages) == len(items)
    assert where.startswith("messages")
