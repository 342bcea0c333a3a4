"""Ranking by a regular expression. Knows search texts, what is searched, and how a line begins."""

from __future__ import annotations

import numpy as np

from serving.prefilter.base import Allowed, Ranking, SearchText, within
from serving.prefilter.lines import compiled
from serving.prefilter.pool import Searchable

# What stands around a name in a line: type and server, and the parameters.
_BEFORE_NAME, _AFTER_NAME = r"(?:.*[ .])?", r"(?:\(.*)?"


class RegexRanker:
    """Finds what a regular expression matches: 3 where that is the whole name, 2 where it is in the name or the
    parameters, 1 where it is elsewhere.

    The pattern is the search text's first part, the query.
    """

    name = "regex"

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to give back."""

    async def rank(self, text: SearchText, pool: Searchable, allowed: Allowed = None) -> Ranking:
        """See `Ranker.rank`.

        Raises:
            InvalidRequestError: the query is no regular expression.
        """
        scores = np.zeros(len(pool), dtype=np.float32)
        if text.parts:
            pattern = compiled(text.parts[0][0])
            name = compiled(text.parts[0][0], _BEFORE_NAME, _AFTER_NAME)
            heads, whole = await pool.lines()
            for lines, wanted in ((heads, name), (heads, pattern), (whole, pattern)):
                rows = lines.having(wanted)
                scores[rows[rows < len(scores)]] += 1
        return Ranking(within(scores, allowed))
