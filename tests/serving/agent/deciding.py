"""A router that is no model: it decides by the words that a task and a candidate's name share.

It stands behind the real Router's interface and chooses from the real catalogue through its real filters; only the
decision is made up, so that tests know it.
"""

from __future__ import annotations

import re

import numpy as np

from serving.catalog.catalogs import Catalogs
from serving.catalog.store import Store
from serving.types import Decision, PrefilterReport, Ranked, RouteRequest


def catalogs_at(database: str) -> Catalogs:
    return Catalogs(Store(database), None, "none", poll_s=60)


class WordRouter:
    """Remembers what it was asked."""

    def __init__(self, catalogs: Catalogs) -> None:
        self.catalogs = catalogs
        self.asked: list[RouteRequest] = []

    async def start(self) -> None:
        await self.catalogs.start()

    async def close(self) -> None:
        await self.catalogs.close()

    async def route(self, request: RouteRequest) -> Decision:
        self.asked.append(request)
        index = await self.catalogs.get(request.catalog or "")
        rows = np.flatnonzero(index.allowed(request)).tolist()
        found = await index.fetch(rows)
        said = set(re.findall(r"[a-z]+", request.messages[-1].content.lower()))
        shared = {at: len(said & set(re.findall(r"[a-z]+", found[at].name.lower()))) for at in rows}
        order = sorted(rows, key=lambda at: (-shared[at], found[at].id))
        weights = [2.0 ** shared[at] - 1 + 0.01 for at in order]
        none = 0.5
        total = sum(weights) + none
        ranking = tuple(Ranked(found[at], weight / total) for at, weight in zip(order, weights, strict=True))
        fits = bool(order) and shared[order[0]] > 0
        return Decision(
            chosen=ranking[0] if fits else None,
            none_probability=none / total,
            ranking=ranking[:10],
            prediction_set=None,
            prefilter=PrefilterReport("words", len(rows), len(ranking)),
            truncated=(),
            prompt_tokens=0,
            cached_tokens=0,
            model="words",
        )
