import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.types import EngineTimeoutError

pytestmark = pytest.mark.anyio


async def test_decisions_are_counted(client: Any, server: Any, tools: Any) -> None:
    await client.post("/v1/route", json={"query": "weather", "candidates": tools})
    await client.post("/v1/route", json={"query": "hello", "candidates": tools})
    chat = {"model": "base/words", "messages": [{"role": "user", "content": "weather"}], "tools": tools}
    await client.post("/v1/chat/completions", json=chat)
    await client.post("/v1/chat/completions", json={**chat, "tool_choice": "none"})  # decides nothing
    await asyncio.sleep(0)  # a decision is counted after its answer
    assert server.metric("requests_total", surface="route", outcome="ok") == 2
    assert server.metric("requests_total", surface="chat", outcome="ok") == 2
    assert server.metric("decisions_total") == 3
    assert server.metric("none_answers_total") == 1
    assert server.metric("candidates_considered_sum") == server.metric("candidates_kept_sum") == 6
    assert server.metric("prompt_tokens_total") > server.metric("cached_tokens_total") > 0
    for stage in ("prefilter", "embedding", "prompt", "engine", "total"):
        assert server.metric("stage_seconds_count", stage=stage) == 3
    assert server.metric("request_seconds_count", surface="route") == 2


async def test_errors_are_counted_by_class(client: Any, server: Any, tools: Any) -> None:
    await client.post("/v1/route", content=b"{")
    server.engine.failure = EngineTimeoutError("slow")
    await client.post("/v1/route", json={"query": "weather", "candidates": tools})
    assert server.metric("errors_total", error="InvalidRequestError") == 1
    assert server.metric("errors_total", error="EngineTimeoutError") == 1
    assert server.metric("requests_total", surface="route", outcome="invalid_request") == 1
    assert server.metric("requests_total", surface="route", outcome="engine_timeout") == 1
    assert server.metric("decisions_total") == 0


async def test_no_path_of_a_caller_becomes_a_label(client: Any, server: Any) -> None:
    await client.get("/wp-admin")
    assert server.metric("requests_total", surface="other", outcome="not_found") == 1


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_exposition_follows_the_conventions(client: Any, tools: Any, accept: str) -> None:
    await client.post("/v1/route", json={"query": "weather", "candidates": tools})
    response = await client.get("/metrics", headers={"accept": accept})
    expected = "application/openmetrics-text" if accept else "text/plain"
    assert response.headers["content-type"].startswith(expected)
    if accept:
        assert response.text.endswith("# EOF\n")
        return
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    ours = [family for name, family in families.items() if name.startswith("light_router_")]
    assert all(family.documentation for family in ours)
    assert "process_resident_memory_bytes" in families
    assert families["light_router_requests"].type == "counter"
    assert families["light_router_stage_seconds"].type == "histogram"
