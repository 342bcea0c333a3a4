import json
import re
from typing import Any

import openai
import pytest

from serving.api.chat_answer import NONE_TOKEN
from serving.catalog.lines import read_lines
from serving.catalog.names import Names
from serving.prefilter.selection import RankingPrefilter

pytestmark = pytest.mark.anyio

WEATHER = [{"role": "user", "content": "weather in Lisbon?"}]
HELLO = [{"role": "user", "content": "hello there"}]
CUSTOM = {"type": "custom", "custom": {"name": "run_code", "description": "Execute python"}}


async def ask(client: Any, messages: Any = WEATHER, **fields: Any) -> Any:
    body = {"model": "base/words", "messages": messages, **fields}
    return await client.post("/v1/chat/completions", json=body)


async def call(client: Any, **fields: Any) -> dict[str, Any] | None:
    """The one tool call of the answer."""
    response = await ask(client, **fields)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    assert choice["message"]["content"] == (None if calls else "")
    if not calls:
        return None
    (call,) = calls
    return call


async def test_one_call_names_the_function(client: Any, tools: Any) -> None:
    response = await ask(client, tools=tools)
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "base/words"
    usage = answer["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert usage["completion_tokens"] == 1
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    made = await call(client, tools=tools)
    assert made
    assert made["type"] == "function"
    assert made["function"] == {"name": "get_weather", "arguments": "{}"}


@pytest.mark.parametrize("choice", ["auto", None, "absent"])
async def test_auto_and_absent_allow_none(client: Any, tools: Any, choice: str | None) -> None:
    fields = {} if choice == "absent" else {"tool_choice": choice}
    assert await call(client, messages=HELLO, tools=tools, **fields) is None


async def test_required_forbids_none(client: Any, tools: Any) -> None:
    assert await call(client, messages=HELLO, tools=tools, tool_choice="required")


async def test_none_makes_no_call_and_asks_no_model(client: Any, server: Any, tools: Any) -> None:
    assert await call(client, tools=tools, tool_choice="none") is None
    assert server.engine.scored == []


async def test_a_named_function_is_called_without_asking_the_model(client: Any, server: Any, tools: Any) -> None:
    choice = {"type": "function", "function": {"name": "send_mail"}}
    made = await call(client, tools=tools, tool_choice=choice)
    assert made
    assert made["function"]["name"] == "send_mail"
    assert server.engine.scored == []


@pytest.mark.parametrize(("mode", "called"), [("auto", False), ("required", True)])
async def test_allowed_tools(client: Any, tools: Any, mode: str, called: bool) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "send_mail"}}]}
    made = await call(client, tools=tools, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert bool(made) is called
    if made:
        assert made["function"]["name"] == "send_mail"


async def test_without_tools_there_is_no_call(client: Any) -> None:
    assert await call(client) is None
    assert await call(client, tools=[]) is None


async def test_custom_tools(client: Any, tools: Any) -> None:
    messages = [{"role": "user", "content": "execute some python"}]
    made = await call(client, messages=messages, tools=[*tools, CUSTOM])
    assert made
    assert (made["type"], made["custom"]) == ("custom", {"name": "run_code", "input": ""})
    choice = {"type": "custom", "custom": {"name": "run_code"}}
    assert (await call(client, tools=[*tools, CUSTOM], tool_choice=choice))["custom"]["name"] == "run_code"  # type: ignore[index]


async def test_the_posterior_is_in_logprobs(client: Any, tools: Any) -> None:
    response = await ask(client, tools=tools, logprobs=True, top_logprobs=2)
    (token,) = response.json()["choices"][0]["logprobs"]["content"]
    assert token["token"] == "get_weather"
    assert bytes(token["bytes"]).decode() == "get_weather"
    assert [top["token"] for top in token["top_logprobs"]] == ["get_weather", NONE_TOKEN]
    assert token["logprob"] == token["top_logprobs"][0]["logprob"] < 0


async def test_none_is_a_token_that_no_function_can_be_named(client: Any, tools: Any) -> None:
    response = await ask(client, HELLO, tools=tools, logprobs=True)
    (token,) = response.json()["choices"][0]["logprobs"]["content"]
    assert (token["token"], token["top_logprobs"]) == (NONE_TOKEN, [])
    named = {"type": "function", "function": {"name": NONE_TOKEN}}
    assert (await ask(client, tools=[named])).status_code == 400


async def test_what_cannot_be_is_as_unlikely_as_openai_says(client: Any, tools: Any) -> None:
    response = await ask(client, tools=tools, tool_choice="required", logprobs=True, top_logprobs=3)
    (token,) = response.json()["choices"][0]["logprobs"]["content"]
    assert token["top_logprobs"][-1] == {"token": NONE_TOKEN, "logprob": -9999.0, "bytes": list(NONE_TOKEN.encode())}


async def events(client: Any, **fields: Any) -> list[dict[str, Any]]:
    response = await ask(client, stream=True, **fields)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_the_stream_says_the_same(client: Any, tools: Any) -> None:
    chunks = await events(client, tools=tools, stream_options={"include_usage": True}, logprobs=True)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]
    assert chunks[-1]["choices"] == []
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0]["role"] == "assistant"
    assert deltas[0]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ""}
    assert deltas[1] == {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, "tool_calls"]
    assert chunks[0]["choices"][0]["logprobs"]["content"][0]["token"] == "get_weather"


async def test_a_stream_without_usage_does_not_mention_it(client: Any, tools: Any) -> None:
    chunks = await events(client, messages=HELLO, tools=tools)
    assert all("usage" not in chunk for chunk in chunks)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, "stop"]


async def test_a_custom_call_streams(client: Any, tools: Any) -> None:
    choice = {"type": "custom", "custom": {"name": "run_code"}}
    chunks = await events(client, tools=[*tools, CUSTOM], tool_choice=choice)
    (made,) = chunks[0]["choices"][0]["delta"]["tool_calls"]
    assert (made["index"], made["type"], made["custom"]) == (0, "custom", {"name": "run_code", "input": ""})


async def test_what_is_cut_is_reported(client: Any, tools: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "file", "file": {}}, {"type": "text", "text": "weather"}]}]
    expected = [{"where": "messages[0].content[0]", "tokens": 0, "kept": 0}]
    assert (await ask(client, messages, tools=tools)).json()["truncated"] == expected
    assert (await events(client, messages=messages, tools=tools))[-1]["truncated"] == expected


async def test_sampling_parameters_have_no_effect(client: Any, tools: Any) -> None:
    ignored = {
        "temperature": 0.7, "top_p": 0.1, "max_tokens": 1, "max_completion_tokens": 5, "seed": 1, "stop": ["x"],
        "user": "me", "metadata": {"a": "b"}, "parallel_tool_calls": True, "presence_penalty": 1, "store": False,
        "frequency_penalty": 1, "service_tier": "auto", "reasoning_effort": "low", "n": 1, "logit_bias": {},
        "response_format": {"type": "text"}, "modalities": ["text"], "prediction": None, "verbosity": "low",
        "prompt_cache_key": "k", "safety_identifier": "s", "functions": None,
    }  # fmt: skip
    assert await call(client, tools=tools, **ignored)


FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "where", "message"),
    [
        ({"n": 2}, "n", "should be 1, not 2"),
        ({"response_format": {"type": "json_object"}}, "response_format.type", "should be 'text'"),
        ({"functions": [{"name": "f"}]}, "functions", "functions is not supported by this server; leave it out"),
        ({"function_call": "auto"}, "function_call", "is not supported"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio", "is not supported"),
        ({"modalities": ["audio"]}, "modalities[0]", "should be 'text'"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "at most 0 items"),
        ({"store": True}, "store", "is not supported"),
        ({"guided_choice": ["a"]}, "guided_choice", "unknown field 'guided_choice'"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role", "should be 'system'"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].id", "tools[0] and tools[1] have the same id 'f'"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function", "is missing"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "should have a `type` of 'function', 'custom'"),
        ({"tools": [{"name": "f"}]}, "tools[0]", "should be an object with a `type`"),
        ({"tools": [{"type": "function", "function": {"name": "a.b"}}]}, "tools[0].function.name", "match pattern"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools[0].function.name", "match pattern"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tool_choice": "any"}, "tool_choice", "should be 'none', 'auto' or 'required'"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice",
         "names the function 'g', which is not in `tools`"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice",
         "names the custom 'f'"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
         "tool_choice.allowed_tools.tools", "at least 1 item"),
    ],
)  # fmt: skip
async def test_what_is_not_supported_or_wrong_is_refused(client: Any, fields: Any, where: str, message: str) -> None:
    response = await ask(client, **{"messages": WEATHER, **fields})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["param"]) == ("invalid_request_error", where)
    assert message in error["message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object", "properties": {"a": {"type": "strin"}}},
        {"type": "object", "properties": []},
        {"type": "object", "required": "a"},
        {"properties": {"a": {"minLength": "long"}}},
    ],
)
async def test_parameters_must_be_a_json_schema(client: Any, schema: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    response = await ask(client, tools=[tool])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools[0].function.parameters"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"items": [{"type": "string"}]}}},
        {"properties": {"a": {"minimum": 0, "exclusiveMinimum": True}}},
        {"$schema": "http://127.0.0.1:9/", "$ref": "http://127.0.0.1:9/", "properties": {"a": {"pattern": "(a+)+$"}}},
    ],
    ids=["empty", "no properties", "draft 7", "draft 4", "nothing is fetched"],
)
async def test_schemas_of_every_draft_are_taken(client: Any, schema: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert (await ask(client, tools=[tool])).status_code == 200


async def test_an_unknown_model_is_not_found(client: Any) -> None:
    response = await client.post("/v1/chat/completions", json={"model": "gpt-9", "messages": WEATHER})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (404, "model_not_found")
    assert "ask for 'base/words'" in error["message"]


CATALOG = [
    {"server": "github", "name": "search", "description": "Find code in repositories"},
    {"server": "jira", "name": "search", "description": "Find tickets in projects"},
    {"id": "1", "name": "天气", "description": "Weather forecast for a city"},
    {"id": "2", "name": "天气", "description": "Weather of yesterday"},
    {"id": "3", "name": "weather_bomb", "description": "Weather forecast for a city", "principals": ["bob"]},
    {"id": "4", "name": "weather_off", "description": "Weather forecast for a city", "enabled": False},
]


class TestCatalog:
    @pytest.fixture
    def prefilter(self, searching: RankingPrefilter) -> RankingPrefilter:
        return searching

    @pytest.fixture(autouse=True)
    async def written(self, server: Any, prefilter: Any) -> None:
        await prefilter.catalogs.store.upsert("main", read_lines(CATALOG).entries)
        await prefilter.catalogs.embedded()

    async def called(self, client: Any, text: str, **fields: Any) -> tuple[str, str] | None:
        """The id and the function's name of what is called."""
        messages = [{"role": "user", "content": text}]
        answer = (await ask(client, messages, catalog="main", **fields)).json()
        calls = answer["choices"][0]["message"]["tool_calls"]
        return (answer["candidate"], calls[0]["function"]["name"]) if calls else None

    async def test_tools_of_one_name_are_told_apart(self, client: Any) -> None:
        assert await self.called(client, "code in repositories") == ("github/search", "github__search")
        assert await self.called(client, "tickets in projects") == ("jira/search", "jira__search")
        assert await self.called(client, "hello there") is None

    async def test_a_name_leads_back_and_stays_whatever_is_asked(self, client: Any) -> None:
        names = Names([entry.candidate for entry in read_lines(CATALOG).entries])
        for filters in ({}, {"include": {"ids": ["1"]}}, {"exclude": {"ids": ["2"]}}):
            called = await self.called(client, "weather forecast for a city", **filters)
            assert called is not None
            assert re.fullmatch(r"tool_[0-9a-f]{16}", called[1])
            assert (names.resolve(called[1]), called[0]) == ("1", "1")

    async def test_a_name_follows_the_catalogue(self, client: Any, prefilter: Any) -> None:
        store, text = prefilter.catalogs.store, "code in repositories"
        await store.upsert("main", read_lines([{"id": "5", "name": "search", "server": "github"}]).entries)
        called = await self.called(client, text)
        assert called is not None
        assert re.fullmatch(r"github__search_[0-9a-f]{16}", called[1])
        await store.remove("main", ["5"])
        assert await self.called(client, text) == ("github/search", "github__search")

    async def test_logprobs_tell_the_same_names_and_nothing_hidden(self, client: Any) -> None:
        messages = [{"role": "user", "content": "weather forecast for a city"}]
        answer = (await ask(client, messages, catalog="main", logprobs=True, top_logprobs=20)).json()
        (token,) = answer["choices"][0]["logprobs"]["content"]
        names = Names([entry.candidate for entry in read_lines(CATALOG).entries])
        told = {top["token"] for top in token["top_logprobs"]} - {NONE_TOKEN}
        assert {names.resolve(name) for name in told} == {"github/search", "jira/search", "1", "2"}

    async def test_the_stream_tells_the_candidate(self, client: Any) -> None:
        chunks = await events(client, messages=[{"role": "user", "content": "code in repositories"}], catalog="main")
        assert chunks[-1]["candidate"] == "github/search"
        assert chunks[0]["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "github__search"

    async def test_the_official_client(self, url: str) -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as official:
            answer = await official.chat.completions.create(
                model="base/words",
                messages=[{"role": "user", "content": "code in repositories"}],
                extra_body={"catalog": "main", "include": {"servers": ["github"]}},
            )
        calls = answer.choices[0].message.tool_calls or []
        assert [call.function.name for call in calls if call.type == "function"] == ["github__search"]
        assert answer.model_extra is not None
        assert answer.model_extra["candidate"] == "github/search"

    async def test_choices(self, client: Any, server: Any) -> None:
        assert await self.called(client, "hello there", tool_choice="required")
        server.engine.scored.clear()
        assert await self.called(client, "code in repositories", tool_choice="none") is None
        assert server.engine.scored == []

    @pytest.mark.parametrize(
        ("fields", "where", "message"),
        [
            ({"catalog": "main", "tools": []}, "catalog", "not both"),
            ({"include": {"ids": ["1"]}}, "include", "filters a catalogue"),
            ({"catalog": "main", "exclude": {"names": []}}, "exclude.names", "Extra inputs"),
            ({"catalog": "main", "tool_choice": {"type": "function", "function": {"name": "github__search"}}},
             "tool_choice", "`include` allows only some"),
        ],
    )  # fmt: skip
    async def test_what_does_not_go_together(self, client: Any, fields: Any, where: str, message: str) -> None:
        response = await ask(client, **fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, where)
        assert message in error["message"]

    async def test_an_unknown_catalogue_is_not_found(self, client: Any) -> None:
        response = await ask(client, catalog="other")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
