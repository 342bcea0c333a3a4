"""Regular expressions over many lines, in linear time whatever the expression.

Knows a pattern and texts of one line each. The engine is RE2, which has no backtracking: no pattern can make it hang.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import re2
from numpy.typing import NDArray

from serving.types import InvalidRequestError

# What a caller may send, and what RE2 may build of it.
PATTERN_CHARACTERS = 1_000
MEMORY_BYTES = 16 * 2**20


def compiled(pattern: str, before: str = ".*?", after: str = ".*") -> re2._Regexp:
    """A pattern to search lines with, whatever the case, and what of a line may stand before and after it.

    Raises:
        InvalidRequestError: RE2 does not take it.
    """
    if len(pattern) > PATTERN_CHARACTERS:
        raise InvalidRequestError(
            f"the pattern has {len(pattern)} characters; at most {PATTERN_CHARACTERS} are taken", "query"
        )
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.max_mem = MEMORY_BYTES
    options.never_nl = True
    try:
        re2.compile(pattern, options)
        # One match for each line that has one, and none across lines.
        return re2.compile(f"(?m)^{before}(?:{pattern}){after}$", options)
    except re2.error as error:
        reason = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        message = f"the pattern {pattern[:100]!r} is no regular expression: {reason}"
        raise InvalidRequestError(message, "query") from None


class Lines:
    """Texts of one line each, one behind the other, so that one call searches all of them."""

    def __init__(self) -> None:
        self._starts = np.zeros(0, dtype=np.int64)
        self._all = b""

    def add(self, texts: Sequence[str]) -> None:
        """Lines behind those there are."""
        encoded = [text.encode() + b"\n" for text in texts]
        starts = len(self._all) + np.cumsum([0, *map(len, encoded)])[:-1]
        self._starts = np.concatenate([self._starts, starts])
        self._all += b"".join(encoded)

    def __len__(self) -> int:
        return len(self._starts)

    def having(self, pattern: re2._Regexp) -> NDArray[np.intp]:
        """Numbers of the lines that match."""
        found = np.fromiter((match.start() for match in pattern.finditer(self._all)), np.int64)
        rows: NDArray[np.intp] = np.searchsorted(self._starts, found, side="right") - 1
        return rows
