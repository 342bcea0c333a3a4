"""A stand-in for vLLM's server: what it answers, and what it was asked."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import httpx

from serving.config import Config, EngineConfig, ModelConfig, PrefilterConfig
from serving.engine.base import ChoiceRequest, ScoreRequest
from serving.engine.vllm import VllmEngine

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
