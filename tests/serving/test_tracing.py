"""Spans as a collector would get them: the SDK's own, kept in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from serving import tracing
from serving.types import EngineTimeoutError
from tests.live import serving
from tests.serving.agent.conftest import running
from tests.serving.agent.test_results import run, source
from tests.serving.agent.upstreams import Studio
from tests.serving.api.conftest import *  # noqa: F403  (the server around a deterministic engine)
from tests.serving.engine.vllm_server import LISTWISE, connected
from tests.serving.engine.vllm_server import Server as VllmServer

pytestmark = pytest.mark.anyio

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SECRET = "weather in Lisbon"


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """The process has one provider of tracers, which cannot be changed once it is set."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[Any]:
    def finished() -> dict[str, ReadableSpan]:
        return {span.name: span for span in exporter.get_finished_spans()}

    exporter.clear()
    yield finished
    exporter.clear()


def children(spans: dict[str, ReadableSpan], of: str) -> list[str]:
    parent = spans[of].context.span_id
    return [name for name, span in spans.items() if span.parent and span.parent.span_id == parent]


async def test_a_request_is_one_trace_from_surface_to_engine(client: Any, tools: Any, spans: Any) -> None:
    spans().clear()
    await client.post("/v1/route", json={"query": SECRET, "candidates": tools}, headers=TRACEPARENT)
    found = spans()
    surface = found["POST /v1/route"]
    assert surface.kind is SpanKind.SERVER
    assert f"{surface.context.trace_id:032x}" == TRACE
    assert f"{surface.parent.span_id:016x}" == PARENT
    assert surface.attributes["http.route"] == "/v1/route"
    assert surface.attributes["http.response.status_code"] == 200
    assert children(found, "POST /v1/route") == ["prefilter", "prompt", "text_completion words"]
    engine = found["text_completion words"]
    assert engine.kind is SpanKind.CLIENT
    assert engine.attributes["gen_ai.operation.name"] == "text_completion"
    assert engine.attributes["gen_ai.request.model"] == "words"
    read, cached = (engine.attributes[f"gen_ai.usage.{kind}"] for kind in ("input_tokens", "cache_read.input_tokens"))
    assert read > cached > 0


async def test_an_error_is_told_by_its_class_alone(client: Any, server: Any, tools: Any, spans: Any) -> None:
    server.engine.failure = EngineTimeoutError(f"too slow for {SECRET}")
    await client.post("/v1/route", json={"query": SECRET, "candidates": tools})
    found = spans()
    assert found["text_completion words"].attributes["error.type"] == "EngineTimeoutError"
    assert found["text_completion words"].status.status_code is StatusCode.ERROR
    assert found["POST /v1/route"].attributes["error.type"] == "504"
    assert SECRET not in "".join(span.to_json() for span in found.values())


async def test_a_callers_mistake_is_no_error_of_the_server(client: Any, spans: Any) -> None:
    await client.post("/v1/route", content=b"{")
    assert spans()["POST /v1/route"].attributes["http.response.status_code"] == 422
    assert spans()["POST /v1/route"].status.status_code is StatusCode.UNSET


async def test_paths_are_names_only_where_they_are_routes(client: Any, spans: Any) -> None:
    await client.get("/wp-admin")
    await client.get("/v1/models/some-model")
    await client.get("/health/ready")
    await client.get("/metrics")
    names = {name for name in spans() if name.startswith("GET")}
    assert names == {"GET", "GET /v1/models/{name}"}


async def test_vllm_joins_the_trace(spans: Any) -> None:
    server = VllmServer()
    async with connected(server) as engine:
        with trace.get_tracer("test").start_as_current_span("caller") as caller:
            await engine.score(LISTWISE)
    call = spans()["POST"]
    assert call.parent.span_id == caller.get_span_context().span_id
    assert call.attributes["server.address"] == "vllm"
    assert call.attributes["server.port"] == 8001
    sent = server.requests[-1].headers["traceparent"]
    assert sent == f"00-{call.context.trace_id:032x}-{call.context.span_id:016x}-{call.context.trace_flags:02x}"


def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
    ],
)
def test_nothing_is_exported_unless_asked_for(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    unset(monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert not tracing.configure()


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    unset(monkeypatch)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ValueError, match=r"light-router\[otel\]"):
        tracing.configure()


async def test_over_mcp_an_agents_trace_goes_on_to_the_upstream(spans: Any, tmp_path: Any) -> None:
    studio = Studio()
    async with (
        serving(studio.server.streamable_http_app()) as port,
        running(f"sqlite:///{tmp_path / 'agent.db'}", [source(port)]) as agent,
        agent.host() as host,
    ):
        with trace.get_tracer("test").start_as_current_span("caller") as caller:
            await run(host, "echo the text", {"text": "hello"})
    own = {name: span for name, span in spans().items() if span.context.trace_id == caller.get_span_context().trace_id}
    assert {"tools/call route", "tools/call execute", "MCP send tools/call echo_text"} <= own.keys()
    assert own["tools/call route"].attributes["gen_ai.tool.name"] == "route"
    upstream = own["tools/call echo_text"]
    assert upstream.kind is SpanKind.SERVER
    assert upstream.attributes["mcp.method.name"] == "tools/call"
    assert upstream.parent.span_id == own["MCP send tools/call echo_text"].context.span_id
    assert own["MCP send tools/call echo_text"].parent.span_id == own["tools/call execute"].context.span_id
