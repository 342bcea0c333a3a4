import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from serving.types import InvalidRequestError
from serving.validation import Remembered, parse_json, parse_object, validated


class Inner(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str


class Outer(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    number: int | None = Field(default=None, ge=1)
    either: str | list[Inner] | None = None


@pytest.mark.parametrize(
    "text",
    ["", " ", "\x00", "NaN", '{"a": NaN}', "[Infinity]", '"\\ud800"', '{"\\udfff": 1}', "[" * 1000 + "]" * 1000,
     "9" * 5000, "{} {}", "[1,]", "{'a': 1}", b"\xff", b'"\xed\xa0\x80"'],
)  # fmt: skip
def test_what_is_no_strict_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidRequestError, match="the body is not valid JSON"):
        parse_json(text)


def test_of_duplicate_keys_the_last_counts() -> None:
    assert parse_json('{"a": 1, "a": 2}') == {"a": 2}


@given(st.binary() | st.text())
def test_parsing_raises_nothing_else(data: bytes | str) -> None:
    with contextlib.suppress(InvalidRequestError):
        parse_json(data)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("[]", None, "the body should be an object, not an array"),
        ("null", None, "the body should be an object, not null"),
        ('{"nummer": 1}', "nummer", "unknown field 'nummer'; known are number, either"),
        ('{"number": 0}', "number", "number should be greater than or equal to 1, not 0"),
        ('{"number": "1"}', "number", "number should be a valid integer, not '1'"),
        ('{"number": true}', "number", "number should be a valid integer, not a boolean"),
        ('{"either": 5}', "either", "either should be a valid string, or should be an array, not 5"),
        ('{"either": [{"name": "x"}, {}]}', "either[1].name", "either[1].name is missing"),
        ('{"either": [{"name": {}}]}', "either[0].name", "either[0].name should be a valid string, not an object"),
    ],
)
def test_a_fault_says_where_and_what(text: str, where: str | None, message: str) -> None:
    with pytest.raises(InvalidRequestError) as fault:
        parse_object(Outer, text)
    assert (fault.value.where, str(fault.value)) == (where, message)


def test_a_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidRequestError) as fault:
        parse_object(Outer, '{"number": "%s", "either": null}' % ("x" * 100_000))
    assert len(str(fault.value)) < 200


def test_paths_begin_where_the_caller_says() -> None:
    with pytest.raises(InvalidRequestError) as fault:
        validated(Inner.model_validate, {"name": 1}, "tools[3]")
    assert fault.value.where == "tools[3].name"


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["number", "either", "name", "str", "list[Inner]"]), inner), max_leaves=8))  # fmt: skip
def test_validation_raises_nothing_else(value: Any) -> None:
    with contextlib.suppress(InvalidRequestError):
        validated(Outer.model_validate, value)


def test_the_same_json_is_read_once() -> None:
    seen: list[Any] = []

    def read(value: Any) -> tuple[Any, ...]:
        seen.append(value)
        return tuple(value)

    remembered = Remembered(read, 100)
    assert remembered([1, "a"]) is remembered([1, "a"])
    for other in ([1.0, "a"], [True, "a"], ["1", "a"], ["a", 1]):  # equal in Python or in parts, and not the same
        assert remembered(other) == tuple(other)
    assert len(seen) == 5
    remembered(["x" * 200])  # more than is kept
    remembered(["x" * 200])
    assert len(seen) == 7


def test_a_fault_is_told_every_time() -> None:
    remembered = Remembered(lambda value: validated(Inner.model_validate, value, "here"), 100)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="name is missing"):
            remembered({})
