"""A circuit breaker before a remote engine: while it is down, callers hear so at once instead of waiting for it.

Knows errors and time. Does not know how the engine is reached. After some failures in a row the circuit opens; after a
while one question goes through, and what becomes of it closes the circuit or keeps it open (Nygard, Release It!, 2007).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

from serving.engine.base import Choice, ChoiceRequest, Engine, ScoreRequest, Scores
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError

logger = logging.getLogger(__name__)


class State(IntEnum):
    """What becomes of the next question: it is asked, asked to see whether the engine is back, or refused."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Counts failures in a row.

    Args:
        failures: so many open the circuit.
        open_s: for so long.
        slow_s: a timeout counts where it was waited for so long. A caller may allow less time than any engine takes;
            that must not close the engine to everyone else.
        clock: monotonic seconds.
    """

    def __init__(
        self, failures: int, open_s: float, slow_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = failures
        self._open_s = open_s
        self._slow_s = slow_s
        self._clock = clock
        self._failures = 0
        self._opened: float | None = None
        self._probing = False
        self._answered_at = clock()

    @property
    def state(self) -> State:
        """Where the circuit is now."""
        if self._opened is None:
            return State.CLOSED
        return State.HALF_OPEN if self._probing or self._clock() >= self._opened + self._open_s else State.OPEN

    @contextmanager
    def question(self) -> Iterator[None]:
        """Goes round one question to the engine.

        Raises:
            EngineUnavailableError: the circuit is open; the engine must not be asked.
        """
        state, began = self.state, self._clock()
        if state is State.OPEN or self._probing:
            left = self._open_s if self._opened is None or self._probing else self._opened + self._open_s - began
            raise EngineUnavailableError(
                f"the engine failed {self._failures} times in a row and is not asked now; try again when Retry-After "
                "has passed",
                retry_after=left,
            )
        self._probing = state is State.HALF_OPEN
        try:
            yield
        except EngineTimeoutError:
            if self._clock() - began >= self._slow_s:
                self._failed(began)
            raise
        except EngineUnavailableError:
            self._failed(began)
            raise
        except EngineError:  # it is there, whatever it says
            self._answered()
            raise
        else:
            self._answered()
        finally:
            if state is State.HALF_OPEN:
                self._probing = False

    def _failed(self, began: float) -> None:
        if began < self._answered_at:  # it has answered another since
            return
        self._failures += 1
        if self._failures >= self._most and (self._opened is None or self._probing):
            if self._opened is None:
                logger.warning("the engine failed %d times in a row and is not asked for now", self._failures)
            self._opened = self._clock()

    def _answered(self) -> None:
        if self._opened is not None:
            logger.warning("the engine answers again")
        self._failures, self._opened = 0, None
        self._answered_at = self._clock()


class GuardedEngine:
    """An engine behind a breaker. See `serving/engine/base.py`."""

    def __init__(self, engine: Engine, breaker: Breaker) -> None:
        self.engine = engine
        self.breaker = breaker

    @property
    def model(self) -> str:
        """See `Engine.model`."""
        return self.engine.model

    @property
    def max_tokens(self) -> int:
        """See `Engine.max_tokens`."""
        return self.engine.max_tokens

    @property
    def in_progress(self) -> int:
        """See `Engine.in_progress`."""
        return self.engine.in_progress

    async def start(self) -> None:
        """See `Engine.start`, which waits for an engine that is not there yet."""
        await self.engine.start()

    async def score(self, request: ScoreRequest) -> Scores:
        """See `Engine.score`."""
        with self.breaker.question():
            return await self.engine.score(request)

    async def choose(self, request: ChoiceRequest) -> Choice:
        """See `Engine.choose`."""
        with self.breaker.question():
            return await self.engine.choose(request)

    async def close(self) -> None:
        """See `Engine.close`."""
        await self.engine.close()
