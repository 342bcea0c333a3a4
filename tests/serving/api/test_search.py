"""Tool search over a real SQLite catalogue and the real rankers; only the model is a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import FunctionTool, ResponseToolSearchOutputItem

from serving.catalog.catalogs import Catalogs
from serving.catalog.lines import read_lines
from serving.catalog.names import Names
from serving.catalog.store import Store
from serving.config import PrefilterConfig
from serving.prefilter import make_rankers
from serving.prefilter.embedder import Embeddings, LocalEmbedder
from serving.prefilter.selection import RankingPrefilter
from serving.types import EngineTimeoutError
from tests.conftest import MODELS
from tests.serving.api.conftest import Server

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LINES: list[dict[str, Any]] = [
    {"server": "github", "name": "search", "description": "Find code in repositories", "tags": ["code"]},
    {"server": "jira", "name": "search", "description": "Find tickets in projects", "inputSchema": SCHEMA},
    {"server": "geo", "name": "get_weather", "description": "Weather forecast for a city", "inputSchema": SCHEMA},
    {"server": "geo", "name": "get_weather_history", "description": "Past weather of a city", "inputSchema": SCHEMA},
    {"server": "mail", "name": "send_mail", "description": "Send a letter by electronic mail"},
    {"server": "clock", "name": "now", "description": "The weather needs no clock", "pinned": True},
    {"server": "secret", "name": "weather_bomb", "description": "Weather forecast for a city", "principals": ["bob"]},
    {"server": "off", "name": "old_weather", "description": "Weather forecast for a city", "enabled": False},
    {"server": "secret", "name": "weather_pin", "description": "Weather", "principals": ["bob"], "pinned": True},
    {"server": "почта", "name": "найти_письмо", "description": "Найти письмо в почтовом ящике"},
    {"server": "天气", "name": "天气预报", "description": "查询城市天气预报"},
    {"id": "chef", "type": "agent", "name": "chef", "description": "Cooks dinner", "tools": ["boil"]},
]
HIDDEN = {"secret/weather_bomb", "off/old_weather", "secret/weather_pin"}
METHODS = ["bm25", "regex", "embedding", "hybrid", "router"]


@pytest.fixture
def prefilter(searching: RankingPrefilter) -> RankingPrefilter:
    return searching


@pytest.fixture
async def client(server: Server, prefilter: RankingPrefilter) -> AsyncIterator[httpx.AsyncClient]:
    catalogs = prefilter.catalogs
    assert catalogs is not None
    await catalogs.store.upsert("main", read_lines(LINES).entries)
    await catalogs.embedded()
    async with server.client() as client:
        yield client


async def search(client: httpx.AsyncClient, query: str, **fields: Any) -> Any:
    if "tools" not in fields:
        fields.setdefault("catalog", "main")
    response = await client.post("/v1/tools/search", json={"query": query, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def ids(answer: Any) -> list[str]:
    return [reference["id"] for reference in answer["references"]]


async def refused(client: httpx.AsyncClient, status: int = 422, **body: Any) -> tuple[str, str | None]:
    response = await client.post("/v1/tools/search", json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    return error["message"], error["param"]


# What is found


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_finds_the_best_first(client: httpx.AsyncClient, method: str) -> None:
    query = "forecast.*city" if method == "regex" else "weather forecast for a city"
    answer = await search(client, query, method=method)
    assert ids(answer)[0] == "geo/get_weather"
    assert answer["method"] == method
    scores = [reference["score"] for reference in answer["references"]]
    assert scores == sorted(scores, reverse=True)
    assert all(score > 0 for score in scores)


async def test_the_usual_method_and_number(client: httpx.AsyncClient) -> None:
    answer = await search(client, "weather mail search code city letter dinner")
    assert answer["method"] == "hybrid"
    assert len(answer["references"]) == 5
    assert len(ids(await search(client, "weather mail search code city", limit=2))) == 2


async def test_what_nothing_speaks_for_is_not_found(client: httpx.AsyncClient) -> None:
    assert ids(await search(client, "xylophone", method="bm25")) == []
    assert ids(await search(client, "xylophone", method="regex")) == []


async def test_few_candidates_are_ranked_too(client: httpx.AsyncClient) -> None:
    answer = await search(client, "past weather", include={"servers": ["geo"]}, limit=20, method="bm25")
    assert ids(answer) == ["geo/get_weather_history", "geo/get_weather"]


async def test_the_router_tells_probabilities_and_none(client: httpx.AsyncClient, server: Server) -> None:
    answer = await search(client, "weather forecast for a city", method="router")
    probabilities = [one["score"] for one in answer["references"] + answer["loaded"]]
    assert len(server.engine.scored) == 1
    assert 0 < answer["none_probability"] < answer["references"][0]["score"]
    assert sum(probabilities) + answer["none_probability"] <= 1 + 1e-6
    everything = await search(client, "weather", method="router", limit=20)
    probabilities = [one["score"] for one in everything["references"] + everything["loaded"]]
    assert sum(probabilities) + everything["none_probability"] == pytest.approx(1)


async def test_other_methods_ask_no_model(client: httpx.AsyncClient, server: Server) -> None:
    answer = await search(client, "weather")
    assert server.engine.scored == []
    assert "none_probability" not in answer


async def test_a_bare_name_is_found_by_regex_before_longer_ones(client: httpx.AsyncClient) -> None:
    answer = await search(client, "get_weather", method="regex")
    assert ids(answer) == ["geo/get_weather", "geo/get_weather_history"]
    assert answer["references"][0]["score"] > answer["references"][1]["score"]


@pytest.mark.parametrize("method", ["bm25", "regex", "hybrid"])
@pytest.mark.parametrize(("query", "expected"), [("найти письмо", "почта/найти_письмо"), ("天气预报", "天气/天气预报")])
async def test_cyrillic_and_chinese(client: httpx.AsyncClient, method: str, query: str, expected: str) -> None:
    asked = query.replace(" ", ".") if method == "regex" else query
    assert ids(await search(client, asked, method=method))[0] == expected


async def test_a_long_query(client: httpx.AsyncClient) -> None:
    query = "weather forecast for a city, " * 2_000
    for method in ("bm25", "embedding", "hybrid", "router"):
        assert ids(await search(client, query, method=method))[0] == "geo/get_weather"


async def test_history_is_searched_for_too(client: httpx.AsyncClient) -> None:
    history = [{"role": "user", "content": "I want to cook dinner"}, {"role": "assistant", "content": "Gladly."}]
    assert ids(await search(client, "who can help?", method="bm25")) == []
    assert ids(await search(client, "who can help?", messages=history, method="bm25")) == ["chef"]
    assert ids(await search(client, "send_mail", messages=history, method="regex")) == ["mail/send_mail"]


async def test_parts_of_the_history_that_are_no_text_are_told(client: httpx.AsyncClient) -> None:
    history = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    answer = await search(client, "weather", messages=history)
    assert answer["truncated"] == [{"where": "messages[0].content[0]", "tokens": 0, "kept": 0}]


# What is not to be seen, and what is loaded


@pytest.mark.parametrize("method", METHODS)
async def test_nothing_hidden_shows(client: httpx.AsyncClient, method: str) -> None:
    answer = await search(client, "weather", method=method, limit=20, detail="full")
    assert HIDDEN.isdisjoint(ids(answer))
    assert [one["id"] for one in answer["loaded"]] == ["clock/now"]
    named = {"ids": sorted(HIDDEN)}
    nothing = await search(client, "weather", method=method, include=named)
    assert (nothing["references"], nothing["loaded"]) == ([], [])


@pytest.mark.parametrize("method", METHODS)
async def test_filters_hold_for_what_is_found_and_loaded(client: httpx.AsyncClient, method: str) -> None:
    answer = await search(client, "weather", method=method, exclude={"servers": ["geo", "clock"]}, limit=20)
    assert answer["loaded"] == []
    assert not any(id_.startswith("geo/") for id_ in ids(answer))


async def test_what_is_loaded_is_listed_and_never_found(client: httpx.AsyncClient) -> None:
    answer = await search(client, "now clock", method="bm25")
    assert ids(answer) == []
    assert answer["loaded"] == [{"id": "clock/now", "name": "clock__now", "server": "clock", "type": "tool",
                                 "score": None, "description": "The weather needs no clock"}]  # fmt: skip


# How it is told


async def test_two_servers_tools_of_one_name_are_told_apart(client: httpx.AsyncClient) -> None:
    answer = await search(client, "search", method="regex")
    named = {reference["id"]: reference["name"] for reference in answer["references"]}
    assert named == {"github/search": "github__search", "jira/search": "jira__search"}
    everything = Names([entry.candidate for entry in read_lines(LINES).entries])
    assert {everything.resolve(name) for name in named.values()} == {"github/search", "jira/search"}


async def test_details(client: httpx.AsyncClient) -> None:
    brief = {"id": "geo/get_weather", "name": "geo__get_weather", "server": "geo", "type": "tool"}
    described = {**brief, "description": "Weather forecast for a city"}
    full: dict[str, Any] = {
        **described,
        "input_schema": SCHEMA,
        "output_schema": None,
        "annotations": None,
        "tools": [],
        "tags": [],
    }
    for detail, expected in (("name", brief), ("description", described), ("full", full)):
        first = (await search(client, "weather forecast", detail=detail))["references"][0]
        assert first.pop("score") > 0
        assert first == expected


async def test_anthropics_shape(client: httpx.AsyncClient) -> None:
    answer = await search(client, "get_weather", method="regex", format="anthropic", call_id="toolu_1")
    references = [
        {"type": "tool_reference", "tool_name": "geo__get_weather"},
        {"type": "tool_reference", "tool_name": "geo__get_weather_history"},
    ]
    assert answer == {"type": "tool_result", "tool_use_id": "toolu_1", "content": references}


async def test_openais_shape(client: httpx.AsyncClient) -> None:
    answer = await search(client, "forecast|chef", method="regex", format="openai", call_id="call_1")
    assert {key: value for key, value in answer.items() if key != "tools"} == {
        "type": "tool_search_output", "execution": "client", "call_id": "call_1", "status": "completed"
    }  # fmt: skip
    function = {"type": "function", "strict": False, "defer_loading": True}
    assert answer["tools"] == [
        {**function, "name": "chef", "description": "Cooks dinner", "parameters": {"type": "object", "properties": {}}},
        {**function, "name": "geo__get_weather", "description": "Weather forecast for a city", "parameters": SCHEMA},
    ]
    read = ResponseToolSearchOutputItem.model_validate({**answer, "id": "tso_1"})
    assert [type(tool) for tool in read.tools] == [FunctionTool, FunctionTool]


# Tools that the request brings

ANTHROPIC: list[dict[str, Any]] = [
    {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
    {"name": "_get.weather", "description": "Weather forecast", "input_schema": SCHEMA, "defer_loading": True},
    {"name": "send_mail", "description": "Send a letter", "input_schema": {"type": "object"}, "defer_loading": True},
]
OPENAI = [
    {"type": "tool_search", "execution": "client"},
    {"type": "function", "name": "get_weather", "description": "Weather", "parameters": SCHEMA, "defer_loading": True},
    {"type": "function", "function": {"name": "send_mail", "description": "Send"}, "defer_loading": True},
    {"type": "custom", "name": "run_code", "description": "Execute python", "defer_loading": True},
    {"type": "function", "name": "now", "description": "The time of weather"},
]


@pytest.mark.parametrize("method", ["bm25", "embedding", "hybrid", "router"])
async def test_a_requests_own_tools(client: httpx.AsyncClient, method: str) -> None:
    answer = await search(client, "weather", tools=OPENAI, method=method)
    assert ids(answer)[0] == "get_weather"
    assert [one["id"] for one in answer["loaded"]] == ["now"]


async def test_tools_keep_the_names_that_their_caller_gave_them(client: httpx.AsyncClient) -> None:
    answer = await search(client, "weather", tools=ANTHROPIC, format="anthropic", method="bm25")
    assert answer["content"] == [{"type": "tool_reference", "tool_name": "_get.weather"}]
    lines = [{"id": one, "server": one, "name": "search", "defer_loading": one != "c"} for one in "abc"]
    answer = await search(client, "search", tools=lines, method="regex")
    assert {one["id"]: one["name"] for one in answer["references"]} == {"a": "a__search", "b": "b__search"}


async def test_tools_for_free_text_stay_that(client: httpx.AsyncClient) -> None:
    answer = await search(client, "weather|run", tools=OPENAI, format="openai", method="regex", limit=20)
    kinds = {tool["name"]: tool["type"] for tool in answer["tools"]}
    assert kinds == {"get_weather": "function", "run_code": "custom"}


async def test_all_deferred_is_refused_as_providers_do(client: httpx.AsyncClient) -> None:
    message, where = await refused(client, query="x", tools=ANTHROPIC[1:])
    assert "at least one must be loaded" in message
    assert where == "tools"
    deferred = {**ANTHROPIC[0], "defer_loading": True}
    _, where = await refused(client, query="x", tools=[deferred, *ANTHROPIC[1:]])
    assert where == "tools[0].defer_loading"
    assert (await refused(client, query="x", tools=[]))[1] == "tools"


# What is refused


@pytest.mark.parametrize("pattern", ["(", "a{2000}", "(?=x)", r"(\w+)\1", "x" * 501, "(((a{100}){100}){100})"])
async def test_a_pattern_that_re2_does_not_take(client: httpx.AsyncClient, pattern: str) -> None:
    message, where = await refused(client, query=pattern, catalog="main", method="regex")
    assert where == "query"
    assert "pattern" in message


async def test_a_hostile_pattern_is_just_searched_for(client: httpx.AsyncClient) -> None:
    assert ids(await search(client, "(a+)+$|(.*)*q(.*)*z", method="regex")) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(query=st.text(min_size=1, max_size=40), method=st.sampled_from(METHODS))
async def test_any_query(client: httpx.AsyncClient, query: str, method: str) -> None:
    response = await client.post("/v1/tools/search", json={"query": query, "catalog": "main", "method": method})
    if response.status_code == 422 and method == "regex":
        assert response.json()["error"]["param"] == "query"
        return
    assert response.status_code == 200
    assert HIDDEN.isdisjoint(ids(response.json()))


@pytest.mark.parametrize(
    ("body", "where", "message"),
    [
        ({"catalog": "main"}, "query", "is missing"),
        ({"query": "", "catalog": "main"}, "query", "at least 1 character"),
        ({"query": "x"}, "catalog", "nothing to search"),
        ({"query": "x", "catalog": "main", "tools": ANTHROPIC}, "catalog", "only one of"),
        ({"query": "x", "tools": ANTHROPIC, "include": {}}, "include", "filters a catalogue"),
        ({"query": "x", "catalog": "main", "limit": 0}, "limit", "greater than or equal to 1"),
        ({"query": "x", "catalog": "main", "limit": 21}, "limit", "less than or equal to 20"),
        ({"query": "x", "catalog": "main", "method": "magic"}, "method", "should be 'bm25'"),
        ({"query": "x", "catalog": "main", "detail": "all"}, "detail", "should be 'name'"),
        ({"query": "x", "catalog": "main", "k": 3}, "k", "unknown field 'k'"),
        ({"query": "x", "tools": [{"name": 1}]}, "tools[0].name", "should be a valid string"),
        ({"query": "x", "tools": [{"name": "a", "defer_loading": "yes"}]}, "tools[0].defer_loading", "boolean"),
        ({"query": "x", "tools": [{"name": "a"}, {"name": "a"}]}, "tools[1].id", "have the same id 'a'"),
    ],
)
async def test_what_is_wrong_is_told(client: httpx.AsyncClient, body: Any, where: str, message: str) -> None:
    told, param = await refused(client, **body)
    assert param == where
    assert message in told


@pytest.mark.parametrize("method", ["bm25", "router"])
async def test_an_unknown_catalogue_is_not_found(client: httpx.AsyncClient, method: str) -> None:
    message, _ = await refused(client, 404, query="x", catalog="other", method=method)
    assert "'other'" in message


async def test_searches_are_counted(client: httpx.AsyncClient, server: Server) -> None:
    await search(client, "weather")
    await refused(client, query="(", catalog="main", method="regex")
    server.engine.failure = EngineTimeoutError("slow")
    await refused(client, 504, query="weather", catalog="main", method="router")
    assert server.metric("requests_total", surface="search", outcome="ok") == 1
    assert server.metric("requests_total", surface="search", outcome="invalid_request") == 1
    assert server.metric("requests_total", surface="search", outcome="engine_timeout") == 1


async def test_answers_are_as_described(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    answers = document["paths"]["/v1/tools/search"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]

    def check(schema: dict[str, Any], value: Any) -> None:
        jsonschema_rs.validate({**schema, "components": document["components"]}, value)

    for form in ("light_router", "anthropic", "openai"):
        body = {"query": "weather", "tools": OPENAI, "format": form, "detail": "full", "method": "router"}
        check({"$ref": "#/components/schemas/SearchBody"}, body)
        answer = (await client.post("/v1/tools/search", json=body)).json()
        check(answers, answer)


class TestWithoutEmbedder:
    @pytest.fixture
    def prefilter(self) -> RankingPrefilter:
        config = PrefilterConfig(method="bm25")
        return RankingPrefilter(make_rankers(config, None), config)

    @pytest.fixture
    async def client(self, server: Server) -> AsyncIterator[httpx.AsyncClient]:
        async with server.client() as client:
            yield client

    async def test_words_are_what_there_is(self, client: httpx.AsyncClient) -> None:
        answer = await search(client, "weather", tools=OPENAI)
        assert (answer["method"], ids(answer)) == ("bm25", ["get_weather"])
        message, where = await refused(client, query="x", tools=OPENAI, method="embedding")
        assert (where, "no embedder" in message) == ("method", True)

    async def test_there_is_no_catalogue(self, client: httpx.AsyncClient) -> None:
        message, _ = await refused(client, 404, query="x", catalog="main")
        assert "keeps none" in message


class TestWithTheShippedEmbedder:
    @pytest.fixture
    def prefilter(self, tmp_path: Path) -> RankingPrefilter:
        embeddings = Embeddings(LocalEmbedder(str(MODELS / "all-minilm-l6-v2"), threads=1), 10**6)
        catalogs = Catalogs(Store(f"sqlite:///{tmp_path / 'catalog.db'}"), embeddings, "minilm", poll_s=60)
        config = PrefilterConfig()
        return RankingPrefilter(make_rankers(config, embeddings), config, catalogs)

    async def test_long_and_foreign_queries(self, client: httpx.AsyncClient) -> None:
        long = "weather forecast for a city " * 500
        assert ids(await search(client, long, method="embedding"))[0] == "geo/get_weather"
        for method in ("embedding", "hybrid"):
            assert ids(await search(client, "найти письмо", method=method))[0] == "почта/найти_письмо"
            assert ids(await search(client, "天气预报", method=method))[0] == "天气/天气预报"
