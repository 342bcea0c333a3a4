"""Untrusted JSON to typed values: strict parsing, and faults as InvalidRequestError with a path.

Knows JSON and pydantic models. Does not know which surface or file the JSON came from.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import jsonschema_rs
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json, to_json

from serving.cache import LRU
from serving.types import InvalidRequestError

logger = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

# What pydantic words for Python, worded for JSON.
_WANTED = {
    "missing": "is missing",
    "union_tag_not_found": "should be an object with a `type`",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dict_type": "should be an object",
    "list_type": "should be an array",
}
# Faults of which it is clear, or told already, what was given.
_COMPLETE = {"missing", "value_error", "too_short", "union_tag_not_found", "union_tag_invalid"}
_SUBJECT = re.compile(r"^(Input|String|List|Value error,) ")
_JSON_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
# JSON text of which a surface remembers what it read: about a hundred requests of 200 tools each.
REMEMBERED_BYTES = 8 * 2**20
# A caller's own words are quoted in a message up to this length.
_QUOTED_CHARACTERS = 40
# What a log says of a library's message, which may hold a caller's words.
_SHOWN_CHARACTERS = 200


def parse_json(data: bytes | str, what: str = "the body") -> Any:
    """The JSON value in `data`; of duplicate keys the last one counts.

    Strict where Python's own parser is not: NaN, lone surrogates, numbers of more than 4,300 digits and nesting
    beyond 200 levels are refused, so that nothing later can fail on them.

    Raises:
        InvalidRequestError: `data` is no such JSON; the message tells line and column.
    """
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(f"{what} is not valid JSON: {error}") from None


def parse_object(model: type[M], data: bytes | str) -> M:
    """The JSON object in `data` as a `model`; a field that the model does not have is an error.

    Raises:
        InvalidRequestError: as `parse_json` and `validated`.
    """
    value = parse_json(data)
    if isinstance(value, dict):
        known = model.model_fields.keys()
        # By hand, because pydantic would make an error for each of what may be a million unknown fields.
        unknown = next((key for key in value if key not in known), None)
        if unknown is not None:
            message = f"unknown field {_quoted(unknown)}; known are {', '.join(known)}"
            raise InvalidRequestError(message, unknown[:_QUOTED_CHARACTERS])
    return validated(model.model_validate, value)


def schema_validator(schema: Mapping[str, Any]) -> jsonschema_rs.Validator | None:
    """What checks values against a stranger's JSON Schema; nothing that it refers to is ever fetched.

    None where it is no JSON Schema, or needs another document.
    """
    try:
        return jsonschema_rs.validator_for(dict(schema), offline=True)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        logger.info("a schema is not checked here: %s", str(error)[:_SHOWN_CHARACTERS])
        return None


class Remembered(Generic[T]):
    """Reads a JSON value as `read` does, and remembers what it made of it: agents send the same tools each time.

    Args:
        read: makes something unchangeable of a parsed JSON value, the same of the same value.
        capacity: bytes of JSON text whose results are kept; a result takes several times as much.
    """

    def __init__(self, read: Callable[[Any], T], capacity: int) -> None:
        self._read = read
        self._known: LRU[bytes, tuple[T, int]] = LRU(capacity, lambda known: known[1])

    def __call__(self, value: Any, salt: str = "") -> T:
        """What `read` makes of `value`; raises as it does, every time. It is remembered for the same salt only."""
        text = to_json(value)
        key = hashlib.blake2b(salt.encode() + b"\n" + text, digest_size=32).digest()
        known = self._known.get(key)
        if known is None:
            known = self._read(value), len(text)
            self._known.put(key, known)
        return known[0]


def validated(validate: Callable[[Any], T], value: Any, where: str = "") -> T:
    """What pydantic's `validate` makes of `value`, whose path in the request is `where`.

    Raises:
        InvalidRequestError: `value` has another shape; `where` is the path of the first fault.
    """
    try:
        return validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        path, message = _fault(faults, value, where)
        raise InvalidRequestError(f"{path or 'the body'} {message}", path or None) from None


def _fault(faults: Sequence[ErrorDetails], value: Any, where: str) -> tuple[str, str]:
    """Path and message of the first fault; of a union's faults that of the alternative which fits furthest."""
    located = [(_location(fault, value), fault) for fault in faults]
    first = located[0][0]
    same = [(location, fault) for location, fault in located if location[: len(first)] == first]
    deepest = max(len(location) for location, _ in same)
    location, fault = next(item for item in same if len(item[0]) == deepest)
    wanted = [_wanted(other) for other_location, other in same if other_location == location]
    message = ", or ".join(dict.fromkeys(wanted))
    if fault["type"] not in _COMPLETE:
        message += f", not {_quoted(fault['input'])}"
    return _path(where, location), message


def _location(fault: ErrorDetails, value: Any) -> tuple[str | int, ...]:
    """The parts of a fault's location that lead into `value`; the rest are pydantic's names of alternatives."""
    parts: list[str | int] = []
    for part in fault["loc"]:
        try:
            value = value[part]
        except (LookupError, TypeError):
            continue
        parts.append(part)
    if fault["type"] == "missing":
        parts.append(fault["loc"][-1])
    return tuple(parts)


def _path(where: str, location: Sequence[str | int]) -> str:
    for part in location:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    return where


def _wanted(fault: ErrorDetails) -> str:
    if fault["type"] in _WANTED:
        return _WANTED[fault["type"]]
    if "expected_tags" in fault.get("ctx", {}):
        return f"should have a `type` of {fault['ctx']['expected_tags']}"
    return _SUBJECT.sub("", fault["msg"])


def _quoted(value: Any) -> str:
    """What was given: text and numbers themselves where they are short, of anything else only the kind."""
    if isinstance(value, str):
        shown = value[:_QUOTED_CHARACTERS]
        return repr(shown) if shown == value else f"{shown!r}..."
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)[:_QUOTED_CHARACTERS]
    return _JSON_NAMES.get(type(value), "that")
