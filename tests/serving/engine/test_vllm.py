"""The vLLM engine against a stand-in for its server: what is sent, and what is read."""

import math

import numpy as np
import pytest

from serving.engine.base import ScoreRequest
from serving.types import EngineError
from tests.serving.engine.vllm_server import CHOICE, LISTWISE, POINTWISE, PREFIX, Server, config, connected

pytestmark = pytest.mark.anyio


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
