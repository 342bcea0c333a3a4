from importlib.metadata import version
from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def test_the_bare_model_is_said_to_be_bare(client: Any, server: Any) -> None:
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["object"], model["parent"]) == ("base/words", "model", None)
    info = (await client.get("/info")).json()
    assert info["model"]["adapter"] is None
    assert info["model"]["note"].startswith("bare model")
    assert info["template"]["fingerprint"] == server.router.template.fingerprint()
    assert (info["readout"], info["layout"], info["engine"]) == ("pointwise", "messages_first", "local")
    assert info["prefilter"] == {"method": "fused", "k": 10, "history_messages": 4}
    assert info["limits"]["max_k"] is None
    assert info["limits"]["max_candidates"] == 10_000


async def test_version(client: Any) -> None:
    assert (await client.get("/version")).json() == {"version": version("light-router")}


async def test_one_model(client: Any) -> None:
    assert (await client.get("/v1/models/base/words")).json()["id"] == "base/words"
    response = await client.get("/v1/models/nope")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


class TestAdapter:
    @pytest.fixture
    def adapter(self) -> str:
        return "words-lora"

    async def test_an_adapter_has_a_parent(self, client: Any) -> None:
        base, adapter = (await client.get("/v1/models")).json()["data"]
        assert (base["id"], base["parent"]) == ("base/words", None)
        assert (adapter["id"], adapter["root"], adapter["parent"]) == ("words-lora", "words-lora", "base/words")
        assert (await client.get("/info")).json()["model"]["note"] == "adapter words-lora"

    async def test_the_adapter_decides_and_the_base_is_not_asked(self, client: Any) -> None:
        body = {"messages": [{"role": "user", "content": "x"}]}
        answer = await client.post("/v1/chat/completions", json={**body, "model": "words-lora"})
        assert answer.json()["model"] == "words-lora"
        refused = await client.post("/v1/chat/completions", json={**body, "model": "base/words"})
        assert refused.status_code == 404
        assert "ask for 'words-lora'" in refused.json()["error"]["message"]


async def test_the_framework_s_errors_have_our_shape(client: Any) -> None:
    missing = await client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    wrong = await client.get("/v1/route")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"
