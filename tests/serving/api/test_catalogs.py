from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema_rs
import pytest
from fastapi import FastAPI
from fastapi.middleware import Middleware
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from serving.api import catalogs
from serving.api.app import _reraise
from serving.api.auth import RequestIdMiddleware
from serving.api.errors import OutcomeMiddleware
from serving.api.openapi import describe
from serving.catalog.entry import Server
from serving.catalog.store import Store
from serving.telemetry import Telemetry
from tests.live import serving

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Forecast", "parameters": SCHEMA}},
    {"server": "github", "name": "search", "inputSchema": SCHEMA, "pinned": True},
    {"server": "jira", "name": "search", "input_schema": SCHEMA, "enabled": False, "tags": ["a"]},
    {"id": "x/y", "name": "cook", "type": "agent", "principals": ["bob"], "tools": ["boil"], "queries": ["Lunch?"]},
]
ALL = "http://test/v1/catalogs"
IDS = ["github/search", "jira/search", "weather", "x/y"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'catalog.db'}")
    await store.start()
    yield store
    await store.close()


@pytest.fixture
def app(store: Store) -> FastAPI:
    app = FastAPI(
        middleware=[
            Middleware(RequestIdMiddleware),
            Middleware(OutcomeMiddleware, telemetry=Telemetry(), surfaces={}),
        ],
        exception_handlers={HTTPException: _reraise},
        redirect_slashes=False,
    )
    app.include_router(catalogs.routes(store))
    describe(app, catalogs.BODIES, with_key=False)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ALL) as client:
        yield client


@pytest.fixture
async def filled(client: httpx.AsyncClient) -> httpx.AsyncClient:
    assert (await client.post("/c/candidates", json={"candidates": TOOLS})).json() == {"version": 1}
    return client


def ids(response: httpx.Response) -> list[str]:
    return [candidate["id"] for candidate in response.json()["candidates"]]


def fault(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def test_a_catalogue_s_life(client: httpx.AsyncClient) -> None:
    assert (await client.get(ALL)).json() == {"catalogs": []}
    for _ in range(2):
        made = await client.put("/c")
        assert (made.status_code, made.json()) == (200, {"name": "c", "version": 1, "candidates": 0})
    await client.post("/c/candidates", json={"candidates": TOOLS})
    shown = await client.get("/c")
    assert (shown.json(), shown.headers["etag"]) == ({"name": "c", "version": 2, "candidates": 4}, '"2"')
    assert (await client.get(ALL)).json() == {"catalogs": [shown.json()]}
    assert fault(await client.delete("/c", headers={"if-match": '"1"'})) == (412, "version_conflict", None)
    assert (await client.delete("/c", headers={"if-match": '"2"'})).status_code == 204
    assert fault(await client.delete("/c")) == (404, "not_found", None)
    assert fault(await client.get("/c")) == (404, "not_found", None)
    assert fault(await client.put("/.c")) == (422, "invalid_request", "catalog")


async def test_every_shape_with_what_a_catalogue_adds(filled: httpx.AsyncClient) -> None:
    weather, search, agent = [(await filled.get(f"/c/candidates/{id}")).json() for id in ("weather", IDS[1], "x/y")]
    assert weather == {
        "id": "weather", "type": "tool", "server": "", "name": "weather", "description": "Forecast",
        "input_schema": SCHEMA, "output_schema": None, "annotations": None, "tools": [], "tags": [], "pinned": False,
        "enabled": True, "principals": [], "queries": [], "intentions": [], "version": 1, "stale": False,
    }  # fmt: skip
    assert (search["server"], search["enabled"], search["tags"]) == ("jira", False, ["a"])
    assert (agent["type"], agent["principals"], agent["queries"]) == ("agent", ["bob"], ["Lunch?"])


async def test_what_is_read_can_be_written_again(filled: httpx.AsyncClient) -> None:
    listed = (await filled.get("/c/candidates")).json()["candidates"]
    answer = await filled.post("/c/candidates", json={"candidates": listed})
    assert (answer.json(), answer.headers["etag"]) == ({"version": 1}, '"1"')  # nothing has changed


async def test_pages(filled: httpx.AsyncClient) -> None:
    first = await filled.get("/c/candidates", params={"limit": 3})
    assert (ids(first), first.json()["next"]) == (IDS[:3], IDS[2])
    second = await filled.get("/c/candidates", params={"limit": 3, "after": IDS[2]})
    assert (ids(second), second.json()["next"]) == (IDS[3:], None)
    for asked, expected in (
        ({"server": "jira"}, IDS[1:2]),
        ({"type": "agent"}, IDS[3:]),
        ({"tag": "a"}, IDS[1:2]),
        ({"text": "FORE"}, IDS[2:3]),
        ({"server": "jira", "type": "agent"}, []),
    ):
        assert ids(await filled.get("/c/candidates", params=asked)) == expected


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"type": "server"}, "type"),
        ({"sever": "x"}, "sever"),
        ({"after": "\0"}, "after"),
        ({"text": "\0"}, "text"),
    ],
)
async def test_a_wrong_page(filled: httpx.AsyncClient, asked: dict[str, str], where: str) -> None:
    assert fault(await filled.get("/c/candidates", params=asked)) == (422, "invalid_request", where)


async def test_one_candidate_s_life(filled: httpx.AsyncClient) -> None:
    before = await filled.get("/c/candidates/weather")
    assert before.headers["etag"] == '"1"'
    await filled.post("/c/candidates", json={"candidates": [{"name": "other"}]})
    # Others' changes do not matter to its ETag.
    body = {"name": "Weather", "description": "A better forecast"}
    after = await filled.put("/c/candidates/weather", json=body, headers={"if-match": before.headers["etag"]})
    assert (after.json()["id"], after.json()["name"], after.headers["etag"]) == ("weather", "Weather", '"3"')
    late = {"if-match": before.headers["etag"]}
    assert fault(await filled.put("/c/candidates/weather", json=body, headers=late)) == (412, "version_conflict", None)
    assert fault(await filled.delete("/c/candidates/weather", headers=late)) == (412, "version_conflict", None)
    assert (await filled.delete("/c/candidates/weather", headers={"if-match": '"3"'})).status_code == 204
    for response in (await filled.get("/c/candidates/weather"), await filled.delete("/c/candidates/weather")):
        assert fault(response) == (404, "not_found", None)
    answer = await filled.put("/c/candidates/weather", json=body, headers={"if-match": "*"})
    assert fault(answer) == (412, "version_conflict", None)
    assert (await filled.put("/c/candidates/weather", json=body)).headers["etag"] == '"5"'


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("*", 200),
        ('"1"', 200),
        ('"7", "1"', 200),
        ('"x","1"', 200),
        ('W/"1"', 412),
        ('"01x"', 412),
        ('""', 412),
        ('"99999999999999999999999999"', 412),
        ("1", 422),
        ('"1', 422),
        ("1, *", 422),
    ],
)
async def test_if_match(filled: httpx.AsyncClient, header: str, status: int) -> None:
    headers = {"if-match": header}
    one = await filled.put("/c/candidates/weather", json={"name": "weather"}, headers=headers)
    assert one.status_code == status
    await filled.delete("/c")
    await filled.post("/d/candidates", json={"candidates": TOOLS})
    many = await filled.post("/d/candidates", json={"candidates": [{"name": "weather"}]}, headers=headers)
    assert many.status_code == status


class TestIds:
    ANY = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(ANY.filter(lambda id: set(id.split("/")).isdisjoint({".", ".."})))
    async def test_any_id_stands_in_a_path(self, client: httpx.AsyncClient, id: str) -> None:
        path = f"/c/candidates/{quote(id, safe='')}"
        await client.put("/c")
        assert (await client.put(path, json={"name": "x"})).json()["id"] == id
        assert (await client.get(path)).json()["id"] == id
        assert ids(await client.get("/c/candidates")) == [id]
        assert (await client.delete(path)).status_code == 204
        assert ids(await client.get("/c/candidates")) == []

    @pytest.mark.parametrize("id", ["a/b", "/a//b/", "a%2Fb", "a b+c?d#e", "天气", "line\nbreak\n", "%", "candidates"])
    async def test_through_a_real_server(self, app: FastAPI, id: str) -> None:
        async with serving(app, lifespan="off") as port, httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}/v1/catalogs/c"
            await client.put(url)
            answer = await client.put(f"{url}/candidates/{quote(id, safe='')}", json={"name": "x"})
            assert answer.json()["id"] == id

    async def test_what_no_database_can_hold(self, filled: httpx.AsyncClient) -> None:
        assert fault(await filled.get("/c/candidates/%00")) == (422, "invalid_request", "ids[0]")
        bad = {"candidates": [{"name": "good"}, {"name": "a\0"}]}
        assert fault(await filled.post("/c/candidates", json=bad)) == (422, "invalid_request", "candidates[1].id")
        assert ids(await filled.get("/c/candidates")) == IDS


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"candidates": [{"name": "a"}, {"name": "a"}]}, "candidates[1].id"),
        ({"candidates": [{"name": "a", "pinned": "yes"}]}, "candidates[0].pinned"),
        ({"candidates": [{"function": {"name": "a"}, "principals": [1]}]}, "candidates[0].principals[0]"),
        ({"candidates": {"name": "a"}}, "candidates"),
        ({"tools": []}, "tools"),
        ([], None),
        ({}, "candidates"),
    ],
)
async def test_a_wrong_list_changes_nothing(filled: httpx.AsyncClient, body: Any, where: str | None) -> None:
    assert fault(await filled.post("/c/candidates", json=body)) == (422, "invalid_request", where)
    assert (await filled.get("/c")).json()["version"] == 1


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"name": "a", "id": "other"}, "id"),
        ({"name": "a", "type": "server"}, "type"),
        ({"description": "a"}, "name"),
        ({"name": "a", "enabled": None}, "enabled"),
        ([], None),
    ],
)
async def test_a_wrong_candidate(filled: httpx.AsyncClient, body: Any, where: str | None) -> None:
    assert fault(await filled.put("/c/candidates/weather", json=body)) == (422, "invalid_request", where)


async def test_one_candidate_needs_a_catalogue(client: httpx.AsyncClient) -> None:
    assert fault(await client.put("/c/candidates/weather", json={"name": "a"})) == (404, "not_found", None)
    assert fault(await client.get("/c/candidates")) == (404, "not_found", None)
    assert fault(await client.get("/c/servers")) == (404, "not_found", None)


async def test_servers_are_described_by_lines_and_keep_their_source(filled: httpx.AsyncClient, store: Store) -> None:
    await store.put_server("c", Server("jira", "old", {"kind": "mcp", "url": "http://x"}, synced_at=1.5))
    lines = [{"type": "server", "name": "jira", "description": "Issues"}, {"type": "server", "name": "new"}]
    await filled.post("/c/candidates", json={"candidates": lines})
    jira, new = (await filled.get("/c/servers")).json()["servers"]
    source = {"kind": "mcp", "url": "http://x"}
    assert jira == {
        "name": "jira",
        "description": "Issues",
        "source": source,
        "synced_at": 1.5,
        "ttl_ms": None,
        "error": None,
    }
    assert (new["name"], new["description"], new["source"]) == ("new", "", None)


async def test_a_database_that_cannot_be_read_is_503(client: httpx.AsyncClient, store: Store, tmp_path: Path) -> None:
    await store.close()  # the next request connects anew
    (tmp_path / "catalog.db").write_text("These are no tables. " * 100, encoding="utf-8")
    assert fault(await client.get(ALL)) == (503, "database_unavailable", None)


async def test_openapi_describes_all_of_it(filled: httpx.AsyncClient, app: FastAPI) -> None:
    document = app.openapi()

    def check(name: str, value: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema_rs.validate(schema, value)

    check("CandidatesBody", {"candidates": [*TOOLS, {"type": "server", "name": "s"}]})
    check("CandidateBody", TOOLS[0])
    for name, path in {
        "CatalogsAnswer": ALL,
        "CatalogAnswer": "/c",
        "PageAnswer": "/c/candidates",
        "EntryAnswer": "/c/candidates/weather",
        "ServersAnswer": "/c/servers",
        "ErrorAnswer": "/d",
    }.items():
        check(name, (await filled.get(path)).json())
    described = {
        (method, path): set(operation["responses"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    one = "/v1/catalogs/{name}/candidates/{id}"
    assert described == {
        ("get", "/v1/catalogs"): {"200", "401", "403", "503"},
        ("put", "/v1/catalogs/{name}"): {"200", "401", "403", "422", "503"},
        ("get", "/v1/catalogs/{name}"): {"200", "401", "403", "404", "503"},
        ("delete", "/v1/catalogs/{name}"): {"204", "401", "403", "404", "412", "422", "503"},
        ("get", "/v1/catalogs/{name}/candidates"): {"200", "401", "403", "404", "422", "503"},
        ("post", "/v1/catalogs/{name}/candidates"): {"200", "401", "403", "404", "412", "413", "422", "503"},
        ("get", one): {"200", "401", "403", "404", "422", "503"},
        ("put", one): {"200", "401", "403", "404", "412", "413", "422", "503"},
        ("delete", one): {"204", "401", "403", "404", "412", "422", "503"},
        ("get", "/v1/catalogs/{name}/servers"): {"200", "401", "403", "404", "503"},
    }
    query = {
        parameter["name"] for parameter in document["paths"]["/v1/catalogs/{name}/candidates"]["get"]["parameters"]
    }
    assert query == {"name", "limit", "after", "server", "type", "tag", "text"}
