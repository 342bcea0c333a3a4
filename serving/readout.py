"""What an engine read, as one log-score for every candidate and for none.

Knows the three readouts: pointwise log-odds, listwise labels, and the tree of choices. Does not know calibration
(posterior.py) or how a prompt is worded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prompts import Prompt, Template
from serving.engine.base import ChoiceRequest, Engine, ScoreRequest
from serving.engine.trie import posterior_over_choices
from serving.types import EngineError


@dataclass(frozen=True, slots=True)
class Reading:
    """Log-scores (candidates + 1 where none is allowed, none last); a softmax over them is the raw posterior.

    `chosen` is set where the model wrote one choice and the others were not read: then only its score counts.
    """

    scores: NDArray[np.float64]
    prompt_tokens: int
    cached_tokens: int
    chosen: int | None = None


async def read(
    engine: Engine, template: Template, prompt: Prompt, *, salt: str, deadline: float | None, whole: bool
) -> Reading:
    """Ask the engine one question.

    Args:
        engine: scores token ids.
        template: what rendered `prompt`.
        prompt: the question.
        salt: keeps cached prefixes apart.
        deadline: `time.monotonic()` value after which the engine gives up.
        whole: whether every candidate's score is wanted; a generating adapter answers faster without.
    """
    if template.readout == "generate":
        return await _generated(engine, template, prompt, salt, deadline, whole)
    scores = await engine.score(ScoreRequest(prompt.prefix, prompt.continuations, prompt.labels, salt, deadline))
    logprobs = scores.logprobs
    values = logprobs[:, 0] - logprobs[:, 1] if template.readout == "pointwise" else logprobs[0]
    if not np.isfinite(values).all():
        raise EngineError("the engine answered with scores that are no finite numbers; its weights may be damaged")
    return Reading(values, scores.prompt_tokens, scores.cached_tokens)


async def _generated(
    engine: Engine, template: Template, prompt: Prompt, salt: str, deadline: float | None, whole: bool
) -> Reading:
    request = ChoiceRequest(
        prompt=[*prompt.prefix, *prompt.continuations[0]],
        choices=prompt.choices,
        choice_ids=template.tokenizer.texts(prompt.choices),
        end_token=template.end_token,
        cache_salt=salt,
        deadline=deadline,
    )
    if whole:
        values = await posterior_over_choices(engine, request)
        return Reading(values, prompt.tokens, 0)
    choice = await engine.choose(request)
    others = max(-np.expm1(choice.logprob), 1e-12) / max(len(prompt.choices) - 1, 1)
    values = np.full(len(prompt.choices), np.log(others))
    values[choice.position] = choice.logprob
    return Reading(values, choice.prompt_tokens, choice.cached_tokens, chosen=choice.position)
