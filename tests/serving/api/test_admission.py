import asyncio
from typing import Any

import pytest

from serving.api.admission import Admission
from serving.config import Config
from serving.types import BusyError
from tests.clock import Clock

KEYS = ("first-key", "second-key")


@pytest.fixture
def config() -> Config:
    return Config.model_validate(
        {"server": {"api_keys": list(KEYS), "max_concurrent": 3, "max_concurrent_per_key": 2, "max_tokens": 2_000}}
    )


def refusal(admission: Admission, tokens: int = 1, caller: str = "") -> BusyError:
    with pytest.raises(BusyError) as busy, admission.place(tokens, caller):
        pass
    return busy.value


def test_retry_after_is_how_long_what_is_inside_takes_to_drain(clock: Clock) -> None:
    admission = Admission(8, 1_000, clock=clock)
    for _ in range(100):  # two at a time, in four seconds: one in two seconds
        with admission.place(1), admission.place(1):
            clock.now += 4.0
        clock.now += 1_000.0  # nothing to do is not slow
    places = [admission.place(1) for _ in range(8)]
    for place in places:
        place.__enter__()
    busy = refusal(admission)
    assert busy.reason == "requests"
    assert busy.retry_after == pytest.approx(16.0, rel=0.1)
    for place in places:
        place.__exit__(None, None, None)
    assert (admission.requests, admission.tokens) == (0, 0)


def test_a_rate_that_changes_is_forgotten(clock: Clock) -> None:
    admission = Admission(1, 1_000, clock=clock)
    for seconds in (0.5, 4.0):
        for _ in range(100):
            with admission.place(1):
                clock.now += seconds
    with admission.place(1):
        assert refusal(admission).retry_after == pytest.approx(4.0, rel=0.1)


def test_nobody_is_told_to_stay_away_longer_than_a_place_is_held(clock: Clock) -> None:
    admission = Admission(1, 1_000, longest_s=20.0, clock=clock)
    with admission.place(1):
        assert refusal(admission).retry_after == 0.0  # nothing is known yet
        clock.now += 1_000.0
    with admission.place(1):
        assert refusal(admission).retry_after == 20.0


def test_what_would_come_too_late_is_refused_at_once(clock: Clock) -> None:
    admission = Admission(100, 1_000, clock=clock)
    for _ in range(100):  # one in two seconds
        with admission.place(1, within_s=0.1):  # nothing is before it
            clock.now += 2.0
    with admission.place(1), admission.place(1), admission.place(1):
        with admission.place(1, within_s=8.5):
            pass
        with pytest.raises(BusyError) as busy, admission.place(1, within_s=5.0):
            pass
        assert busy.value.reason == "deadline"
        assert 0 < busy.value.retry_after < 4.0


def test_tokens_have_a_bound_of_their_own(clock: Clock) -> None:
    admission = Admission(10, 100, clock=clock)
    with admission.place(60):
        assert refusal(admission, 41).reason == "tokens"
        with admission.place(40):
            assert admission.tokens == 100
        assert admission.tokens == 60
    with admission.place(500):  # or it could never be answered
        assert refusal(admission, 1).reason == "tokens"
    with pytest.raises(RuntimeError), admission.place(100):
        raise RuntimeError
    assert admission.tokens == 0


def test_a_caller_has_a_share(clock: Clock) -> None:
    admission = Admission(10, 100, caller_requests=2, clock=clock)
    with admission.place(1, "a"), admission.place(1, "a"):
        assert refusal(admission, 1, "a").reason == "caller_requests"
        with admission.place(1, "b"), admission.place(1), admission.place(1), admission.place(1):
            pass  # another, and those without a key
    with admission.place(1, "a"):
        pass


def test_a_caller_has_a_rate(clock: Clock) -> None:
    admission = Admission(10, 100, caller_per_minute=6, clock=clock)

    def ask(caller: str) -> None:
        with admission.place(1, caller):
            pass

    for _ in range(6):
        ask("a")
    busy = refusal(admission, 1, "a")
    assert (busy.reason, busy.retry_after) == ("caller_rate", pytest.approx(10.0))
    ask("b")
    clock.now += 9.9
    assert refusal(admission, 1, "a").retry_after == pytest.approx(0.1)
    clock.now += 0.2
    ask("a")
    refusal(admission, 1, "a")
    clock.now += 3_600.0  # not more at once than in a minute
    for _ in range(6):
        ask("a")
    refusal(admission, 1, "a")


def test_less_than_one_a_minute_is_one_at_once(clock: Clock) -> None:
    admission = Admission(10, 100, caller_per_minute=0.5, clock=clock)
    with admission.place(1, "a"):
        pass
    assert refusal(admission, 1, "a").retry_after == pytest.approx(120.0)


@pytest.mark.anyio
async def test_a_key_that_takes_its_share_leaves_room_for_others(client: Any, server: Any, tools: Any) -> None:
    server.engine.open.clear()

    async def ask(key: str, query: str = "weather") -> Any:
        body = {"query": query, "candidates": tools}
        return await client.post("/v1/route", json=body, headers={"authorization": f"Bearer {key}"})

    inside = [asyncio.create_task(ask(KEYS[0])) for _ in range(2)]
    for _ in inside:
        await server.engine.asked.acquire()
    refused = await ask(KEYS[0])
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
    assert "this key has 2 decisions" in refused.json()["error"]["message"]
    assert (await ask(KEYS[1], "w" * 8_000)).status_code == 429  # about 2,000 tokens beside those inside
    inside.append(asyncio.create_task(ask(KEYS[1])))
    await server.engine.asked.acquire()
    assert (await ask(KEYS[1])).status_code == 429
    for reason in ("caller_requests", "tokens", "requests"):
        assert server.metric("refused_total", reason=reason) == 1
    assert server.metric("queue_requests") == 3
    assert 3 < server.metric("queue_tokens") < 2_000
    server.engine.open.set()
    assert {(await response).status_code for response in inside} == {200}
    assert server.metric("queue_requests") == server.metric("queue_tokens") == 0


@pytest.mark.anyio
async def test_what_is_refused_is_not_read(client: Any, server: Any, tools: Any) -> None:
    """A body that is no JSON would be told so, had anyone looked at it."""
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    assert (await client.post("/v1/route", content=b"{", headers=headers)).status_code == 422
    with server.service.admission.place(1), server.service.admission.place(1), server.service.admission.place(1):
        for path in ("/v1/route", "/v1/chat/completions", "/v1/tools/search"):
            answer = await client.post(path, content=b"{", headers=headers)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
