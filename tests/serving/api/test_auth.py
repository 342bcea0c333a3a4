from typing import Any

import pytest

from serving.config import Config

pytestmark = pytest.mark.anyio

GUARDED = ["/v1/models", "/v1/models/base/words", "/version", "/info", "/openapi.json", "/docs", "/nothing",
           "/metrics/", "/HEALTH/LIVE", "/health/live/"]  # fmt: skip
OPEN = ["/health/live", "/health/ready", "/metrics"]


@pytest.fixture
def config() -> Config:
    return Config.model_validate({"server": {"api_keys": ["first", "sécond"]}})


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "header", [None, "", "first", "Bearer", "Bearer ", "Bearer nope", "Basic first", "Bearer FIRST"]
)
async def test_everything_else_asks_for_a_key(client: Any, path: str, header: str | None) -> None:
    response = await client.get(path, headers={} if header is None else {"authorization": header})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", OPEN)
async def test_probes_and_scrapers_need_none(client: Any, path: str) -> None:
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("key", ["first", "sécond"])
async def test_a_key_opens_everything(client: Any, key: str) -> None:
    headers = {"authorization": f"bearer {key}".encode()}
    assert (await client.get("/info", headers=headers)).status_code == 200
    response = await client.post("/v1/route", json={"query": "x", "candidates": []}, headers=headers)
    assert response.status_code == 200


async def test_a_key_is_asked_for_before_the_body_is_read(client: Any, server: Any) -> None:
    response = await client.post("/v1/route", content=b"x" * (server.service.config.server.max_body_bytes + 1))
    assert response.status_code == 401


async def test_callers_do_not_share_cached_prefixes(client: Any, server: Any) -> None:
    body = {"query": "x", "candidates": [{"name": "a"}]}
    for key in ("first", "sécond", "first"):
        await client.post("/v1/route", json=body, headers={"authorization": f"Bearer {key}".encode()})
    first, second, again = [request.cache_salt for request in server.engine.scored]
    assert first == again != second
    assert "first" not in first


async def test_a_request_id_is_returned_or_made(client: Any) -> None:
    for sent in ("abc-1.2_3", "x" * 128):
        assert (await client.get("/health/live", headers={"x-request-id": sent})).headers["x-request-id"] == sent
    made = {
        (await client.get("/health/live", headers={"x-request-id": sent})).headers["x-request-id"]
        for sent in ("", "a b", "x" * 129, "<script>")
    }
    assert len(made) == 4
    assert all(len(request_id) == 32 for request_id in made)
