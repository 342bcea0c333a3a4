"""Keys from a file: what each may do, whose catalogues it sees, and what of it is ever shown."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from adapters.cli import app as cli
from serving.config import Config
from serving.keys import SCOPES, Keys, create_key
from serving.prefilter import Prefilter
from serving.types import EngineUnavailableError
from tests.serving.api.conftest import Server

pytestmark = pytest.mark.anyio

# Name: scopes, tenant, principals.
HOLDERS: dict[str, tuple[set[str], str, set[str]]] = {
    "ada": (set(SCOPES), "acme", set()),
    "bob": (set(SCOPES), "acme", {"finance"}),
    "eve": (set(SCOPES), "evil", set()),
    "router": ({"route"}, "acme", set()),
    "searcher": ({"search"}, "acme", set()),
    "reader": ({"catalog:read"}, "acme", set()),
    "nobody": ({"agent"}, "", set()),
    "prometheus": ({"metrics"}, "", set()),
}
ASK = {"query": "weather", "candidates": [{"name": "weather"}]}
TOOLS = [
    {"server": "sky", "name": "forecast", "description": "Weather forecast for a city"},
    {"server": "sky", "name": "ledger", "description": "Weather derivatives ledger", "principals": ["finance"]},
]
FORECAST, LEDGER = "sky/forecast", "sky/ledger"


@pytest.fixture
def made() -> dict[str, Any]:
    return {
        name: create_key(name, scopes, tenant, principals) for name, (scopes, tenant, principals) in HOLDERS.items()
    }


@pytest.fixture
def config(made: dict[str, Any], tmp_path: Path) -> Config:
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump({"keys": [entry.model_dump(mode="json") for _, entry in made.values()]}))
    audit = {"path": str(tmp_path / "audit.jsonl")}
    return Config.model_validate({"server": {"keys_file": str(path), "api_keys": ["plain-key"], "audit": audit}})


@pytest.fixture
def prefilter(searching: Prefilter) -> Prefilter:
    return searching


@pytest.fixture
def as_(server: Server, made: dict[str, Any]) -> Any:
    """A client with somebody's key."""
    return lambda name: server.client(authorization=f"Bearer {made[name][0]}")


@pytest.fixture
async def filled(as_: Any) -> None:
    """acme's catalogue, which evil has none of."""
    async with as_("ada") as ada:
        assert (await ada.post("/v1/catalogs/desk/candidates", json={"candidates": TOOLS})).status_code == 200


class TestScopes:
    WANTED: ClassVar[list[tuple[str, str, str]]] = [
        ("POST", "/v1/route", "route"),
        ("POST", "/v1/chat/completions", "route"),
        ("POST", "/v1/tools/search", "search"),
        ("GET", "/v1/catalogs", "catalog:read"),
        ("GET", "/v1/catalogs/desk/candidates/a%2Fb", "catalog:read"),
        ("PUT", "/v1/catalogs/desk", "catalog:write"),
        ("POST", "/v1/catalogs/desk/candidates", "catalog:write"),
        ("DELETE", "/v1/catalogs/desk/candidates/a", "catalog:write"),
        ("GET", "/metrics", "metrics"),
    ]

    @pytest.mark.parametrize(("method", "path", "scope"), WANTED)
    async def test_each_path_asks_for_its_scope(self, as_: Any, method: str, path: str, scope: str) -> None:
        for name, (scopes, _, _) in HOLDERS.items():
            async with as_(name) as client:
                response = await client.request(method, path, json={})
            if scope in scopes:
                assert response.status_code not in {401, 403}, name
            else:
                assert response.status_code == 403, name
                assert f"lacks the scope {scope}" in response.json()["error"]["message"]
                assert repr(name) in response.json()["error"]["message"]

    async def test_what_describes_the_server_asks_for_any_key(self, as_: Any, client: httpx.AsyncClient) -> None:
        for path in ("/info", "/version", "/v1/models", "/openapi.json"):
            assert (await client.get(path)).status_code == 401
            async with as_("nobody") as nobody:
                assert (await nobody.get(path)).status_code == 200

    async def test_a_plain_key_still_opens_everything(self, server: Server) -> None:
        async with server.client(authorization="Bearer plain-key") as client:
            for path in ("/metrics", "/v1/catalogs", "/info"):
                assert (await client.get(path)).status_code == 200
            assert (await client.post("/v1/route", json=ASK)).status_code == 200


class TestTenants:
    async def test_another_tenants_catalogue_is_one_that_does_not_exist(self, as_: Any, filled: None) -> None:
        requests: list[tuple[str, str, dict[str, Any] | None]] = [
            ("GET", "/v1/catalogs/{}", None),
            ("DELETE", "/v1/catalogs/{}", None),
            ("GET", "/v1/catalogs/{}/candidates", None),
            ("GET", "/v1/catalogs/{}/candidates/sky%2Fforecast", None),
            ("PUT", "/v1/catalogs/{}/candidates/sky%2Fforecast", {"name": "forecast"}),
            ("DELETE", "/v1/catalogs/{}/candidates/sky%2Fforecast", None),
            ("GET", "/v1/catalogs/{}/servers", None),
            ("POST", "/v1/route", {"query": "weather", "catalog": "{}"}),
            ("POST", "/v1/tools/search", {"query": "weather", "catalog": "{}"}),
            ("POST", "/v1/tools/search", {"query": "weather", "catalog": "{}", "method": "router"}),
            ("POST", "/v1/chat/completions", {"model": "base/words", "catalog": "{}",
                                              "messages": [{"role": "user", "content": "weather"}]}),
        ]  # fmt: skip
        async with as_("eve") as eve, as_("ada") as ada:
            for method, path, body in requests:
                answers = []
                for name in ("desk", "nowhere", "acme/desk"):
                    named = {**body, "catalog": name} if body and "catalog" in body else body
                    if "/" in name and named is body:
                        continue  # a path cannot name it
                    response = await eve.request(method, path.format(name), json=named)
                    assert response.status_code == 404, (method, path)
                    answers.append(response.text.replace(name, "NAME"))
                assert len(set(answers)) == 1
                assert "acme" not in answers[0]
            assert (await eve.get("/v1/catalogs")).json() == {"catalogs": []}
            assert [one["name"] for one in (await ada.get("/v1/catalogs")).json()["catalogs"]] == ["desk"]
            assert (await ada.get("/v1/catalogs/desk")).json()["candidates"] == 2  # eve has changed nothing

    async def test_tenants_may_use_one_name(self, as_: Any, filled: None) -> None:
        async with as_("eve") as eve, as_("ada") as ada:
            await eve.post("/v1/catalogs/desk/candidates", json={"candidates": [{"name": "spy"}]})
            assert (await eve.get("/v1/catalogs/desk")).json() == {"name": "desk", "version": 1, "candidates": 1}
            decided = (await eve.post("/v1/route", json={"query": "weather forecast", "catalog": "desk"})).json()
            assert [one["id"] for one in decided["ranking"]] == ["spy"]
            await eve.delete("/v1/catalogs/desk")
            assert (await ada.get("/v1/catalogs/desk")).status_code == 200

    async def test_principals_bound_what_is_searched_and_chosen(self, as_: Any, filled: None) -> None:
        asked = {"catalog": "desk", "query": "weather ledger"}
        chat = {"model": "base/words", "messages": [{"role": "user", "content": "weather ledger"}], "catalog": "desk",
                "logprobs": True, "top_logprobs": 5}  # fmt: skip
        for name, sees in (("ada", False), ("bob", True)):
            async with as_(name) as client:
                routed = (await client.post("/v1/route", json=asked)).json()
                assert ([one["id"] for one in routed["ranking"]].count(LEDGER) == 1) is sees
                assert routed["prefilter"]["considered"] == 1 + sees
                for method in ("bm25", "hybrid", "router", "regex"):
                    found = await client.post("/v1/tools/search", json={**asked, "query": "weather", "method": method})
                    assert (LEDGER in found.text) is sees, method
                assert ("ledger" in (await client.post("/v1/chat/completions", json=chat)).text) is sees
                named = await client.post("/v1/route", json={**asked, "include": {"ids": [LEDGER]}})
                assert named.json()["prefilter"]["considered"] == int(sees)


class TestTiming:
    """Nothing that one tenant sent makes a request of another faster: counted, not timed."""

    async def test_prefixes_are_cached_by_tenant(self, as_: Any, server: Server) -> None:
        for name in ("ada", "eve", "router", "bob"):
            async with as_(name) as client:
                await client.post("/v1/route", json=ASK)
        ada, eve, router, bob = [request.cache_salt for request in server.engine.scored]
        assert ada == router  # of one tenant, and with the same view
        assert len({ada, eve, bob, ""}) == 4

    async def test_candidates_are_embedded_parsed_and_tokenised_anew(
        self, as_: Any, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        embedded: list[str] = []
        rankers = server.router.prefilter.rankers  # type: ignore[attr-defined]
        embedder = rankers["dense"]._embeddings.embedder
        embed = embedder.embed

        async def noted(texts: list[str]) -> Any:
            embedded.extend(texts)
            return await embed(texts)

        monkeypatch.setattr(embedder, "embed", noted)
        candidates = [{"name": f"tool{number}", "description": f"Does thing {number}"} for number in range(12)]
        seen = []
        for name in ("ada", "ada", "eve"):
            misses = server.router.template._candidate.cache_info().misses
            embedded.clear()
            async with as_(name) as client:
                assert (
                    await client.post("/v1/route", json={"query": "x", "candidates": candidates})
                ).status_code == 200
            own = sum("Does thing" in text for text in embedded)
            seen.append((own, server.router.template._candidate.cache_info().misses - misses))
        assert seen == [(12, 10), (0, 0), (12, 10)]

    async def test_a_catalogue_shares_no_vectors(self, as_: Any, server: Server) -> None:
        catalogs = server.router.prefilter.catalogs
        assert catalogs is not None
        for name in ("ada", "eve"):
            async with as_(name) as client:
                await client.post("/v1/catalogs/c/candidates", json={"candidates": TOOLS[:1]})
        mine, others = catalogs._indexes["acme/c"], catalogs._indexes["evil/c"]
        key = mine.rows[0].content_hash
        assert key == others.rows[0].content_hash
        for embedder in ("acme/words", "evil/words"):
            assert key in await catalogs.store.embeddings(embedder, [key])
        assert not await catalogs.store.embeddings("words", [key])


class TestSecrets:
    async def test_no_key_is_ever_logged(
        self, server: Server, made: dict[str, Any], caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        caplog.set_level(logging.DEBUG)
        keys = [*(key for key, _ in made.values()), "plain-key", "lr_wrong-key"]
        for key in keys:
            for scheme in ("Bearer", "Basic"):
                async with server.client(authorization=f"{scheme} {key}") as client:
                    await client.post("/v1/route", json=ASK)
                    await client.post("/v1/route", content=b"{")
                    await client.get("/v1/catalogs/none")
        for failure in (EngineUnavailableError("it is down"), RuntimeError("a bug")):
            server.engine.failure = failure
            async with server.client(authorization=f"Bearer {keys[0]}") as client:
                assert (await client.post("/v1/route", json=ASK)).status_code in {500, 503}
        assert "a bug" in caplog.text  # errors are logged, with their tracebacks
        server.service.audit.close()  # type: ignore[union-attr]
        recorded = (tmp_path / "audit.jsonl").read_text()
        for key in keys:
            assert key not in caplog.text
            assert key not in recorded
            assert hashlib.sha256(key.encode()).hexdigest() not in caplog.text + recorded

    def test_a_key_ends_where_its_line_does(self) -> None:
        config = Config.model_validate({"engine": {"api_key": "abc\n"}, "gateway": {"api_key": " k "}})
        assert config.engine.api_key is not None
        assert config.engine.api_key.get_secret_value() == "abc"
        with pytest.raises(ValueError, match="one line of printable") as error:
            Config.model_validate({"engine": {"api_key": "se\ncret"}})
        assert "cret" not in str(error.value.errors()[0]["msg"])  # type: ignore[attr-defined]


class TestFile:
    def test_a_key_is_made_once_and_let_in(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(
            cli, ["key", "create", "ada", "--scope", "route", "--tenant", "acme", "--principal", "finance"]
        )
        key = done.stderr.split()[0]
        assert done.exit_code == 0
        assert key not in done.stdout
        path = tmp_path / "keys.yaml"
        path.write_text(f"keys:\n{done.stdout}")
        caller = Keys((), str(path)).caller(key)
        assert caller is not None
        assert (caller.name, caller.tenant, caller.scopes) == ("ada", "acme", {"route"})
        assert caller.principals == {"finance"}
        assert Keys((), str(path)).caller(key[:-1]) is None
        assert CliRunner().invoke(cli, ["key", "create", "a/b"]).exit_code == 2

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "cannot read"),
            ("keys: [", "neither YAML nor JSON"),
            ("keys: []", "has no keys"),
            ("- a", "is invalid"),
            ("keys: [{name: a, sha256: abc, scopes: [route]}]", "keys.0.sha256"),
            (f"keys: [{{name: a, sha256: {'a' * 64}, scopes: [root]}}]", "keys.0.scopes"),
            (f"keys: [{{name: a, sha256: {'a' * 64}, scopes: [route], tenant: a/b}}]", "keys.0.tenant"),
            (f"keys: [{{name: a, sha256: {'a' * 64}, scopes: [route]}}, {{name: a, sha256: {'b' * 64}, "
             "scopes: [route]}]", "two keys of the name 'a'"),
        ],
    )  # fmt: skip
    def test_a_wrong_file_says_what_is_wrong(self, tmp_path: Path, text: str | None, message: str) -> None:
        path = tmp_path / "keys.yaml"
        if text is not None:
            path.write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            Keys((), str(path))
        assert str(path) in str(error.value)
