"""The official client against a real server."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import openai
import pytest
from anyio.to_thread import run_sync

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"model": "base/words", "messages": [{"role": "user", "content": "weather in Lisbon?"}]}


@pytest.fixture
async def asynchronous(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def plain(url: str) -> AsyncIterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_plain(plain: openai.OpenAI, tools: Any) -> None:
    create = partial(plain.chat.completions.create, **ASK, tools=tools, logprobs=True, top_logprobs=5)
    answer = await run_sync(create)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", "{}")
    assert answer.choices[0].finish_reason == "tool_calls"
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3
    assert answer.usage.prompt_tokens_details.cached_tokens > 0
    assert answer._request_id


async def test_plain_stream(plain: openai.OpenAI, tools: Any) -> None:
    def names() -> list[str]:
        chunks = plain.chat.completions.create(**ASK, tools=tools, stream=True)
        calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
        return [call.function.name for call in calls if call.function.name]

    assert await run_sync(names) == ["get_weather"]


async def test_asynchronous(asynchronous: openai.AsyncOpenAI, tools: Any) -> None:
    answer = await asynchronous.chat.completions.create(**ASK, tools=tools)
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


async def test_asynchronous_stream_helper(asynchronous: openai.AsyncOpenAI, tools: Any) -> None:
    stream = asynchronous.chat.completions.stream(**ASK, tools=tools, stream_options={"include_usage": True})
    async with stream as events:
        answer = await events.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", "{}")
    assert answer.usage.total_tokens > 0


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ("auto", "get_weather"),
        ("required", "get_weather"),
        ("none", None),
        ({"type": "function", "function": {"name": "send_mail"}}, "send_mail"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "send_mail"}}],
                },
            },
            "send_mail",
        ),
    ],
)
async def test_every_tool_choice(asynchronous: openai.AsyncOpenAI, tools: Any, choice: Any, called: str | None) -> None:
    answer = await asynchronous.chat.completions.create(**ASK, tools=tools, tool_choice=choice)
    calls = answer.choices[0].message.tool_calls or []
    assert [call.function.name for call in calls] == ([called] if called else [])


async def test_an_answer_goes_back_as_history(asynchronous: openai.AsyncOpenAI, server: Any, tools: Any) -> None:
    message = (await asynchronous.chat.completions.create(**ASK, tools=tools)).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages = [*ASK["messages"], message, result, {"role": "user", "content": "mail it"}]
    await asynchronous.chat.completions.create(model="base/words", messages=messages, tools=tools)
    seen = server.engine.tokenizer.decode(server.engine.scored[-1].prefix)
    assert "get_weather: sunny" in seen


async def test_wrong_model(asynchronous: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        await asynchronous.chat.completions.create(**{**ASK, "model": "gpt-9"})
    assert error.value.code == "model_not_found"


async def test_bad_tool_schema(asynchronous: openai.AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "objct"}}}
    with pytest.raises(openai.BadRequestError) as error:
        await asynchronous.chat.completions.create(**ASK, tools=[tool])
    assert error.value.param == "tools[0].function.parameters"


async def test_models(asynchronous: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in asynchronous.models.list()] == ["base/words"]
    assert (await asynchronous.models.retrieve("base/words")).id == "base/words"
    with pytest.raises(openai.NotFoundError):
        await asynchronous.models.retrieve("gpt-9")
