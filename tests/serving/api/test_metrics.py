import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.telemetry import Telemetry
from serving.types import Candidate, Decision, EngineTimeoutError, PrefilterReport, Ranked

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


async def test_signs_of_drift_are_counted(client: Any, server: Any, tools: Any) -> None:
    await client.post("/v1/route", json={"query": "weather", "candidates": tools})
    await client.post("/v1/route", json={"query": "hello", "candidates": tools})
    await asyncio.sleep(0)
    assert server.metric("decision_entropy_ratio_count") == server.metric("none_probability_count") == 2
    # The one word in common makes the first decision clearer than the second.
    assert 0 < server.metric("decision_entropy_ratio_sum") < 2
    assert server.metric("prefilter_margin_ratio_count") == 0  # nothing was filtered


def decided(probabilities: list[float], none: float, kept: int = 2, **more: Any) -> Decision:
    ranking = [Ranked(Candidate(str(n), str(n), ""), p) for n, p in enumerate(probabilities)]
    report = PrefilterReport("fused", 10, kept, 0.25)
    return Decision(ranking[0], none, ranking, None, report, (), 10, 5, "m", {"total": 1.0}, **more)


@pytest.mark.parametrize(
    ("decision", "entropy"),
    [
        (decided([1 / 3, 1 / 3], 1 / 3), 1.0),
        (decided([1.0, 0.0], 0.0), 0.0),
        (decided([0.9], 0.0), None),  # only the winner was read
    ],
)
def test_entropy_is_a_part_of_the_most_there_can_be(decision: Decision, entropy: float | None) -> None:
    telemetry = Telemetry()
    telemetry.decision(decision)

    def value(name: str) -> float | None:
        return telemetry.registry.get_sample_value(f"light_router_{name}")

    assert value("decision_entropy_ratio_count") == (0 if entropy is None else 1)
    assert value("decision_entropy_ratio_sum") == pytest.approx(entropy or 0.0)
    assert value("prefilter_margin_ratio_sum") == 0.25


def test_what_the_prefilter_decided_alone_is_no_sign_of_the_model() -> None:
    telemetry = Telemetry()
    telemetry.decision(decided([0.5, 0.5], 0.0, degraded=True))
    assert telemetry.registry.get_sample_value("light_router_degraded_total") == 1
    assert telemetry.registry.get_sample_value("light_router_decisions_total") == 0


def test_of_many_catalogues_only_some_are_shown() -> None:
    telemetry = Telemetry()
    telemetry.watch_catalogs(lambda: {f"c{n:03}": (n, 7) for n in range(100)})
    text = telemetry.exposition()[0].decode()
    assert 'light_router_catalog_candidates{catalog="c031"} 31.0' in text
    assert 'light_router_catalog_version{catalog="c031"} 7.0' in text
    assert "c032" not in text
    telemetry.watch_catalogs(dict)
    assert "c031" not in telemetry.exposition()[0].decode()
