"""The prefilter's policy: what text is searched for, what always passes, when nothing is filtered.

Knows requests and rankers. The rankers (lexical, dense, and their fusion) only rank texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.types import PrefilterReport, RouteRequest


@dataclass(frozen=True, slots=True)
class Kept:
    """What passed.

    Attributes:
        positions: positions in `request.candidates`, best first.
        scores: the ranker's score of each; all 0 where nothing was filtered.
        report: what was done, for the answer.
        embedding_ms: the part of the time that went into embedding the query.
    """

    positions: Sequence[int]
    scores: Sequence[float]
    report: PrefilterReport
    embedding_ms: float = 0.0


class Prefilter(Protocol):
    """Bounds a request's candidates to at most `request.k` (or the profile's k), pinned ones included."""

    async def select(self, request: RouteRequest) -> Kept:
        """Raises InvalidRequestError when more candidates are pinned than may pass."""
        ...
