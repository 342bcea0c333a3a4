"""The in-process engine and real vLLM read the same posterior, from the bare model and with a LoRA adapter."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from prompts import Candidate, Message, Prompt, PromptTokenizer, Template
from serving.config import Config
from serving.engine.base import Engine
from serving.engine.local import LocalEngine
from serving.engine.vllm import VllmEngine
from serving.readout import read
from tests.vllm.conftest import Server

pytestmark = pytest.mark.vllm

PROMPTS = 40
CANDIDATES = 4
# The most that two bfloat16 engines may differ by, at the 95th percentile of all probabilities.
TOLERANCE = 0.03
READOUTS = ("listwise", "pointwise")
ADAPTED = (False, True)

_VERBS = ("book", "find", "cancel", "list", "send", "update", "translate", "summarise", "convert", "delete")
_NOUNS = ("flight", "hotel", "weather", "invoice", "email", "calendar", "song", "recipe", "stock", "map")

Posteriors = dict[tuple[str, str, bool], NDArray[np.float64]]


def _question(number: int) -> tuple[list[Message], list[Candidate]]:
    """Candidates that look alike and a query that fits none well: a model is unsure."""
    choose = random.Random(number)
    pairs = choose.sample(list(itertools.product(_VERBS, _NOUNS)), CANDIDATES + 1)
    (verb, noun), *others = pairs
    candidates = [Candidate(f"{v}.{n}", f"{v}_{n}", f"{v.capitalize()} a {n} for the user") for v, n in others]
    return [Message("user", f"Please {verb} the {noun} I asked for on day {number}")], candidates


async def _posteriors(engine: Engine, template: Template, prompts: Sequence[Prompt]) -> NDArray[np.float64]:
    """Shape (prompts, candidates + 1), asked all at once."""
    readings = await asyncio.gather(
        *(read(engine, template, prompt, salt="", deadline=None, whole=True) for prompt in prompts)
    )
    scores = np.stack([reading.scores for reading in readings])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def posteriors(smollm2_server: Server, smollm2: Path) -> Posteriors:
    """By engine, readout and whether the adapter is on."""
    tokenizer = PromptTokenizer(smollm2)
    questions = [_question(number) for number in range(PROMPTS)]

    async def ask(kind: type[LocalEngine] | type[VllmEngine], config: Config, templates: Sequence[Template]):
        engine = kind(config)
        try:
            await engine.start()
            for template in templates:
                prompts = [template.render(*question) for question in questions]
                yield template.readout, await _posteriors(engine, template, prompts)
        finally:
            await engine.close()

    async def ask_all() -> Posteriors:
        templates = [Template(tokenizer, readout=readout) for readout in READOUTS]
        found: Posteriors = {}
        for adapted in ADAPTED:
            config = smollm2_server.profile if adapted else smollm2_server.model(adapter=None)
            for name, kind in (("local", LocalEngine), ("vllm", VllmEngine)):
                async for readout, values in ask(kind, config, templates):
                    found[name, readout, adapted] = values
        return found

    return asyncio.run(ask_all())


@pytest.mark.parametrize("adapted", ADAPTED)
@pytest.mark.parametrize("readout", READOUTS)
def test_local_and_vllm_agree(posteriors: Posteriors, readout: str, adapted: bool) -> None:
    local, vllm = posteriors["local", readout, adapted], posteriors["vllm", readout, adapted]
    assert local.shape == vllm.shape == (PROMPTS, CANDIDATES + 1)
    entropy = -(local * np.log(local)).sum(axis=1) / np.log(CANDIDATES + 1)
    assert entropy.mean() > 0.5, "the prompts are too easy to show a difference"
    assert np.percentile(np.abs(local - vllm), 95) <= TOLERANCE
    second, first = np.sort(local, axis=1)[:, -2:].T
    clear = first - second > TOLERANCE
    assert clear.sum() >= PROMPTS // 4
    np.testing.assert_array_equal(local.argmax(axis=1)[clear], vllm.argmax(axis=1)[clear])


@pytest.mark.parametrize("readout", READOUTS)
def test_the_adapter_changes_what_vllm_answers(posteriors: Posteriors, readout: str) -> None:
    """A LoRA adapter can load, be listed, and change nothing; this one moves probabilities well past the tolerance."""
    moved = np.abs(posteriors["vllm", readout, True] - posteriors["vllm", readout, False])
    assert np.percentile(moved, 95) > 2 * TOLERANCE
