from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.catalog.shapes import candidates_from
from serving.types import Candidate, InvalidRequestError

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function", "function": {"name": "weather", "description": "Forecast", "parameters": SCHEMA}},
        {"type": "function", "name": "weather", "description": "Forecast", "parameters": SCHEMA, "strict": True},
        {"name": "weather", "description": "Forecast", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "weather", "description": "Forecast", "input_schema": SCHEMA},
        {"name": "weather", "description": "Forecast", "inputSchema": SCHEMA, "_meta": {"x": 1}, "title": "Weather"},
        {"id": "weather", "type": "tool", "server": "", "name": "weather", "description": "Forecast",
         "input_schema": SCHEMA},
    ],
    ids=["openai", "openai-responses", "anthropic", "anthropic-custom", "mcp", "catalogue"],
)  # fmt: skip
def test_every_shape_gives_the_same_candidate(item: dict[str, Any]) -> None:
    assert candidates_from([item]) == (Candidate("weather", "weather", "Forecast", input_schema=SCHEMA),)


def test_custom_tool_has_no_parameters() -> None:
    item = {"type": "custom", "custom": {"name": "run", "description": "Run code", "format": {"type": "text"}}}
    assert candidates_from([item]) == (Candidate("run", "run", "Run code"),)


def test_mcp_tool_keeps_annotations_and_output_schema() -> None:
    (candidate,) = candidates_from([{"name": "a", "annotations": {"readOnlyHint": True}, "outputSchema": SCHEMA}])
    assert candidate.annotations == {"readOnlyHint": True}
    assert candidate.output_schema == SCHEMA


def test_catalogue_line_keeps_all_its_fields() -> None:
    line = {"id": "7/x", "type": "agent", "server": "s", "name": "x", "tools": ["a", "b"], "tags": ["t"]}
    assert candidates_from([line]) == (Candidate("7/x", "x", type="agent", server="s", tools=("a", "b"), tags=("t",)),)


def test_absent_and_null_fields_are_empty() -> None:
    nulls = dict.fromkeys(["id", "server", "description", "input_schema", "parameters", "annotations", "tools", "tags"])
    assert candidates_from([{"name": "x", **nulls}]) == candidates_from([{"name": "x"}]) == (Candidate("x", "x"),)


def test_server_lines_are_no_candidates() -> None:
    items = [{"id": "s", "type": "server", "name": "s", "description": "about"}, {"id": "s", "name": "t"}]
    assert [candidate.name for candidate in candidates_from(items)] == ["t"]


def test_name_is_opaque() -> None:
    names = ["x" * 300, "天气 / forecast", "a.b", "A.B", "\x00", "<|im_end|>"]
    assert [candidate.id for candidate in candidates_from([{"name": name} for name in names])] == names


def test_duplicate_ids_name_both_positions() -> None:
    with pytest.raises(InvalidRequestError, match=r"candidates\[1\] and candidates\[3\] have the same id 'b'") as fault:
        candidates_from([{"name": "a"}, {"name": "b"}, {"type": "server", "name": "s"}, {"id": "b", "name": "c"}])
    assert fault.value.where == "candidates[3].id"


@pytest.mark.parametrize(
    ("items", "where", "message"),
    [
        ({"name": "x"}, "candidates", "candidates should be an array, not an object"),
        ([{"name": "x"}, 5], "candidates[1]", "candidates[1] should be an object, not 5"),
        ([{"description": "x"}], "candidates[0].name", "candidates[0].name is missing"),
        ([{"name": ""}], "candidates[0].name", "candidates[0].name should have at least 1 character, not ''"),
        ([{"name": 7}], "candidates[0].name", "candidates[0].name should be a valid string, not 7"),
        ([{"name": "x", "id": ""}], "candidates[0].id", "candidates[0].id should have at least 1 character, not ''"),
        (
            [{"name": "x", "inputSchema": []}],
            "candidates[0].inputSchema",
            "candidates[0].inputSchema should be an object, not an array",
        ),
        (
            [{"type": "function", "function": {"name": "x", "parameters": True}}],
            "candidates[0].function.parameters",
            "candidates[0].function.parameters should be an object, not a boolean",
        ),
        ([{"function": {}}], "candidates[0].function.name", "candidates[0].function.name is missing"),
        (
            [{"name": "x", "type": "web_search"}],
            "candidates[0].type",
            "candidates[0].type should be 'tool', 'agent', 'skill', 'server', 'function' or 'custom', not 'web_search'",
        ),
        ([{"name": "x", "tools": ["a", None]}], "candidates[0].tools[1]", "candidates[0].tools[1] should be a valid"),
    ],
)
def test_faults_have_a_path(items: Any, where: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as fault:
        candidates_from(items)
    assert fault.value.where == where
    assert str(fault.value).startswith(message)


KEYS = ["id", "type", "server", "name", "description", "input_schema", "inputSchema", "parameters", "function",
        "custom", "tools", "tags", "annotations"]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["agent", "function"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=6),
    max_leaves=12,
)


@given(VALUES | st.lists(VALUES, max_size=5))
def test_anything_else_is_refused_and_nothing_else_is_raised(items: Any) -> None:
    where, candidates = "candidates", ()
    try:
        candidates = candidates_from(items)
    except InvalidRequestError as fault:
        where = fault.where or ""
    assert where.startswith("candidates")
    assert len({candidate.id for candidate in candidates}) == len(candidates)
    assert all(isinstance(candidate.parameters, list) for candidate in candidates)
