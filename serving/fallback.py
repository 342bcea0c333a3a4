"""Degraded mode: what the prefilter finds best, while no model can be asked.

Knows the prefilter. Its scores are no probabilities: the decision is marked as degraded, by its model's name as well.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from serving.prefilter.base import Kept, Prefilter
from serving.types import Decision, Ranked, RouteRequest


async def prefilters_best(prefilter: Prefilter, request: RouteRequest, kept: Kept, started: float) -> Decision:
    """The best of what was kept, and none where nothing speaks for any.

    Args:
        prefilter: ranks what it had not ranked, because there was little of it.
        request: the question.
        kept: what the prefilter passed.
        started: `time.perf_counter()` value of when the decision began.

    Raises: as `Prefilter.search`.
    """
    first = kept.candidates[:1]
    if not kept.filtered:
        kept = await prefilter.search(replace(request, pinned=frozenset()))
    scores = np.maximum(np.asarray(kept.scores, dtype=np.float64), 0.0)
    total = float(scores.sum())
    rows = [row for row in np.argsort(-scores, kind="stable") if scores[row] > 0]
    ranking = [Ranked(kept.candidates[row], float(scores[row]) / total) for row in rows]
    if not ranking and not request.allow_none:
        ranking = [Ranked(candidate, 1.0) for candidate in first]
    return Decision(
        chosen=ranking[0] if ranking else None,
        none_probability=0.0 if ranking else 1.0,
        ranking=ranking,
        # No smaller set is known to hold a right candidate.
        prediction_set=None if request.coverage is None else tuple(ranked.candidate.id for ranked in ranking),
        prefilter=kept.report,
        truncated=(),
        prompt_tokens=0,
        cached_tokens=0,
        model=f"prefilter/{kept.report.method}",
        timings_ms={"total": (time.perf_counter() - started) * 1e3},
        degraded=True,
    )
