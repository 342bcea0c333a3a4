"""The vLLM engine against a stand-in for its server: what every failure becomes, and what it says."""

import asyncio
import math
import time
from typing import Any

import httpx
import pytest

from serving.config import Config, EngineConfig
from serving.engine.base import ChoiceRequest, ScoreRequest
from serving.engine.vllm import VllmEngine
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError
from tests.serving.engine.vllm_server import (
    CHOICE,
    LISTWISE,
    POINTWISE,
    PREFIX,
    Server,
    altered,
    completions,
    config,
    connected,
    scoring,
)

pytestmark = pytest.mark.anyio


def _drop(value: dict[str, Any], *path: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    del value[path[-1]]


def _put(value: dict[str, Any], new: Any, *path: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


FIRST = ("choices", 0, "logprobs", "top_logprobs", 0)


@pytest.mark.parametrize(
    ("request_", "answers", "message"),
    [
        (LISTWISE, {"completions": httpx.Response(200, text="<html>")}, "completions is not what was asked for: body"),
        (LISTWISE, {"completions": []}, "body: Input should be an object"),
        (LISTWISE, {"completions": {"choices": []}}, r"holds the results \[\]; asked for were 1"),
        (
            LISTWISE,
            {"completions": altered(completions, lambda v: _drop(v, *FIRST, "token_id:6"))},
            r"label ids \[6\].*--max-logprobs",
        ),
        (
            LISTWISE,
            {"completions": altered(completions, lambda v: _put(v, -9999.0, *FIRST, "token_id:7"))},
            r"label ids \[7\]",
        ),
        (
            LISTWISE,
            {"completions": altered(completions, lambda v: _put(v, math.nan, *FIRST, "token_id:7"))},
            "token_id:7: Input should be a finite number",
        ),
        (
            LISTWISE,
            {"completions": altered(completions, lambda v: _put(v, None, "choices", 0, "logprobs"))},
            r"choices\.0\.logprobs: Input should be",
        ),
        (
            POINTWISE,
            {"generative_scoring": altered(scoring, lambda v: _put(v, math.nan, "data", 1, "score"))},
            r"data\.1\.score: Input should be a finite number",
        ),
        (
            POINTWISE,
            {"generative_scoring": altered(scoring, lambda v: _put(v, 1.5, "data", 0, "score"))},
            r"data\.0\.score: Input should be less than or equal to 1",
        ),
        (POINTWISE, {"generative_scoring": altered(scoring, lambda v: _drop(v, "data", 1))}, r"results \[0\]; .* 2"),
        (
            POINTWISE,
            {"generative_scoring": altered(scoring, lambda v: _put(v, 0, "data", 1, "index"))},
            r"results \[0, 0\]",
        ),
    ],
)
async def test_garbage_is_named(request_: ScoreRequest, answers: dict[str, Any], message: str) -> None:
    async with connected(Server(**answers)) as engine:
        with pytest.raises(EngineError, match=message) as caught:
            await engine.score(request_)
    assert type(caught.value) is EngineError


async def test_a_text_that_is_no_choice_is_refused() -> None:
    server = Server(completions=altered(completions, lambda value: _put(value, "get_wea", "choices", 0, "text")))
    async with connected(server) as engine:
        with pytest.raises(EngineError, match="'get_wea', which is none of the choices"):
            await engine.choose(CHOICE)


@pytest.mark.parametrize("choice", ["a\nb", 'a"b', "a\0b", "", "é", "a b", "a\n"])
async def test_a_choice_that_could_break_the_grammar_is_never_sent(choice: str) -> None:
    server = Server()
    async with connected(server) as engine:
        with pytest.raises(EngineError, match="letters, digits, _ and - only"):
            await engine.choose(ChoiceRequest(PREFIX, ["good", choice], [[1], [2]], end_token=9))
    assert server.requests == []


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, EngineError),
        (401, EngineError),
        (404, EngineError),
        (500, EngineError),
        (502, EngineUnavailableError),
        (503, EngineUnavailableError),
        (504, EngineUnavailableError),
    ],
)
async def test_a_refusal_carries_what_vllm_said(status: int, error: type[EngineError]) -> None:
    server = Server(completions=httpx.Response(status, json={"error": {"message": "no room"}}))
    async with connected(server) as engine:
        with pytest.raises(error, match=f"answered {status} to http://vllm:8001/v1/completions: .*no room") as caught:
            await engine.score(LISTWISE)
    assert type(caught.value) is error
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError]
)
async def test_a_broken_connection_is_an_engine_that_is_down(failure: type[httpx.TransportError]) -> None:
    def fail(body: Any) -> None:
        raise failure("broken")

    async with connected(Server(completions=fail)) as engine:
        with pytest.raises(
            EngineUnavailableError, match=r"cannot be reached at http://vllm:8001/v1/completions: .*broken"
        ):
            await engine.score(LISTWISE)


async def test_a_request_that_was_sent_is_not_sent_again() -> None:
    received = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        await reader.readuntil(b"\r\n\r\n")
        received += 1
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        engine = VllmEngine(Config(engine=EngineConfig(kind="vllm", url=f"http://127.0.0.1:{port}")))
        with pytest.raises(EngineUnavailableError):
            await engine.score(LISTWISE)
        await engine.close()
    assert received == 1


async def test_nobody_listening_is_an_engine_that_is_down(unused_port: int) -> None:
    engine = VllmEngine(Config(engine=EngineConfig(kind="vllm", url=f"http://127.0.0.1:{unused_port}")))
    with pytest.raises(EngineUnavailableError, match=f"http://127.0.0.1:{unused_port}/v1/completions"):
        await engine.score(LISTWISE)
    await engine.close()


@pytest.fixture
async def unused_port() -> int:
    async with await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0) as server:
        port: int = server.sockets[0].getsockname()[1]
    return port


@pytest.mark.parametrize("by", ["deadline", "timeout_s"])
async def test_a_slow_engine_is_given_up_and_told(by: str) -> None:
    cancelled = asyncio.Event()

    async def hang(body: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    settings = config(timeout_s=0.02 if by == "timeout_s" else 60)
    deadline = time.monotonic() + 0.02 if by == "deadline" else None
    async with connected(Server(completions=hang), settings) as engine:
        with pytest.raises(EngineTimeoutError, match="did not answer http://vllm:8001/v1/completions within"):
            await engine.score(ScoreRequest(PREFIX, [[1]], [5, 6, 7], deadline=deadline))
    assert cancelled.is_set()


async def test_nothing_is_sent_after_the_deadline() -> None:
    server = Server()
    async with connected(server) as engine:
        with pytest.raises(EngineTimeoutError, match="deadline passed"):
            await engine.score(ScoreRequest(PREFIX, [[1]], [5], deadline=time.monotonic() - 1))
    assert server.requests == []


async def test_cancelling_the_caller_cancels_the_request() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hang(body: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with connected(Server(generative_scoring=hang)) as engine:
        task = asyncio.create_task(engine.score(POINTWISE))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cancelled.is_set()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"models": {"data": [{"id": "base", "max_model_len": 4097}]}}, "cannot serve 'lora': it serves 'base'"),
        ({"models": {"data": []}}, "it serves nothing"),
        (
            {"models": {"data": [{"id": "base", "max_model_len": 2048}, {"id": "lora"}]}},
            "context is 2048 tokens, but model.budget.total needs 4097: start it with --max-model-len 4097",
        ),
        ({"models": httpx.Response(401, json={"error": "Unauthorized"})}, "answered 401"),
        ({"models": httpx.Response(200, text="nginx")}, "/v1/models is not what was asked for"),
        (
            {"completions": altered(completions, lambda v: _put(v, {"token_id:99": 0.0}, *FIRST))},
            "does it know logprob_token_ids.*light-router engine",
        ),
        ({"completions": httpx.Response(500, text="boom")}, "answered 500"),
    ],
)
async def test_start_says_what_to_do(answers: dict[str, Any], message: str) -> None:
    async with connected(Server(**answers)) as engine:
        with pytest.raises(EngineUnavailableError, match=message):
            await engine.start()


async def test_start_waits_while_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.engine.vllm.POLL_S", 0.0)
    answers = iter([httpx.ConnectError("refused"), httpx.Response(503), httpx.Response(200)])

    def loading(body: Any) -> httpx.Response:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with connected(Server(health=loading)) as engine:
        await engine.start()
    assert list(answers) == []


async def test_start_gives_up_on_a_server_that_never_comes() -> None:
    def refuse(body: Any) -> None:
        raise httpx.ConnectError("refused")

    async with connected(Server(health=refuse), config(start_timeout_s=0.01)) as engine:
        with pytest.raises(EngineUnavailableError, match=r"no vLLM server .* \(.*refused.*light-router engine"):
            await engine.start()
