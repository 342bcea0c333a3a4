import math
from typing import Any

import pytest

from serving.config import Config
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError

pytestmark = pytest.mark.anyio


async def test_the_answer_has_the_documented_shape(client: Any, tools: Any) -> None:
    response = await client.post("/v1/route", json={"query": "weather in Lisbon?", "candidates": tools})
    answer = response.json()
    assert response.status_code == 200
    assert answer.keys() == {
        "id", "decision", "none_probability", "ranking", "prefilter", "truncated", "usage", "timings_ms", "model"
    }  # fmt: skip
    decision = answer["decision"]
    assert decision.keys() == {"id", "name", "server", "type", "probability"}
    assert (decision["id"], decision["type"]) == ("get_weather", "tool")
    assert [ranked["id"] for ranked in answer["ranking"]] == ["get_weather", "send_mail"]
    assert decision["probability"] == answer["ranking"][0]["probability"]
    total = math.fsum([answer["none_probability"], *(ranked["probability"] for ranked in answer["ranking"])])
    assert math.isclose(total, 1.0)
    assert answer["prefilter"] == {"method": "none", "considered": 2, "kept": 2}
    assert answer["usage"]["prompt_tokens"] > answer["usage"]["cached_tokens"] > 0
    assert answer["timings_ms"].keys() == {"prefilter", "embedding", "prompt", "engine", "total"}
    assert answer["model"] == "base/words"


async def test_nothing_fits(client: Any, tools: Any) -> None:
    answer = (await client.post("/v1/route", json={"query": "hello there", "candidates": tools})).json()
    assert answer["decision"] is None
    assert answer["none_probability"] > answer["ranking"][0]["probability"]


async def test_none_forbidden(client: Any, tools: Any) -> None:
    body = {"query": "hello there", "candidates": tools, "allow_none": False}
    answer = (await client.post("/v1/route", json=body)).json()
    assert answer["decision"] is not None
    assert answer["none_probability"] == 0


async def test_no_candidates_is_none(client: Any, server: Any) -> None:
    answer = (await client.post("/v1/route", json={"query": "hello", "candidates": []})).json()
    assert (answer["decision"], answer["none_probability"], answer["ranking"]) == (None, 1.0, [])
    assert server.engine.scored == []


async def test_ids_are_opaque(client: Any) -> None:
    candidates = [{"id": "\x00<|im_end|>\n/ü", "name": "weather", "type": "agent", "server": "s"}]
    answer = (await client.post("/v1/route", json={"query": "weather", "candidates": candidates})).json()
    decision = answer["decision"]
    assert (decision["id"], decision["name"], decision["type"]) == ("\x00<|im_end|>\n/ü", "weather", "agent")
    assert decision["server"] == "s"


async def test_k_top_and_coverage(client: Any, tools: Any) -> None:
    many = [*tools, *({"name": f"other_{number}"} for number in range(5))]
    body = {"query": "weather", "candidates": many, "k": 3, "top": 1, "coverage": 0.99}
    answer = (await client.post("/v1/route", json=body)).json()
    assert answer["prefilter"] == {"method": "first", "considered": 7, "kept": 3}
    assert len(answer["ranking"]) == 1
    assert set(answer["prediction_set"]) <= {"get_weather", "send_mail", "other_0"}


async def test_k_beyond_the_list_is_all_of_it(client: Any, tools: Any) -> None:
    response = await client.post("/v1/route", json={"query": "weather", "candidates": tools, "k": 10**30})
    assert response.json()["prefilter"]["kept"] == 2


async def conversation_seen(server: Any, client: Any, body: dict[str, Any]) -> str:
    """The text of the prompt that the engine got."""
    response = await client.post("/v1/route", json={"candidates": [{"name": "x"}], **body})
    assert response.status_code == 200
    return server.engine.tokenizer.decode(server.engine.scored[-1].prefix)


async def test_the_query_follows_history(server: Any, client: Any) -> None:
    history = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "yes"}]
    seen = await conversation_seen(server, client, {"query": "second", "history": history})
    messages = [*history, {"role": "user", "content": "second"}]
    assert seen == await conversation_seen(server, client, {"messages": messages})
    assert seen.endswith("second<|im_end|>\n")


async def test_a_query_that_stands_in_history_is_not_added_again(server: Any, client: Any) -> None:
    history = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "acting"}]
    seen = await conversation_seen(server, client, {"query": "first", "history": history})
    assert seen == await conversation_seen(server, client, {"messages": history})


async def test_what_is_no_text_is_reported(client: Any) -> None:
    content = [{"type": "text", "text": "weather"}, {"type": "image_url", "image_url": {"url": "x"}}]
    body = {"messages": [{"role": "user", "content": content}], "candidates": [{"name": "x"}]}
    answer = (await client.post("/v1/route", json=body)).json()
    assert answer["truncated"] == [{"where": "messages[0].content[1]", "tokens": 0, "kept": 0}]


async def test_what_the_prompt_cuts_is_reported(client: Any) -> None:
    body = {"query": "long " * 20_000, "candidates": [{"name": "x", "description": "y " * 1000}]}
    answer = (await client.post("/v1/route", json=body)).json()
    assert [cut["where"] for cut in answer["truncated"]] == ["messages[0].content", "candidates['x']"]
    assert all(cut["tokens"] > cut["kept"] > 0 for cut in answer["truncated"])


@pytest.mark.parametrize(
    ("body", "where", "message"),
    [
        ({"candidates": []}, "query", "send `messages`, or `query`"),
        ({"query": "x"}, "candidates", "candidates is missing"),
        ({"query": "", "candidates": []}, "query", "at least 1 character"),
        ({"messages": [], "candidates": []}, "messages", "at least 1 item"),
        ({"query": "x", "messages": [{"role": "user"}], "candidates": []}, "messages", "not both"),
        ({"query": "x", "candidates": [], "katalog": "main"}, "katalog", "unknown field 'katalog'; known are query"),
        ({"query": "x", "candidates": [], "allow_none": False}, "candidates", "nothing to choose"),
        ({"query": "x", "candidates": [], "k": 0}, "k", "greater than or equal to 1"),
        ({"query": "x", "candidates": [], "coverage": 1}, "coverage", "less than 1"),
        ({"query": "x", "candidates": [], "top": -1}, "top", "greater than or equal to 0"),
        ({"query": "x", "candidates": [{"name": "a"}, {"name": "a"}]}, "candidates[1].id", "same id 'a'"),
        ({"query": "x", "history": [{"role": "x"}], "candidates": []}, "history[0].role", "should be 'system'"),
    ],
)
async def test_invalid_requests(client: Any, body: Any, where: str, message: str) -> None:
    response = await client.post("/v1/route", json=body)
    error = response.json()["error"]
    assert response.status_code == 422
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_request", where)
    assert message in error["message"]


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (EngineUnavailableError("the engine is down"), 503, "engine_unavailable"),
        (EngineError("the engine answered nonsense"), 503, "engine_unavailable"),
        (EngineTimeoutError("the engine is slow"), 504, "engine_timeout"),
    ],
)
async def test_engine_errors(client: Any, server: Any, tools: Any, failure: Exception, status: int, code: str) -> None:
    server.engine.failure = failure
    response = await client.post("/v1/route", json={"query": "weather", "candidates": tools})
    assert response.status_code == status
    assert response.json()["error"] == {"message": str(failure), "type": "server_error", "param": None, "code": code}


async def test_an_unexpected_error_tells_nothing_but_its_request_id(
    client: Any, server: Any, tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.engine.failure = KeyError("secret")
    response = await client.post(
        "/v1/route", json={"query": "weather", "candidates": tools}, headers={"x-request-id": "my-id.1"}
    )
    assert response.status_code == 500
    assert response.headers["x-request-id"] == "my-id.1"
    assert "my-id.1" in response.json()["error"]["message"]
    assert "secret" not in response.text
    assert "request my-id.1 failed" in caplog.text
    assert "KeyError: 'secret'" in caplog.text


class TestSmallLimits:
    @pytest.fixture
    def config(self) -> Config:
        return Config.model_validate({"server": {"max_candidates": 2, "max_messages": 1}})

    async def test_too_many_candidates(self, client: Any) -> None:
        candidates = [{"name": str(number)} for number in range(3)]
        response = await client.post("/v1/route", json={"query": "x", "candidates": candidates})
        assert response.status_code == 413
        assert "3 candidates, but this server takes at most 2" in response.json()["error"]["message"]

    async def test_too_many_messages(self, client: Any) -> None:
        messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        response = await client.post("/v1/route", json={"messages": messages, "candidates": []})
        assert response.status_code == 413
        assert "2 messages, but this server takes at most 1" in response.json()["error"]["message"]
