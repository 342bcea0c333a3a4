"""The values that walk through the one flow: RouteRequest in, Decision out; and every error a caller can meet.

Knows messages and candidates from `prompts`. Does not know HTTP, models or files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from prompts import Candidate, Message, ToolCall, Truncation

__all__ = [
    "AuditError",
    "BusyError",
    "Candidate",
    "ConflictError",
    "Decision",
    "EngineError",
    "EngineTimeoutError",
    "EngineUnavailableError",
    "Filter",
    "ForbiddenError",
    "InvalidRequestError",
    "LightRouterError",
    "Message",
    "ModelNotFoundError",
    "NotFoundError",
    "PrefilterReport",
    "Ranked",
    "RouteRequest",
    "StoreError",
    "TooLargeError",
    "ToolCall",
    "Truncation",
    "UnauthorizedError",
]


class LightRouterError(Exception):
    """Base of every error that a caller may see. The message says what was wrong, where, and what would be right."""


class InvalidRequestError(LightRouterError):
    """The request itself is wrong. `where` is a path into it, such as `candidates[3].id`."""

    def __init__(self, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.where = where


class NotFoundError(LightRouterError):
    """The catalogue, candidate or model that was named does not exist."""


class ModelNotFoundError(NotFoundError):
    """The model that was named does not exist."""


class ConflictError(LightRouterError):
    """What was to be changed has another version than the caller demanded: someone else has changed it."""


class UnauthorizedError(LightRouterError):
    """No key, or an unknown one."""


class ForbiddenError(LightRouterError):
    """The key is known, but not for this."""


class TooLargeError(LightRouterError):
    """The request is larger than this server takes."""


class BusyError(LightRouterError):
    """The server, or the caller's own share of it, is full. `retry_after` is an estimate in seconds.

    `reason` is the bound that was met: "requests", "tokens", "deadline", "caller_requests" or "caller_rate".
    """

    def __init__(self, message: str, retry_after: float, reason: str = "requests") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.reason = reason


class StoreError(LightRouterError):
    """The catalogue's database cannot be used."""


class AuditError(LightRouterError):
    """The audit log cannot be written, so that no decision may be answered."""


class EngineError(LightRouterError):
    """The engine failed."""


class EngineUnavailableError(EngineError):
    """The engine cannot be reached, or is not ready. `retry_after` is in seconds, where it is known."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineTimeoutError(EngineError):
    """The engine did not answer before the deadline."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Some of a catalogue's candidates: those that fit every kind of thing named, by one of the things named."""

    ids: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """One routing question, as every surface asks it.

    Attributes:
        messages: the conversation so far, oldest first, at least one.
        candidates: what may be chosen; ids are unique. Empty means that only none can be the answer.
        catalog: the catalogue whose candidates may be chosen, in place of `candidates`.
        include: only these of the catalogue's.
        exclude: none of these of the catalogue's.
        principals: who asks; a catalogue's candidate may be restricted to some.
        methods: how the prefilter ranks; more than one are fused. Empty takes the profile's.
        subtasks: what the task consists of, where the caller knows; the graph method finds tools for each.
        allow_none: whether "none of these" is an answer.
        k: at most this many candidates reach the router; None takes the profile's number.
        coverage: asks for a prediction set that holds a right candidate with this probability, in (0, 1).
        ranking: whether more than the winner is wanted; an adapter that writes its choice answers faster without.
        pinned: ids that always pass the prefilter.
        cache_salt: keeps this caller's cached prefixes apart from others' (set by the server, never by a caller).
        deadline: `time.monotonic()` value after which the answer is of no use; None for no deadline.
    """

    messages: tuple[Message, ...]
    candidates: tuple[Candidate, ...] = ()
    allow_none: bool = True
    k: int | None = None
    coverage: float | None = None
    ranking: bool = True
    pinned: frozenset[str] = frozenset()
    catalog: str | None = None
    include: Filter | None = None
    exclude: Filter | None = None
    principals: frozenset[str] = frozenset()
    methods: tuple[str, ...] = ()
    subtasks: tuple[str, ...] = ()
    cache_salt: str = ""
    deadline: float | None = None

    def remaining(self) -> float | None:
        """Seconds until the deadline, never negative; None without one."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate and its probability."""

    candidate: Candidate
    probability: float


@dataclass(frozen=True, slots=True)
class PrefilterReport:
    """What the prefilter did: its method ("none" when all passed), candidates considered and kept.

    `margin` is how far the best score lies above the second, as a part of the best; None where fewer were scored.
    """

    method: str
    considered: int
    kept: int
    margin: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a RouteRequest.

    Attributes:
        chosen: the winner, or None when none of the candidates fits.
        none_probability: probability of "none of these"; 0 where it was not allowed.
        ranking: every candidate that reached the router, most probable first; with `none_probability` the
            probabilities sum to 1. Only the winner where `RouteRequest.ranking` was off and the readout is generate.
        prediction_set: ids of the smallest set at the asked coverage, most probable first; None if not asked.
        prompt_tokens: tokens of the prompt, the shared prefix counted once.
        timings_ms: milliseconds by stage: prefilter (without embedding), embedding, prompt, engine, total.
        degraded: whether the engine was down and the prefilter decided: probabilities are then shares of its scores.
    """

    chosen: Ranked | None
    none_probability: float
    ranking: Sequence[Ranked]
    prediction_set: Sequence[str] | None
    prefilter: PrefilterReport
    truncated: Sequence[Truncation]
    prompt_tokens: int
    cached_tokens: int
    model: str
    timings_ms: dict[str, float] = field(default_factory=dict)
    degraded: bool = False
