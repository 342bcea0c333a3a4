"""From where a browser may ask."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serving.api.origins import is_local
from serving.config import Config

pytestmark = pytest.mark.anyio
ASK = {"query": "weather", "candidates": [{"name": "weather"}]}
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {}


@pytest.fixture
def config(settings: dict[str, Any]) -> Config:
    return Config.model_validate({"server": settings})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "rebound.example"}, 400),
        ({"host": "127.0.0.1.evil.example"}, 400),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "https://evil.example", "content-type": "text/plain"}, 403),
        ({"origin": "null"}, 403),
    ],
)
async def test_an_open_server_on_this_machine(client: httpx.AsyncClient, headers: dict[str, str], status: int) -> None:
    answer = await client.post("/v1/route", json=ASK, headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("settings", [{"allowed_origins": ["https://app.example"], "allowed_hosts": ["*.example"]}])
class TestAllowed:
    async def test_named_pages_may_ask_and_read(self, client: httpx.AsyncClient) -> None:
        headers = {"host": "router.example", "origin": "https://app.example"}
        answer = await client.post("/v1/route", json=ASK, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
        wrong = await client.post("/v1/route", content=b"{", headers=headers)
        assert wrong.status_code == 422
        assert wrong.headers["access-control-allow-origin"] == "https://app.example"  # errors can be read too

    async def test_others_may_not(self, client: httpx.AsyncClient) -> None:
        headers = {"host": "router.example", "origin": "https://evil.example"}
        assert (await client.post("/v1/route", json=ASK, headers=headers)).status_code == 403
        assert (await client.options("/v1/route", headers={**headers, **PREFLIGHT})).status_code == 400
        assert (await client.post("/v1/route", json=ASK, headers={"host": "localhost"})).status_code == 400


@pytest.mark.parametrize("settings", [{"api_keys": ["key"], "allowed_origins": ["https://app.example"]}])
async def test_a_preflight_carries_no_key(client: httpx.AsyncClient) -> None:
    headers = {"origin": "https://app.example", **PREFLIGHT}
    answer = await client.options("/v1/route", headers=headers)
    assert answer.status_code == 200
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()
    assert (await client.post("/v1/route", json=ASK, headers={"origin": "https://app.example"})).status_code == 401


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"api_keys": ["key"]}])
async def test_elsewhere_any_host_is_taken(client: httpx.AsyncClient) -> None:
    headers = {"host": "router.example", "authorization": "Bearer key"}
    assert (await client.post("/v1/route", json=ASK, headers=headers)).status_code == 200


def test_what_is_this_machine() -> None:
    assert [is_local(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "router")] == [True] * 3 + [
        False
    ] * 2


@pytest.mark.parametrize("pattern", ["a*.example", "*example", "http://a"])
def test_a_wrong_pattern_is_told_at_start(pattern: str) -> None:
    with pytest.raises(ValueError, match="allowed_hosts"):
        Config.model_validate({"server": {"allowed_hosts": [pattern]}})
