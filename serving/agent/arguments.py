"""What a model meant by its arguments, and whether they fit a candidate's schema.

Knows JSON, JSON Schema and the mistakes that models make with `execute`. Does not know the catalogue or any upstream.
Only what is unambiguous is mended; everything else is answered with what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jsonschema_rs

from serving.cache import LRU
from serving.catalog.shapes import NO_PARAMETERS
from serving.types import InvalidRequestError
from serving.validation import parse_json, schema_validator

# Other words for the name of a candidate and for its arguments, as hosts and models know them from elsewhere.
_NAMES = ("candidate_id", "tool_name", "candidate", "tool", "name", "id")
_ARGUMENTS = ("arguments", "args", "parameters", "params", "input", "tool_input")
_OWN = {"thread"}
# Compiled schemas that are remembered; each takes some kilobytes.
_COMPILED = 1_000
# An error names at most this many faults; a model corrects the first ones first.
_FAULTS = 5
_QUOTED_CHARACTERS = 200
# What an agent takes, whose card says nothing of arguments.
AGENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "minLength": 1, "description": "What the agent is to do."},
        "task_id": {"type": "string", "description": "To answer what an earlier task of it asks."},
        "context_id": {"type": "string", "description": "To go on with an earlier conversation."},
    },
    "required": ["message"],
}


@dataclass(frozen=True, slots=True)
class Execution:
    """A call as it was meant. `candidate` is still a name to resolve."""

    candidate: str
    arguments: dict[str, Any]
    thread: str | None


def read_execution(given: Mapping[str, Any]) -> Execution:
    """What the arguments of `execute` mean.

    The name may have another word, or stand with the arguments in `arguments`; these may be JSON text, or stand beside
    the name.

    Raises:
        InvalidRequestError: there is no name, or the arguments are no object.
    """
    thread = given.get("thread")
    key = _first(given, _ARGUMENTS)
    arguments = as_object(given[key], key) if key else {}
    name_key = _first(given, _NAMES, str)
    if name_key is None:
        inner = _first(arguments, _NAMES[:4], str)
        if inner is None:
            raise InvalidRequestError(
                'there is no candidate_id; call execute with {"candidate_id": what route returned, '
                '"arguments": {...} as its input_schema says, "thread": the handle}',
                "candidate_id",
            )
        name = arguments[inner]
        nested = _first(arguments, _ARGUMENTS)
        thread = thread or arguments.get("thread")
        rest = {other: value for other, value in arguments.items() if other not in {inner, *_OWN}}
        arguments = as_object(arguments[nested], nested) if nested else rest
    else:
        name = given[name_key]
        if key is None:  # the arguments stand beside the name
            arguments = {other: value for other, value in given.items() if other not in {name_key, *_OWN}}
        elif arguments.get("tool_name") == name:
            nested = _first(arguments, _ARGUMENTS)
            arguments = as_object(arguments[nested], nested) if nested else arguments
    return Execution(name, arguments, thread if isinstance(thread, str) and thread else None)


def as_object(value: Any, where: str) -> dict[str, Any]:
    """The object that `value` is, or that it is the JSON text of; nothing at all is an empty one.

    Raises:
        InvalidRequestError: it is something else.
    """
    if isinstance(value, str) and value.strip():
        value = parse_json(value, where)
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where} should be a JSON object, not {_quoted(value)}", where)
    return value


def _first(values: Mapping[str, Any], words: tuple[str, ...], kind: type | None = None) -> str | None:
    return next((word for word in words if word in values and (kind is None or isinstance(values[word], kind))), None)


class Schemas:
    """Validates arguments. A reference is followed within its schema only: nothing is ever fetched."""

    def __init__(self) -> None:
        self._compiled: LRU[str, jsonschema_rs.Validator] = LRU(_COMPILED, lambda _: 1)

    def fitting(self, arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they fit the schema: as they are, or out of one more wrapper that it knows nothing of.

        A schema that is none, or that refers to another document, is not checked here: the upstream checks.

        Raises:
            InvalidRequestError: they do not fit; the message tells where and why.
        """
        validator = self._validator(schema)
        if validator is None:
            return arguments
        faults = list(islice(validator.iter_errors(arguments), _FAULTS))
        if not faults:
            return arguments
        for inner in self._unwrapped(arguments, schema):
            if validator.is_valid(inner):
                return inner
        told = "; ".join(f"{_path(fault.instance_path)}: {_cut(fault.message)}" for fault in faults)
        raise InvalidRequestError(told, "arguments")

    @staticmethod
    def _unwrapped(arguments: dict[str, Any], schema: Mapping[str, Any]) -> list[dict[str, Any]]:
        known = schema.get("properties")
        key = _first(arguments, _ARGUMENTS)
        if key is None or (isinstance(known, Mapping) and key in known) or set(arguments) - {key, *_NAMES}:
            return []
        try:
            return [as_object(arguments[key], key)]
        except InvalidRequestError:
            return []

    def _validator(self, schema: Mapping[str, Any]) -> jsonschema_rs.Validator | None:
        key = json.dumps(schema)
        held = self._compiled.get(key)
        if held is None:
            held = schema_validator(schema)
            if held is not None:
                self._compiled.put(key, held)
        return held


def shown_schema(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The schema that a caller is shown: what an agent takes where it is one, and never nothing."""
    return AGENT_SCHEMA if kind == "agent" else dict(schema) or NO_PARAMETERS


def _path(parts: list[str | int]) -> str:
    return "arguments" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _quoted(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}..."
