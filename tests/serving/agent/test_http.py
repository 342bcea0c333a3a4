"""Who may ask over HTTP, and from where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from serving.keys import create_key
from tests.live import serving
from tests.serving.agent.conftest import running
from tests.serving.agent.test_results import source
from tests.serving.agent.upstreams import Studio

pytestmark = pytest.mark.anyio
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
MODERN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/list",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}
ACCEPT = {"accept": "application/json, text/event-stream"}
MODERN_HEADERS = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"host": "evil.example"}, 421),
        ({"host": "router.example:8443"}, 200),
    ],
)
async def test_other_sites_and_hosts_are_refused(era: str, headers: dict[str, str], status: int, database: str) -> None:
    body, own = (HELLO, {}) if era == "2025-11-25" else (MODERN, MODERN_HEADERS)
    async with (
        running(database, [], allowed_hosts=["router.example:*"]) as agent,
        httpx2.AsyncClient() as http,
    ):
        url = f"http://127.0.0.1:{agent.port}/mcp"
        answer = await http.post(url, json=body, headers={**ACCEPT, **own, **headers})
        assert answer.status_code == status


async def test_a_key_is_asked_for_and_a_session_answers_to_its_own_only(database: str) -> None:
    async with running(database, [], keys=["key-of-ada", "key-of-bob"]) as agent, httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{agent.port}/mcp"
        without = await http.post(url, json=HELLO, headers=ACCEPT)
        assert without.status_code == 401
        assert without.headers["www-authenticate"] == "Bearer"
        wrong = await http.post(url, json=HELLO, headers={**ACCEPT, "authorization": "Bearer no"})
        assert wrong.status_code == 401
        ada = await http.post(url, json=HELLO, headers={**ACCEPT, "authorization": "Bearer key-of-ada"})
        assert ada.status_code == 200
        session = {"mcp-session-id": ada.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        bob = await http.post(url, json=listing, headers={**ACCEPT, **session, "authorization": "Bearer key-of-bob"})
        assert bob.status_code == 404


async def test_a_thread_can_be_deleted_by_its_caller(database: str) -> None:
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)], keys=["key-of-ada", "key-of-bob"]) as agent,
        agent.host(key="key-of-ada") as ada,
        httpx2.AsyncClient() as http,
    ):
        handle = (await ada.call_tool("route", {"task": "echo the text"})).structured_content["thread"]
        url = f"http://127.0.0.1:{agent.port}/threads/{handle}"
        assert (await http.delete(url, headers={"authorization": "Bearer key-of-bob"})).status_code == 403
        assert (await http.delete(url, headers={"authorization": "Bearer key-of-ada"})).status_code == 204
        assert (await ada.call_tool("route", {"task": "echo the text", "thread": handle})).is_error


async def test_health_needs_no_key(database: str) -> None:
    async with running(database, [], keys=["key"]) as agent, httpx2.AsyncClient() as http:
        for path in ("live", "ready"):
            assert (await http.get(f"http://127.0.0.1:{agent.port}/health/{path}")).status_code == 200


async def test_keys_of_other_tenants_and_without_the_scope_are_refused(database: str, tmp_path: Path) -> None:
    holders = {"ada": (["agent"], "acme"), "eve": (["agent"], "evil"), "max": (["route"], "acme")}
    made = {name: create_key(name, scopes, tenant, ()) for name, (scopes, tenant) in holders.items()}
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [entry.model_dump(mode="json") for _, entry in made.values()]}))
    async with running(database, [], keys_file=str(path), catalog="acme/agent") as agent, httpx2.AsyncClient() as http:
        url = f"http://127.0.0.1:{agent.port}/mcp"
        for name, status, message in (("ada", 200, ""), ("eve", 403, "another tenant"), ("max", 403, "scope agent")):
            headers = {**ACCEPT, "authorization": f"Bearer {made[name][0]}"}
            answer = await http.post(url, json=HELLO, headers=headers)
            assert answer.status_code == status
            assert message in answer.text


async def test_what_a_caller_may_not_see_is_neither_routed_to_nor_called(database: str, tmp_path: Path) -> None:
    made = {name: create_key(name, ["agent"], "", seen) for name, seen in (("ada", ["finance"]), ("bob", []))}
    path, audit = tmp_path / "keys.json", tmp_path / "audit.jsonl"
    path.write_text(json.dumps({"keys": [entry.model_dump(mode="json") for _, entry in made.values()]}))
    async with (
        serving(Studio().server.streamable_http_app()) as port,
        running(database, [source(port)], keys_file=str(path), audit=str(audit)) as agent,
    ):
        store = agent.router.catalogs.store
        entry = (await store.get("agent", ["studio/echo_text"]))[0]
        await store.upsert("agent", [replace(entry, principals=("finance",))])
        for name, sees in (("ada", True), ("bob", False)):
            async with agent.host(key=made[name][0]) as host:
                told = (await host.call_tool("route", {"task": "echo the text"})).structured_content
                shown = json.dumps([told["decision"], told["alternatives"]])
                assert ("studio/echo_text" in shown) is sees
                called = {"candidate_id": "studio/echo_text", "arguments": {"text": "x"}}
                assert (await host.call_tool("execute", called)).is_error is not sees
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["surface"], line["key"], line["offered"]["catalog"]) for line in lines] == [
        ("agent", "ada", "agent"), ("agent", "bob", "agent"),
    ]  # fmt: skip
    assert all(len(line["request_id"]) == 32 for line in lines)
