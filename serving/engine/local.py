"""The in-process engine: a transformers model, its LoRA merged, run by one thread.

Knows a model and token ids. Does not know templates, candidates or HTTP. Concurrent requests share forward
passes (`schedule.py`, `packed.py`); the keys and values of earlier prefixes are reused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from serving.config import Config
from serving.engine import packed
from serving.engine.base import Choice, ChoiceRequest, ScoreRequest, Scores
from serving.engine.schedule import Job, PrefixCache, Read, next_pass
from serving.engine.trie import choose_by_scoring
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError

import torch  # isort: skip  (after packed, which sets how torch's threads wait)
from transformers import AutoModelForCausalLM, PreTrainedModel  # isort: skip
from transformers.utils import logging as transformers_logging  # isort: skip

logger = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(slots=True)
class Counters:
    """What the engine did since it started; read by tests, metrics and the benchmark."""

    passes: int = 0
    tokens: int = 0
    jobs_finished: int = 0
    jobs_dropped_waiting: int = 0
    jobs_dropped_running: int = 0


@dataclass(eq=False, slots=True)
class _Waiter:
    """A job and whoever waits for it."""

    job: Job
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]

    def resolve(self, error: BaseException | None = None) -> None:
        def apply() -> None:
            if self.future.done():
                return
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)

        self.loop.call_soon_threadsafe(apply)


def load_model(path: str, dtype: torch.dtype, adapter: str | None = None) -> PreTrainedModel:
    """A causal language model ready to score, with its LoRA adapter merged in float32.

    Raises:
        EngineUnavailableError: base model or adapter cannot be loaded.
    """
    if not Path(path).is_dir() and path.startswith((".", "/")):
        raise EngineUnavailableError(f"there is no model folder {path}; run `make setup`, or set model.path")
    transformers_logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        if adapter:
            model = _merged(model, adapter)
        packed.prepare(model)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise EngineUnavailableError(f"cannot load the model {path} (adapter: {adapter}): {error}") from error
    model.eval().requires_grad_(False)
    return model


def _merged(model: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """The model with W + BA in place of every W, each sum made in float32 and then rounded.

    Layer by layer: peft's own merge in float32 would need the whole model in it.
    """
    from peft import PeftModel  # noqa: PLC0415  (only adapters need it)
    from peft.tuners.lora import LoraLayer  # noqa: PLC0415

    adapted = PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        for layer in (module for module in adapted.modules() if isinstance(module, LoraLayer)):
            weight = layer.get_base_layer().weight
            (name,) = layer.active_adapters
            weight.copy_(weight.float() + layer.get_delta_weight(name).float())
    merged: PreTrainedModel = adapted.unload()
    return merged


class LocalEngine:
    """The Engine protocol on a model in this process. See `serving/engine/base.py`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._model: PreTrainedModel | None = None
        self._cache = PrefixCache(config.engine.prefix_cache_mb * 2**20)
        self._waiting: deque[_Waiter] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.counters = Counters()
        self.running = 0
        """Jobs that the engine's thread has taken; `waiting` ones it has not seen yet."""

    @property
    def threads(self) -> int:
        """Torch threads of a pass. One core is left to the event loop: sharing it costs more than a thread brings."""
        return self._config.engine.threads or max(len(os.sched_getaffinity(0)) - 1, 1)

    @property
    def waiting(self) -> int:
        """Jobs that arrived during the running pass."""
        return len(self._waiting)

    @property
    def in_progress(self) -> int:
        """See `Engine.in_progress`."""
        return self.waiting + self.running

    @property
    def model(self) -> str:
        """The adapter's name where one is served, else the base model's."""
        return self._config.model.served_name

    @property
    def max_tokens(self) -> int:
        """The model's positions."""
        return int(self._loaded().config.max_position_embeddings)

    async def start(self) -> None:
        """Load the model, start its thread, and run one small question of each shape."""
        config = self._config
        self._model = await asyncio.to_thread(
            load_model, config.model.path, _DTYPES[config.engine.dtype], config.model.adapter
        )
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        for continuations in ([[5]], [[5, 6], [7]]):
            await self.score(ScoreRequest([1, 2, 3, 4], continuations, [10, 11], cache_salt="warm-up"))

    async def close(self) -> None:
        """Stop after the running pass; whoever still waits gets EngineUnavailableError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._model = None

    async def score(self, request: ScoreRequest) -> Scores:
        """See `Engine.score`."""
        model = self._loaded()
        longest = len(request.prefix) + max(map(len, request.continuations))
        if longest > self.max_tokens:
            raise EngineError(f"the question has {longest} tokens; this model reads at most {self.max_tokens}")
        highest = max(*request.prefix, *(max(c) for c in request.continuations), *request.labels)
        if highest >= model.config.vocab_size:
            raise EngineError(f"token id {highest} is outside the model's vocabulary of {model.config.vocab_size}")
        job = Job.of(request)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(job, loop, loop.create_future())
        with self._wake:
            if self._closing:
                raise EngineUnavailableError("the engine is stopping")
            self._waiting.append(waiter)
            self._wake.notify()
        timeout = None if request.deadline is None else request.deadline - time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
        except TimeoutError:
            raise EngineTimeoutError(
                "the engine did not finish before the deadline; send less, or raise engine.timeout_s"
            ) from None
        finally:
            if not job.finished:
                job.cancelled.set()
        tokens = len(job.sequence) + sum(map(len, job.branches))
        return Scores(logprobs=job.logits, mass=job.mass, prompt_tokens=tokens, cached_tokens=job.cached)

    async def choose(self, request: ChoiceRequest) -> Choice:
        """See `Engine.choose`: greedy along the tree of choices, one small question for each fork."""
        return await choose_by_scoring(self, request)

    def _loaded(self) -> PreTrainedModel:
        if self._model is None:
            raise EngineUnavailableError("the engine is not started")
        return self._model

    # Below, everything runs in the engine's own thread.

    def _run(self) -> None:
        torch.set_num_threads(self.threads)
        active: list[_Waiter] = []
        while True:
            self.running = len(active)
            with self._wake:
                while not (self._waiting or active or self._closing):
                    self._wake.wait()
                if self._closing:
                    for waiter in [*active, *self._waiting]:
                        waiter.resolve(EngineUnavailableError("the engine was stopped"))
                    self._waiting.clear()
                    return
                active += self._waiting
                self._waiting.clear()
            active = [waiter for waiter in active if not self._dropped(waiter)]
            self.running = len(active)
            if not active:
                continue
            try:
                with torch.inference_mode():
                    self._step([waiter.job for waiter in active])
            except Exception as error:  # one bad pass must not end the thread
                logger.exception("a forward pass failed")
                for waiter in active:
                    waiter.resolve(EngineError(f"the forward pass failed: {error}"))
                active = []
                continue
            for waiter in active:
                if waiter.job.finished:
                    self.counters.jobs_finished += 1
                    waiter.resolve()
            active = [waiter for waiter in active if not waiter.job.finished]

    def _dropped(self, waiter: _Waiter) -> bool:
        if not waiter.job.cancelled.is_set():
            return False
        if waiter.job.keys is None:
            self.counters.jobs_dropped_waiting += 1
        else:
            self.counters.jobs_dropped_running += 1
        return True

    def _step(self, jobs: list[Job]) -> None:
        """Run one pass, and put what it read where it belongs."""
        model = self._loaded()
        allocate: Callable[[int], packed.KeyValues] = lambda length: packed.KeyValues(model, length)  # noqa: E731
        chunk = self._config.engine.chunk_tokens
        # Only the jobs that can still get a part of this pass need memory.
        tokens = 0
        begun: list[Job] = []
        for job in jobs:
            if tokens >= chunk:
                break
            if job.keys is None:
                self._cache.begin(job, allocate)
            tokens += len(job.sequence) - job.done + sum(map(len, job.branches[job.branches_done :]))
            begun.append(job)
        work = next_pass(begun, chunk)
        row = packed.PackedRow(work.segments)
        hidden = packed.forward(model, row)
        if work.reads:
            self._read(model, hidden[[read.position for read in work.reads]], list(work.reads))
        for job in begun:
            if job.done == len(job.sequence) and job.keys is not None:
                self._cache.add(job.request.cache_salt, job.sequence, job.keys)
        self.counters.passes += 1
        self.counters.tokens += int(row.input_ids.shape[1])

    def _read(self, model: PreTrainedModel, hidden: torch.Tensor, reads: list[Read]) -> None:
        """Label log-probabilities at the read positions.

        The normaliser comes from the model's own head in its own type. The labels' logits are computed again in
        float32: in bfloat16 a logit of 20 has steps of 0.125, as large as what separates two candidates.
        """
        head = model.get_output_embeddings()
        normalisers = torch.logsumexp(head(hidden).float(), dim=-1)
        start = 0
        for job, group in groupby(reads, key=lambda read: read.job):
            continuations = [read.continuation for read in group]
            rows = slice(start, start := start + len(continuations))
            labels = torch.tensor(job.request.labels, device=hidden.device)
            logits = hidden[rows].float() @ head.weight[labels].float().T
            logprobs = (logits - normalisers[rows, None]).double().cpu().numpy()
            job.logits[continuations] = logprobs
            job.mass[continuations] = np.minimum(np.exp(logprobs).sum(-1), 1.0)
