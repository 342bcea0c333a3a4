"""The engine protocol: a shared prefix, its continuations and label ids in; label log-probabilities out.

An engine knows token ids. It does not know messages, candidates, templates or what a label means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Read `labels` after each of `continuations`, every one of which follows `prefix` and sees no other.

    Attributes:
        prefix: token ids, at least one.
        continuations: token ids of each, at least one continuation of at least one token.
        labels: token ids whose log-probabilities are asked for, at least one.
        cache_salt: prefixes are reused only between requests of the same salt.
        deadline: `time.monotonic()` value after which the engine gives up; None for no deadline.
    """

    prefix: Sequence[int]
    continuations: Sequence[Sequence[int]]
    labels: Sequence[int]
    cache_salt: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """What an engine read.

    Attributes:
        logprobs: float64 array (continuations, labels), natural logarithm. Over the whole vocabulary where
            `mass` is given; otherwise over the labels alone, each row summing to 1.
        mass: float64 array (continuations,), the probability of all labels together; None where the engine
            cannot tell.
        prompt_tokens: tokens of the question, the prefix counted once.
        cached_tokens: how many of them were not computed again.
    """

    logprobs: NDArray[np.float64]
    mass: NDArray[np.float64] | None
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """Write one of `choices` after `prompt`, greedily, then end.

    Attributes:
        prompt: token ids.
        choices: texts, unique, of `[a-zA-Z0-9_-]` only (a newline or NUL breaks the grammar of some engines).
        choice_ids: the token ids of each choice, none of them empty, in the same order.
        end_token: the id that ends a choice.
    """

    prompt: Sequence[int]
    choices: Sequence[str]
    choice_ids: Sequence[Sequence[int]]
    end_token: int
    cache_salt: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice written: its position in `choices`, and its log-probability among them along the written path."""

    position: int
    logprob: float
    prompt_tokens: int
    cached_tokens: int


class Engine(Protocol):
    """A language model that scores. Implementations: `local` (in process) and `vllm` (HTTP).

    Cancelling a task that awaits `score` or `choose` stops the work behind it: at the next chunk in process, by
    closing the connection over HTTP.
    """

    @property
    def model(self) -> str:
        """The name that answers carry: the adapter's where one is served, else the base model's."""
        ...

    @property
    def max_tokens(self) -> int:
        """The most tokens that prefix and one continuation may have together."""
        ...

    @property
    def in_progress(self) -> int:
        """How many questions it was asked and has not answered."""
        ...

    async def start(self) -> None:
        """Load, check and warm up. Returns when the engine can answer at its usual speed.

        Raises:
            EngineUnavailableError: the engine cannot be reached or loaded; the message says why.
        """
        ...

    async def score(self, request: ScoreRequest) -> Scores:
        """Label log-probabilities after every continuation.

        Raises:
            EngineTimeoutError: the deadline passed.
            EngineUnavailableError: the engine is down.
            EngineError: it answered, but not what was asked.
        """
        ...

    async def choose(self, request: ChoiceRequest) -> Choice:
        """Constrained greedy generation of one of the choices. Raises as `score`."""
        ...

    async def close(self) -> None:
        """Stop work and give back memory and connections."""
        ...
