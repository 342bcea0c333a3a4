from typing import Any

import jsonschema_rs
import pytest

from serving.config import Config

pytestmark = pytest.mark.anyio

OPERATIONS = {
    ("post", "/v1/route"): {"200", "401", "403", "413", "422", "429", "503", "504"},
    ("post", "/v1/chat/completions"): {"200", "400", "401", "403", "404", "413", "429", "503", "504"},
    ("post", "/v1/tools/search"): {"200", "401", "403", "404", "413", "422", "429", "503", "504"},
    ("get", "/v1/models"): {"200", "401", "403"},
    ("get", "/v1/models/{name}"): {"200", "401", "403", "404"},
    ("get", "/version"): {"200", "401", "403"},
    ("get", "/info"): {"200", "401", "403"},
    ("get", "/health/live"): {"200"},
    ("get", "/health/ready"): {"200", "503"},
    ("get", "/metrics"): {"200"},
}


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


async def test_every_route_and_all_its_answers_are_described(client: Any) -> None:
    document = (await client.get("/openapi.json")).json()
    described = {
        (method, path): set(operation["responses"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert described == OPERATIONS


async def test_every_reference_resolves_and_nothing_is_left_over(client: Any) -> None:
    document = (await client.get("/openapi.json")).json()
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) == schemas


async def test_answers_and_bodies_are_as_described(client: Any, tools: Any) -> None:
    document = (await client.get("/openapi.json")).json()

    def check(name: str, value: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema_rs.validate(schema, value)

    route = {"query": "weather", "history": [{"role": "system", "content": [{"type": "text", "text": "x"}]}],
             "candidates": [*tools, {"name": "a", "inputSchema": {}}], "coverage": 0.5}  # fmt: skip
    check("RouteBody", route)
    check("RouteAnswer", (await client.post("/v1/route", json=route)).json())
    chat = {"model": "base/words", "messages": [{"role": "user", "content": "weather"}], "tools": tools,
            "logprobs": True, "top_logprobs": 3}  # fmt: skip
    check("ChatBody", chat)
    check("ChatAnswer", (await client.post("/v1/chat/completions", json=chat)).json())
    check("ErrorAnswer", (await client.post("/v1/route", content=b"{")).json())
    check("Info", (await client.get("/info")).json())
    check("ReadyReport", (await client.get("/health/ready")).json())
    with pytest.raises(ValueError, match="katalog"):
        check("RouteBody", {**route, "katalog": "x"})


async def test_without_keys_none_is_described(client: Any) -> None:
    document = (await client.get("/openapi.json")).json()
    assert "securitySchemes" not in document["components"]


class TestKeys:
    @pytest.fixture
    def config(self) -> Config:
        return Config.model_validate({"server": {"api_keys": ["key"]}})

    async def test_a_key_is_described_where_it_is_asked_for(self, client: Any) -> None:
        document = (await client.get("/openapi.json", headers={"authorization": "Bearer key"})).json()
        assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
        assert document["paths"]["/info"]["get"]["security"] == [{"key": []}]
        assert document["paths"]["/metrics"]["get"]["security"] == []
