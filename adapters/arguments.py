"""A call's arguments against its candidate's input schema.

Knows JSON Schema. Schemas come from strangers: nothing they refer to is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serving.validation import schema_validator


def valid(arguments: Any, schema: Mapping[str, Any]) -> bool:
    """Whether arguments are of the schema. What is no schema allows everything."""
    check = schema_validator(schema)
    return check is None or check.is_valid(arguments)


def without_empty(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without optional arguments that nothing spoke for: a constraint makes an LLM write every one."""
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    return {
        name: value for name, value in arguments.items() if name in needed or value not in ("", [], {}, 0, 0.0, False)
    }
