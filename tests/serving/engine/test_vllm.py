"""The vLLM engine against a stand-in for its server: what is sent, what is read, and what every failure becomes."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from serving.config import Config, EngineConfig, ModelConfig, PrefilterConfig
from serving.engine.base import ChoiceRequest, ScoreRequest
from serving.engine.vllm import VllmEngine
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError

pytestmark = pytest.mark.anyio

PREFIX = [11, 12, 13]
LISTWISE = ScoreRequest(PREFIX, [[21, 22]], [5, 6, 7])
POINTWISE = ScoreRequest(PREFIX, [[21], [22, 23]], [5, 6])
CHOICE = ChoiceRequest(PREFIX, ["get_weather", "none_of_these"], [[1, 2], [3]], end_token=9)


class Server:
    """What vLLM answers, as plain functions of the request's body; `bodies` holds what it was sent."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {
            "models": {"data": [{"id": "base", "max_model_len": 4097}, {"id": "lora", "max_model_len": None}]},
            "completions": completions,
            "generative_scoring": scoring,
            "health": {},
            **answers,
        }
        self.requests: list[httpx.Request] = []

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests if request.content]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers[request.url.path.rpartition("/")[2]]
        if callable(answer):
            answer = answer(json.loads(request.content) if request.content else None)
            if asyncio.iscoroutine(answer):
                answer = await answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


def completions(body: dict[str, Any]) -> dict[str, Any]:
    """Label id i has the log-probability -i; a choice is the first, written in two tokens."""
    if "structured_outputs" in body:
        text, tokens = body["structured_outputs"]["choice"][0], [-0.25, -0.5]
        logprobs = {"token_logprobs": tokens, "top_logprobs": [{"token_id:1": tokens[0]}, {"token_id:9": tokens[1]}]}
    else:
        text = "?"
        top = {"token_id:99": -0.1, **{f"token_id:{label}": -float(label) for label in body["logprob_token_ids"]}}
        logprobs = {"token_logprobs": [-0.1], "top_logprobs": [top]}
    choices = [{"index": index, "text": text, "logprobs": logprobs} for index in range(len(body["prompt"]))]
    return {"choices": choices, "usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}}


def scoring(body: dict[str, Any]) -> dict[str, Any]:
    return {"data": [{"index": index, "score": 0.8} for index in range(len(body["items"]))]}


def altered(answer: Callable[[dict[str, Any]], dict[str, Any]], change: Callable[[dict[str, Any]], None]) -> Any:
    def respond(body: dict[str, Any]) -> httpx.Response:
        value = answer(body)
        change(value)
        return httpx.Response(200, content=json.dumps(value))  # which, unlike httpx, writes NaN

    return respond


def config(readout: str = "listwise", adapter: str | None = "somewhere/lora", **engine: Any) -> Config:
    return Config(
        model=ModelConfig(name="base", adapter=adapter, readout=readout),
        engine=EngineConfig(kind="vllm", url="http://vllm:8001", **engine),
        prefilter=PrefilterConfig(k=10),
    )


@contextlib.asynccontextmanager
async def connected(server: Any, settings: Config | None = None):
    engine = VllmEngine(settings or config(), transport=httpx.MockTransport(server))
    try:
        yield engine
    finally:
        await engine.close()


async def test_listwise_reads_the_labels_and_their_mass() -> None:
    server = Server()
    async with connected(server) as engine:
        scores = await engine.score(LISTWISE)
    np.testing.assert_allclose(scores.logprobs, [[-5, -6, -7]])
    np.testing.assert_allclose(scores.mass, [math.exp(-5) + math.exp(-6) + math.exp(-7)])
    assert (scores.prompt_tokens, scores.cached_tokens) == (5, 3)
    (body,) = server.bodies
    assert server.requests[0].url == "http://vllm:8001/v1/completions"
    assert body == {
        "model": "lora",
        "prompt": [[11, 12, 13, 21, 22]],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 3,
        "logprob_token_ids": [5, 6, 7],
        "return_tokens_as_token_ids": True,
    }


async def test_pointwise_is_one_scoring_call() -> None:
    server = Server(generative_scoring=lambda body: {"data": [{"index": 1, "score": 0.25}, {"index": 0, "score": 0.9}]})
    async with connected(server, config(adapter=None)) as engine:
        scores = await engine.score(POINTWISE)
    np.testing.assert_allclose(np.exp(scores.logprobs), [[0.9, 0.1], [0.25, 0.75]])
    assert scores.mass is None
    assert scores.prompt_tokens == 6
    (body,) = server.bodies
    assert server.requests[0].url == "http://vllm:8001/generative_scoring"
    assert body == {
        "model": "base",
        "query": [11, 12, 13],
        "items": [[21], [22, 23]],
        "label_token_ids": [5, 6],
        "apply_softmax": True,
    }


async def test_certain_scores_stay_finite_and_ordered() -> None:
    server = Server(generative_scoring=lambda body: {"data": [{"index": 0, "score": 1.0}, {"index": 1, "score": 0.0}]})
    async with connected(server) as engine:
        scores = await engine.score(POINTWISE)
    log_odds = scores.logprobs[:, 0] - scores.logprobs[:, 1]
    assert np.isfinite(log_odds).all()
    assert log_odds[0] > 30
    assert log_odds[1] < -30


async def test_several_continuations_with_other_than_two_labels_are_one_call_of_several_prompts() -> None:
    server = Server()
    async with connected(server) as engine:
        scores = await engine.score(ScoreRequest(PREFIX, [[21], [22]], [5, 6, 7]))
    assert scores.logprobs.shape == (2, 3)
    assert [body["prompt"] for body in server.bodies] == [[[11, 12, 13, 21], [11, 12, 13, 22]]]


async def test_one_continuation_with_two_labels_has_a_mass() -> None:
    async with connected(Server()) as engine:
        scores = await engine.score(ScoreRequest(PREFIX, [[21]], [5, 6]))
    np.testing.assert_allclose(scores.mass, [math.exp(-5) + math.exp(-6)])


async def test_more_labels_than_one_call_takes_are_read_in_several() -> None:
    server = Server()
    labels = list(range(1, 301))
    async with connected(server) as engine:
        scores = await engine.score(ScoreRequest(PREFIX, [[21]], labels))
    np.testing.assert_allclose(scores.logprobs, [[-label for label in labels]])
    assert [body["logprobs"] for body in server.bodies] == [128, 128, 44]
    assert scores.cached_tokens == 3


async def test_a_choice_is_written_under_its_grammar() -> None:
    server = Server()
    async with connected(server) as engine:
        choice = await engine.choose(CHOICE)
    assert (choice.position, choice.logprob, choice.cached_tokens) == (0, -0.75, 3)
    (body,) = server.bodies
    assert body["structured_outputs"] == {"choice": ["get_weather", "none_of_these"]}
    assert (body["temperature"], body["stop_token_ids"]) == (0, [9])
    assert body["max_tokens"] == len("none_of_these") + 1


async def test_the_salt_is_sent_as_a_digest_vllm_accepts() -> None:
    server = Server()
    async with connected(server) as engine:
        for salt in ("tenant/1@x\0" * 50, "tenant 2", ""):
            await engine.score(ScoreRequest(PREFIX, [[1], [2]], [5, 6], cache_salt=salt))
            await engine.score(ScoreRequest(PREFIX, [[1]], [5, 6, 7], cache_salt=salt))
    salts = [body.get("cache_salt") for body in server.bodies]
    assert salts[0] == salts[1] != salts[2] == salts[3]
    assert salts[4:] == [None, None]
    assert all(salt.isalnum() and len(salt) <= 128 for salt in salts[:4])


async def test_the_key_is_presented() -> None:
    server = Server()
    async with connected(server, config(api_key="secret")) as engine:
        await engine.score(LISTWISE)
    assert server.requests[0].headers["Authorization"] == "Bearer secret"


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
            EngineUnavailableError, match="cannot be reached at http://vllm:8001/v1/completions: .*broken"
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


async def test_a_prompt_that_vllm_would_cut_is_refused() -> None:
    server = Server()
    async with connected(server) as engine:
        await engine.start()
        sent = len(server.requests)
        assert engine.max_tokens == 4096
        with pytest.raises(EngineError, match="4097 tokens; the vLLM server takes 4096"):
            await engine.score(ScoreRequest([1] * 4095, [[1], [1, 2]], [5, 6]))
        assert len(server.requests) == sent
        await engine.score(ScoreRequest([1] * 4094, [[1], [1, 2]], [5, 6]))


@pytest.mark.parametrize(
    ("readout", "asked"),
    [("listwise", ["completions"]), ("pointwise", ["generative_scoring"]), ("generate", ["completions"] * 2)],
)
async def test_start_checks_and_warms_up_what_will_be_asked(readout: str, asked: list[str]) -> None:
    server = Server()
    async with connected(server, config(readout)) as engine:
        await engine.start()
        assert engine.model == "lora"
    paths = [request.url.path.rpartition("/")[2] for request in server.requests]
    assert paths == ["health", "models", *asked]
    if readout == "listwise":
        assert server.bodies[0]["logprobs"] == 11


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
