"""Who may begin a decision now: a bounded queue by requests and by tokens, and each caller's share of it.

Knows numbers and callers' names. Does not know what a decision is, or how a caller is told apart. Nothing waits here:
what finds no place is refused, before anything of it is read, and told when to come back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from serving.types import BusyError

# Time constant of the drain rate: about the last half minute counts, of the time in which there was work.
_MEMORY_S = 30.0
_MINUTE_S = 60.0


@dataclass(slots=True)
class _Caller:
    """What one caller has inside, and the decisions that it may still begin: `credit`, as it was at `at`."""

    credit: float
    at: float
    inside: int = 0


class Admission:
    """The places for decisions in progress or waiting.

    Args:
        requests: decisions inside at once.
        tokens: tokens of all their prompts together. One that is larger by itself enters where nothing else is inside.
        caller_requests: decisions of one caller inside at once; None for no bound of its own.
        caller_per_minute: decisions that one caller may begin in a minute; so many it may also begin at once.
        longest_s: no place is held longer than this, so nobody is told to stay away longer for want of one.
        clock: monotonic seconds.

    Attributes:
        requests: decisions inside now.
        tokens: their tokens.
    """

    def __init__(
        self,
        requests: int,
        tokens: int,
        *,
        caller_requests: int | None = None,
        caller_per_minute: float | None = None,
        longest_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.requests = self.tokens = 0
        self._most_requests, self._most_tokens = requests, tokens
        self._most_of_caller = caller_requests
        self._per_minute = caller_per_minute
        self._longest_s = longest_s
        self._clock = clock
        # Those who were told apart by a key, so no more of them than there are keys.
        self._callers: dict[str, _Caller] = {}
        self._at = clock()
        self._busy_s = self._ended = 0.0

    @contextmanager
    def place(self, tokens: int, caller: str = "", within_s: float = math.inf) -> Iterator[None]:
        """Hold a place for a decision of about `tokens` tokens, whose answer is of use `within_s` seconds.

        Of a `caller` "" no share is counted. What would come too late is refused at once: it would only keep others
        from being in time.

        Raises:
            BusyError: there is none, or none for this caller.
        """
        self._measure()
        if self.requests >= self._most_requests:
            raise BusyError(
                f"all {self._most_requests} places for decisions are taken; try again when Retry-After has passed",
                self.drain_s(),
            )
        if self.requests and self.tokens + tokens > self._most_tokens:
            raise BusyError(
                f"{self.tokens} tokens are waiting and this request brings about {tokens}, but at most "
                f"{self._most_tokens} may wait; try again when Retry-After has passed",
                self.drain_s(),
                "tokens",
            )
        if self.requests and (late := self._expected_s(self.requests + 1) - within_s) > 0:
            raise BusyError(
                f"an answer would take about {late + within_s:.3g} s now, but is wanted within {within_s:.3g} s; try "
                "again when Retry-After has passed",
                min(late, self._longest_s),
                "deadline",
            )
        known = self._entering(caller) if caller else None
        self.requests += 1
        self.tokens += tokens
        try:
            yield
        finally:
            self._measure()
            self._ended += 1
            self.requests -= 1
            self.tokens -= tokens
            if known is not None:
                known.inside -= 1

    def drain_s(self) -> float:
        """How long what is inside now takes to end, at the rate at which decisions ended lately; 0 where none has."""
        return min(self._expected_s(self.requests), self._longest_s)

    def _expected_s(self, requests: int) -> float:
        """How long so many decisions take."""
        return requests * self._busy_s / self._ended if self._ended else 0.0

    def _measure(self) -> None:
        """Bring the drain rate up to now: decisions that ended, and seconds with work, both fading with the latter."""
        now = self._clock()
        if self.requests:
            fade = math.exp((self._at - now) / _MEMORY_S)
            self._busy_s = self._busy_s * fade + _MEMORY_S * (1 - fade)
            self._ended *= fade
        self._at = now

    def _entering(self, caller: str) -> _Caller:
        """The caller, who has taken one of its places and used one of its beginnings."""
        most = self._per_minute if self._per_minute is not None else math.inf
        known = self._callers.setdefault(caller, _Caller(max(most, 1.0), self._at))
        if self._most_of_caller is not None and known.inside >= self._most_of_caller:
            raise BusyError(
                f"this key has {known.inside} decisions in progress, which is all it may have; wait for one to end",
                self.drain_s(),
                "caller_requests",
            )
        known.credit = min(known.credit + (self._at - known.at) * most / _MINUTE_S, max(most, 1.0))
        known.at = self._at
        if known.credit < 1:
            raise BusyError(
                f"this key may begin {most:g} decisions a minute, and has; try again when Retry-After has passed",
                (1 - known.credit) * _MINUTE_S / most,
                "caller_rate",
            )
        known.credit -= 1
        known.inside += 1
        return known
