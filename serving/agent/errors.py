"""Errors of `execute` that carry what would make the next call right.

Knows candidates' ids and schemas. Does not know how an error is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.types import ConflictError, InvalidRequestError, NotFoundError


@dataclass(frozen=True, slots=True)
class Nearest:
    """A candidate that may have been meant, with what it takes."""

    id: str
    input_schema: Mapping[str, Any]


class MisnamedError(NotFoundError):
    """No candidate is named so. `nearest` are those that may have been meant."""

    def __init__(self, message: str, nearest: Sequence[Nearest]) -> None:
        super().__init__(message)
        self.nearest = tuple(nearest)


class UnfitArgumentsError(InvalidRequestError):
    """The arguments do not fit. `expected` is the candidate with its schema."""

    def __init__(self, message: str, expected: Nearest) -> None:
        super().__init__(message, "arguments")
        self.expected = expected


class RedescribedError(ConflictError):
    """The candidate is not what this thread was shown. `expected` is what it is now."""

    def __init__(self, message: str, expected: Nearest) -> None:
        super().__init__(message)
        self.expected = expected
