import asyncio

import pytest

from serving.engine.base import ScoreRequest
from serving.engine.breaker import Breaker, GuardedEngine, State
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError
from tests.clock import Clock

OPEN_S, SLOW_S = 2.0, 15.0
DOWN = EngineUnavailableError("down")


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(3, OPEN_S, SLOW_S, clock)


def ask(breaker: Breaker, error: BaseException | None = None, clock: Clock | None = None, waited: float = 0.0) -> None:
    """One question, which ends in the error. Raises where it was not asked."""
    asked = False
    try:
        with breaker.question():
            asked = True
            if clock:
                clock.now += waited
            if error:
                raise error
    except BaseException:
        if not asked:
            raise


def refused(breaker: Breaker) -> EngineUnavailableError:
    with pytest.raises(EngineUnavailableError, match="not asked now") as error:
        ask(breaker)
    return error.value


def test_failures_in_a_row_open_it(breaker: Breaker, clock: Clock) -> None:
    for error in (DOWN, DOWN, None, DOWN, DOWN):
        ask(breaker, error)
    assert breaker.state is State.CLOSED
    ask(breaker, DOWN)
    assert breaker.state is State.OPEN
    clock.now += 0.5
    assert refused(breaker).retry_after == pytest.approx(1.5)


def test_one_question_tries_it_again(breaker: Breaker, clock: Clock) -> None:
    for _ in range(3):
        ask(breaker, DOWN)
    clock.now += OPEN_S
    assert breaker.state is State.HALF_OPEN
    with breaker.question():
        assert refused(breaker).retry_after == OPEN_S
    assert breaker.state is State.CLOSED
    ask(breaker)


def test_a_failed_try_keeps_it_open(breaker: Breaker, clock: Clock) -> None:
    for _ in range(3):
        ask(breaker, DOWN)
    clock.now += OPEN_S
    ask(breaker, DOWN)
    assert refused(breaker).retry_after == OPEN_S


@pytest.mark.parametrize("error", [asyncio.CancelledError(), EngineTimeoutError("the caller's own")])
def test_a_try_without_a_verdict_is_followed_by_another(breaker: Breaker, clock: Clock, error: BaseException) -> None:
    for _ in range(3):
        ask(breaker, DOWN)
    clock.now += OPEN_S
    ask(breaker, error)
    assert breaker.state is State.HALF_OPEN
    ask(breaker)
    assert breaker.state is State.CLOSED


def test_impatient_callers_do_not_open_it(breaker: Breaker, clock: Clock) -> None:
    for _ in range(10):
        ask(breaker, EngineTimeoutError("slow"), clock, SLOW_S - 0.1)
    assert breaker.state is State.CLOSED
    for _ in range(3):
        ask(breaker, EngineTimeoutError("hung"), clock, SLOW_S)
    assert breaker.state is State.OPEN


def test_what_a_question_is_answered_with_does_not_open_it(breaker: Breaker) -> None:
    """One caller's strange question must not close the engine to all others."""
    for _ in range(10):
        ask(breaker, EngineError("what is this?"))
    assert breaker.state is State.CLOSED


def test_failures_of_before_an_answer_are_past(breaker: Breaker, clock: Clock) -> None:
    hung = [breaker.question() for _ in range(5)]
    for question in hung:
        question.__enter__()
    clock.now += 1.0
    ask(breaker)
    for question in hung:
        question.__exit__(EngineUnavailableError, DOWN, None)
    assert breaker.state is State.CLOSED


@pytest.mark.anyio
async def test_an_engine_behind_it_is_not_asked(clock: Clock, breaker: Breaker) -> None:
    asked = 0

    class Down:
        async def score(self, _: ScoreRequest) -> None:
            nonlocal asked
            asked += 1
            raise DOWN

        choose = score

    engine = GuardedEngine(Down(), breaker)  # type: ignore[arg-type]
    for _ in range(10):
        for method in (engine.score, engine.choose):
            with pytest.raises(EngineUnavailableError):
                await method(ScoreRequest([1], [[2]], [3]))  # type: ignore[operator]
    assert asked == 3
