"""Gateway mode: the official client against our server, with a real HTTP upstream behind it.

The upstream stands in for a large chat model: it answers with the tools that it was given.
"""

import asyncio
import json
import socket
from contextlib import closing

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from serving.api.gateway import HEADER, Gateway
from serving.config import Config, GatewayConfig, ServerConfig
from serving.types import EngineUnavailableError
from tests.live import serving

pytestmark = pytest.mark.anyio


def tool(name, description="", **parameters):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("send_mail", "Send an e-mail"),
    tool("get_weather", "weather forecast for a city", type="object", properties={"city": {"type": "string"}}),
    tool("book_hotel", "Book a room"),
    {"type": "custom", "custom": {"name": "shell", "description": "free text"}},
]
ASK = [{"role": "user", "content": "weather in Oslo"}]


class Upstream:
    def __init__(self):
        self.bodies = []
        self.keys = []
        self.left = asyncio.Event()
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        if body["model"] == "unknown":
            return JSONResponse({"error": {"message": "no such model", "code": "model_not_found"}}, 404)
        names = [one.get("function", one.get("custom"))["name"] for one in body.get("tools", [])]
        base = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": ",".join(names)}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            return JSONResponse({**base, "object": "chat.completion", "choices": [choice]})

        async def parts():
            try:
                for name in [*names, *(["wait"] if body["model"] == "endless" else [])]:
                    delta = {"index": 0, "finish_reason": None, "delta": {"content": name}}
                    part = {**base, "object": "chat.completion.chunk", "choices": [delta]}
                    yield f"data: {json.dumps(part)}\n\n"
                if body["model"] == "endless":
                    await asyncio.Event().wait()
                yield "data: [DONE]\n\n"
            finally:
                self.left.set()

        return StreamingResponse(parts(), media_type="text/event-stream")


@pytest.fixture
async def upstream():
    made = Upstream()
    async with serving(made.app) as port:
        made.url = f"http://127.0.0.1:{port}/v1"
        yield made


@pytest.fixture
def config(upstream):
    return Config(gateway=GatewayConfig(url=upstream.url, coverage=0.5))


@pytest.fixture
async def official(url):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="the-callers", max_retries=0) as client:
        yield client


async def test_only_tools_that_may_be_right_go_on_and_everything_else_as_it_came(official, upstream):
    answer = await official.chat.completions.with_raw_response.create(
        model="large", messages=ASK, tools=TOOLS, temperature=0.3, seed=7, extra_body={"anything": {"x": 1}}
    )
    assert answer.parse().choices[0].message.content == "get_weather,shell"  # custom tools always go on
    assert answer.headers[HEADER] == "2 of 4"
    [body] = upstream.bodies
    assert body["tools"] == [TOOLS[1], TOOLS[3]]
    assert (body["messages"], body["temperature"], body["seed"], body["anything"]) == (ASK, 0.3, 7, {"x": 1})
    assert upstream.keys == ["Bearer the-callers"]


async def test_answers_stream_through(official):
    stream = await official.chat.completions.create(model="large", messages=ASK, tools=TOOLS, stream=True)
    assert [part.choices[0].delta.content async for part in stream] == ["get_weather", "shell"]


async def test_a_caller_who_leaves_ends_the_upstreams_answer(official, upstream):
    stream = await official.chat.completions.create(model="endless", messages=ASK, tools=TOOLS, stream=True)
    async for part in stream:
        if part.choices[0].delta.content == "wait":
            break
    await stream.close()
    await asyncio.wait_for(upstream.left.wait(), 30)


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"type": "function", "function": {"name": "book_hotel"}}, {"get_weather", "book_hotel", "shell"}),
        ("required", {"get_weather", "shell"}),
        ("none", {"send_mail", "get_weather", "book_hotel", "shell"}),
    ],
)
async def test_what_tool_choice_names_goes_on(official, upstream, choice, kept):
    answer = await official.chat.completions.create(model="large", messages=ASK, tools=TOOLS, tool_choice=choice)
    assert set(answer.choices[0].message.content.split(",")) == kept
    assert upstream.bodies[0]["tool_choice"] == choice


async def test_without_tools_nothing_is_routed(official, upstream):
    await official.chat.completions.create(model="large", messages=ASK)
    assert "tools" not in upstream.bodies[0]


async def test_the_upstreams_errors_are_passed_on(official):
    with pytest.raises(openai.NotFoundError, match="no such model"):
        await official.chat.completions.create(model="unknown", messages=ASK, tools=TOOLS)


async def test_our_own_model_still_decides_itself(official, upstream):
    answer = await official.chat.completions.create(model="base/words", messages=ASK, tools=TOOLS)
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert upstream.bodies == []


async def test_what_cannot_be_routed_goes_on_whole(official, upstream, server):
    server.engine.failure = EngineUnavailableError("down")
    answer = await official.chat.completions.with_raw_response.create(model="large", messages=ASK, tools=TOOLS)
    assert answer.headers[HEADER] == "4 of 4: not cut, EngineUnavailableError"
    strange = [{"role": "user", "content": [{"kind": "hologram"}]}]
    answer = await official.chat.completions.with_raw_response.create(model="large", messages=strange, tools=TOOLS)
    assert answer.headers[HEADER] == "4 of 4: not cut, InvalidRequestError"
    assert upstream.bodies[-1]["messages"] == strange


async def test_an_upstream_that_is_not_there_is_told(server):
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    gateway = GatewayConfig(url=f"http://127.0.0.1:{port}/v1")
    made = Gateway(server.service, gateway)
    with pytest.raises(EngineUnavailableError, match="cannot be reached"):
        await made.forward(Request({"type": "http", "headers": []}), {"model": "large", "messages": ASK})
    await made.close()


class TestWithKeys:
    @pytest.fixture
    def config(self, upstream):
        return Config(
            gateway=GatewayConfig(url=upstream.url, api_key="upstreams"), server=ServerConfig(api_keys=["the-callers"])
        )

    async def test_the_upstream_gets_its_own_key_and_never_the_callers(self, official, upstream, url):
        await official.chat.completions.create(model="large", messages=ASK, tools=TOOLS)
        assert upstream.keys == ["Bearer upstreams"]
        async with httpx.AsyncClient() as client:
            response = await client.post(f"{url}/v1/chat/completions", json={"model": "large", "messages": ASK})
        assert response.status_code == 401
