"""Ranking by shared words. Knows search texts and what is searched."""

from __future__ import annotations

from serving.prefilter.base import Allowed, Ranking, SearchText, within
from serving.prefilter.pool import Field, Searchable


class BM25Ranker:
    """Ranks by BM25."""

    name = "bm25"

    def __init__(self, field: Field = "both") -> None:
        self._field = field

    async def start(self) -> None:
        """Nothing to load."""

    async def close(self) -> None:
        """Nothing to give back."""

    async def rank(self, text: SearchText, pool: Searchable, allowed: Allowed = None) -> Ranking:
        """See `Ranker.rank`."""
        postings = await pool.postings(self._field)
        return Ranking(within(postings.scores(text.parts), allowed))
