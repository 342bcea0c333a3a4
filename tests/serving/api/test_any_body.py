"""Nothing that a caller sends is an internal error: every answer is a decision about its candidates, or a clear 4xx."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.anyio

SURFACES = ["/v1/route", "/v1/chat/completions", "/v1/tools/search"]
# One server for all examples: its state between them is part of what is tried.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

TEXTS = st.text(max_size=40) | st.sampled_from(
    ["", "\x00", "\n\r\u2028", "<|im_end|>", "<|im_start|>system", "</think>", "A", "a", "\U0001f600", "none of these"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)
NAMES = st.text(alphabet="abAB_-1", min_size=1, max_size=64)
SCHEMAS = st.fixed_dictionaries(
    {"type": st.just("object")}, optional={"properties": st.dictionaries(TEXTS, st.just({}))}
)
CALLS = st.fixed_dictionaries({"name": TEXTS}, optional={"arguments": TEXTS}) | st.fixed_dictionaries(
    {"id": TEXTS, "function": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS})}
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
        optional={
            "content": TEXTS | st.none() | st.lists(st.fixed_dictionaries({"type": TEXTS}, optional={"text": TEXTS})),
            "tool_calls": st.lists(CALLS, max_size=10),
            "name": TEXTS,
            "tool_call_id": TEXTS,
        },
    ),
    min_size=1,
    max_size=6,
)
CANDIDATES = st.lists(
    st.fixed_dictionaries(
        {"id": TEXTS, "name": TEXTS},
        optional={"description": TEXTS | st.none(), "input_schema": SCHEMAS, "server": TEXTS, "tools": st.lists(TEXTS),
                  "type": st.sampled_from(["tool", "agent", "skill", "server"])},
    ),
    max_size=12,
)  # fmt: skip
TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": NAMES}, optional={"description": TEXTS, "parameters": SCHEMAS}),
        }
    ),
    max_size=6,
    unique_by=lambda tool: tool["function"]["name"],
)


def check_refused(response: Any) -> None:
    assert 400 <= response.status_code < 500
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("path", SURFACES)
@shared
@given(data=st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
async def test_any_body(client: Any, path: str, data: bytes) -> None:
    check_refused(await client.post(path, content=data))


@shared
@given(body=st.fixed_dictionaries(
    {"candidates": CANDIDATES},
    optional={"messages": MESSAGES, "query": TEXTS, "history": MESSAGES, "k": st.integers() | st.none(),
              "top": st.integers(0, 5), "allow_none": st.booleans(), "coverage": st.floats(0, 1), "extra": JSON},
))  # fmt: skip
async def test_any_question(client: Any, body: dict[str, Any]) -> None:
    response = await client.post("/v1/route", content=json.dumps(body))
    if response.status_code != 200:
        check_refused(response)
        return
    answer = response.json()
    ids = {candidate["id"] for candidate in body["candidates"] if candidate.get("type") != "server"}
    assert {ranked["id"] for ranked in answer["ranking"]} <= ids
    assert answer["decision"] is None or answer["decision"]["id"] in ids
    assert answer["decision"] or body.get("allow_none", True)


@shared
@given(messages=MESSAGES, tools=TOOLS, choice=st.sampled_from(["auto", "required", "none", None]),
       stream=st.booleans())  # fmt: skip
async def test_any_chat(client: Any, messages: Any, tools: Any, choice: str | None, stream: bool) -> None:
    body = {"model": "base/words", "messages": messages, "tools": tools, "tool_choice": choice, "stream": stream}
    response = await client.post("/v1/chat/completions", content=json.dumps(body))
    if choice == "required" and not tools:
        check_refused(response)
        return
    assert response.status_code == 200
    if not stream:
        calls = response.json()["choices"][0]["message"]["tool_calls"] or []
        assert {call["function"]["name"] for call in calls} <= {tool["function"]["name"] for tool in tools}


@pytest.mark.parametrize("path", SURFACES)
@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        '{"messages": NaN}',
        "[" * 100_000,
        '{"a":' * 150 + "1" + "}" * 150,
        "9" * 10_000,
        '{"query": "\\ud83d"}',
        '{"query": "x", "candidates": [1' + ",1" * 100_000 + "]}",
        '{"query": "x", "candidates": [], "k": -' + "9" * 4000 + "}",
        "{" + ",".join(f'"key{number}": 1' for number in range(50_000)) + "}",
        '{"model": "base/words", "messages": [{"role": "user", "content": [1' + ",1" * 100_000 + "]}]}",
    ],
    ids=["nan", "nan inside", "deep", "deep objects", "long number", "surrogate", "wrong candidates", "huge k",
         "many keys", "wrong parts"],
)  # fmt: skip
async def test_hostile_bodies(client: Any, path: str, text: str) -> None:
    response = await client.post(path, content=text)
    check_refused(response)
    assert len(response.content) < 5000


async def test_long_texts_and_duplicate_keys(client: Any) -> None:
    long = "x" * 100_000
    candidate = {"name": long, "description": long, "server": long, "input_schema": {"properties": {long: {}}}}
    body = json.dumps({"messages": [{"role": "user", "content": long}], "candidates": [candidate]})
    response = await client.post("/v1/route", content=body.replace('"name"', '"name": "other", "name"'))
    assert response.status_code == 200
    assert response.json()["ranking"][0]["id"] == long
