"""The in-process engine against the plain model, float32 and random weights: the same numbers, however it is run."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from serving.config import Config, EngineConfig, ModelConfig
from serving.engine.base import ChoiceRequest, ScoreRequest
from serving.engine.local import LocalEngine
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError

pytestmark = pytest.mark.anyio

PREFIX = list(range(100, 160))
BRANCHES = [[7, 8, 9], [11], [13, 14, 15, 16, 17]]
LABELS = [1000, 2000, 3000]


def config(
    path: Path, adapter: Path | None = None, chunk: int = 512, cache_mb: int = 64, dtype: str = "float32"
) -> Config:
    return Config(
        model=ModelConfig(path=str(path), adapter=str(adapter) if adapter else None),
        engine=EngineConfig(dtype=dtype, chunk_tokens=chunk, prefix_cache_mb=cache_mb, threads=1),
    )


def reference(path: Path, sequence: list[int], labels: list[int] = LABELS) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([sequence])).logits[0, -1].log_softmax(-1)[labels].double().numpy()


@pytest.fixture
async def start() -> AsyncIterator[Callable[[Config], "asyncio.Future[LocalEngine]"]]:
    engines: list[LocalEngine] = []

    async def started(settings: Config) -> LocalEngine:
        engines.append(LocalEngine(settings))
        await engines[-1].start()
        return engines[-1]

    yield started
    for engine in engines:
        await engine.close()


@pytest.mark.parametrize("chunk", [16, 64, 512])
async def test_branches_see_the_prefix_and_themselves_only(start, tiny_llama: Path, chunk: int) -> None:
    engine = await start(config(tiny_llama, chunk=chunk))
    scores = await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))
    expected = np.stack([reference(tiny_llama, [*PREFIX, *branch]) for branch in BRANCHES])
    np.testing.assert_allclose(scores.logprobs, expected, atol=1e-4)
    np.testing.assert_allclose(scores.mass, np.exp(expected).sum(1), atol=1e-5)
    assert scores.prompt_tokens == len(PREFIX) + 9


async def test_in_bfloat16_the_numbers_are_as_near_as_its_digits(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama, dtype="bfloat16", chunk=64))
    scores = await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))
    expected = np.stack([reference(tiny_llama, [*PREFIX, *branch]) for branch in BRANCHES])
    np.testing.assert_allclose(scores.logprobs, expected, atol=0.05)


@pytest.mark.parametrize("chunk", [16, 512])
async def test_one_continuation_is_one_sequence(start, tiny_llama: Path, chunk: int) -> None:
    engine = await start(config(tiny_llama, chunk=chunk))
    tail = list(range(300, 340))
    scores = await engine.score(ScoreRequest(PREFIX, [tail], LABELS))
    np.testing.assert_allclose(scores.logprobs[0], reference(tiny_llama, [*PREFIX, *tail]), atol=1e-4)


async def test_a_known_prefix_is_not_computed_again_and_changes_nothing(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama))
    fresh = await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))
    before = engine.counters.tokens
    again = await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))
    assert (fresh.cached_tokens, again.cached_tokens) == (0, len(PREFIX))
    assert engine.counters.tokens - before == 9
    np.testing.assert_allclose(again.logprobs, fresh.logprobs, atol=1e-4)
    longer = [*PREFIX, 5, 6]
    grown = await engine.score(ScoreRequest(longer, BRANCHES, LABELS))
    assert grown.cached_tokens == len(PREFIX)
    np.testing.assert_allclose(grown.logprobs[1], reference(tiny_llama, [*longer, 11]), atol=1e-4)
    forked = await engine.score(ScoreRequest([*PREFIX[:40], 9], BRANCHES, LABELS))
    assert forked.cached_tokens == 40
    np.testing.assert_allclose(forked.logprobs[1], reference(tiny_llama, [*PREFIX[:40], 9, 11]), atol=1e-4)


async def test_salts_keep_prefixes_apart(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama))
    await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS, cache_salt="one"))
    other = await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS, cache_salt="two"))
    assert other.cached_tokens == 0


async def test_the_prefix_cache_is_bounded(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama, cache_mb=1))
    token_bytes = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, float32
    held = 2**20 // token_bytes
    first = [3] * (held // 2)
    for token in (3, 4, 5):
        await engine.score(ScoreRequest([token] * (held // 2), BRANCHES, LABELS))
    again = await engine.score(ScoreRequest(first, BRANCHES, LABELS))
    assert again.cached_tokens == 0  # two newer ones filled the megabyte


async def test_concurrent_requests_share_passes_and_stay_apart(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama))
    before = engine.counters.passes
    requests = [ScoreRequest([n, *PREFIX[:8]], BRANCHES, LABELS) for n in range(20, 40)]
    answers = await asyncio.gather(*(engine.score(request) for request in requests))
    assert engine.counters.passes - before < len(requests)
    for request, scores in zip(requests, answers, strict=True):
        expected = reference(tiny_llama, [*request.prefix, *BRANCHES[2]])
        np.testing.assert_allclose(scores.logprobs[2], expected, atol=1e-4)


async def test_cancelled_work_stops_at_the_next_chunk_and_queued_work_never_runs(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama, chunk=16))
    running = asyncio.create_task(engine.score(ScoreRequest([1] * 8000, BRANCHES, LABELS)))
    queued = [asyncio.create_task(engine.score(ScoreRequest([2 + n] * 50, BRANCHES, LABELS))) for n in range(5)]
    begun = engine.counters.passes
    while engine.counters.passes < begun + 3:
        await asyncio.sleep(0)
    for task in (running, *queued):
        task.cancel()
    await asyncio.gather(running, *queued, return_exceptions=True)
    stopped = engine.counters.tokens
    scores = await engine.score(ScoreRequest([99] * 20, BRANCHES, LABELS))
    assert engine.counters.jobs_dropped_running == 1
    assert engine.counters.jobs_dropped_waiting == 5
    # At most the pass that was running when the callers left, beside the new question's own tokens.
    assert engine.counters.tokens - stopped <= 16 + scores.prompt_tokens
    assert engine.counters.tokens < 8000


async def test_a_deadline_ends_the_wait_and_the_work(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama, chunk=16))
    with pytest.raises(EngineTimeoutError, match="deadline"):
        await engine.score(ScoreRequest([1] * 8000, BRANCHES, LABELS, deadline=time.monotonic() + 0.05))
    await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))
    assert engine.counters.jobs_dropped_running == 1


async def test_impossible_questions_are_errors_and_the_engine_lives_on(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama))
    with pytest.raises(EngineError, match="9000 tokens; this model reads at most 8192"):
        await engine.score(ScoreRequest([1] * 8999, [[1]], LABELS))
    with pytest.raises(EngineError, match="token id 60000 is outside"):
        await engine.score(ScoreRequest([60000], [[1]], LABELS))
    assert (await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))).logprobs.shape == (3, 3)


async def test_closing_answers_whoever_waits(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama, chunk=16))
    waiting = asyncio.create_task(engine.score(ScoreRequest([1] * 8000, BRANCHES, LABELS)))
    begun = engine.counters.passes
    while engine.counters.passes == begun:
        await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineUnavailableError, match="stopped"):
        await waiting
    with pytest.raises(EngineUnavailableError):
        await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))


async def test_an_adapter_is_merged_and_named(start, tiny_llama: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "my-router"
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    tuned = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    tuned.save_pretrained(adapter)
    with torch.inference_mode():
        logits = tuned(torch.tensor([[*PREFIX, *BRANCHES[0]]])).logits[0, -1]
    engine = await start(config(tiny_llama, adapter))
    scores = await engine.score(ScoreRequest(PREFIX, BRANCHES, LABELS))
    np.testing.assert_allclose(scores.logprobs[0], logits.log_softmax(-1)[LABELS].numpy(), atol=1e-3)
    assert np.abs(scores.logprobs[0] - reference(tiny_llama, [*PREFIX, *BRANCHES[0]])).max() > 0.01
    assert engine.model == "my-router"


async def test_a_missing_model_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="make setup"):
        await LocalEngine(config(tmp_path / "nowhere")).start()


async def test_greedy_choice_follows_the_best_way_at_every_fork(start, tiny_llama: Path) -> None:
    engine = await start(config(tiny_llama))
    choices = [[41, 42], [41, 43, 44], [41, 43], [50, 51]]
    request = ChoiceRequest(PREFIX, ["a", "b", "c", "d"], choices, end_token=2)
    chosen = await engine.choose(request)
    probability = 0.0
    node: list[int] = []
    members = [[*choice, 2] for choice in choices]
    while len(members) > 1:
        ways = sorted({member[len(node)] for member in members})
        row = reference(tiny_llama, [*PREFIX, *node], ways)
        best = int(np.argmax(row))
        if len(ways) > 1:
            probability += row[best] - np.logaddexp.reduce(row)
        node.append(ways[best])
        members = [member for member in members if member[: len(node)] == node]
    assert [*choices[chosen.position], 2] == members[0]
    assert chosen.logprob == pytest.approx(probability, abs=1e-4)
