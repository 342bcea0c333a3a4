"""What became of one request, as OpenTelemetry spans from the surface to the engine.

Knows spans and W3C trace context. Names follow OpenTelemetry's semantic conventions for HTTP and generative AI. Spans
of requests are FastAPI's own, those of MCP the MCP SDK's. No span holds a caller's text. Until `configure` has found
the standard OTEL_* variables, which the OpenTelemetry SDK reads by itself, all of this does nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from fastapi.telemetry import TelemetryConfig
from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

_SERVICE = "light-router"
_TRACER = trace.get_tracer(_SERVICE)
# Any of these says where spans go.
_CONFIGURED_BY = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
# Asked every few seconds by machines.
_UNTRACED = ("/health/", "/metrics")
_PORTS = {"http": 80, "https": 443}

OF_REQUESTS: TelemetryConfig = {
    "auto_configure": False,  # by `configure`, for the agent too
    "metrics": False,  # Prometheus has them
    "logs": False,  # they would hold messages of errors, and so what callers sent
    "operation_spans": False,
    "exclude": lambda scope: str(scope["path"]).startswith(_UNTRACED),
}
"""How FastAPI traces requests."""


def configure() -> bool:
    """Export spans as the standard OTEL_* variables say; whether they say so.

    Raises:
        ValueError: they do, but the SDK is not installed.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or not any(map(os.environ.get, _CONFIGURED_BY)):
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            "OTEL_* variables ask for traces, which need the extra `otel`: pip install 'light-router[otel]', or set "
            "OTEL_SDK_DISABLED=true"
        ) from error
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):  # no variable names it
        resource = resource.merge(Resource({"service.name": _SERVICE}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


@contextmanager
def _span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Mapping[str, str | int] | None = None
) -> Iterator[Span]:
    """A span that tells an error's class, never its message: that may quote what the caller sent."""
    with _TRACER.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise


class Stages:
    """The stages of one decision: a span of each, and in `ms` the milliseconds that it took."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[Span]:
        """One stage."""
        with self._timed(name), _span(name) as span:
            yield span

    @contextmanager
    def engine(self, model: str) -> Iterator[Span]:
        """The stage that asks the model."""
        attributes = {"gen_ai.operation.name": "text_completion", "gen_ai.request.model": model}
        with self._timed("engine"), _span(f"text_completion {model}", SpanKind.CLIENT, attributes) as span:
            yield span

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.ms[name] = (time.perf_counter() - started) * 1e3


def tokens(prompt: int, cached: int) -> dict[str, int]:
    """Attributes of what a model has read."""
    return {"gen_ai.usage.input_tokens": prompt, "gen_ai.usage.cache_read.input_tokens": cached}


@contextmanager
def http_call(method: str, url: str) -> Iterator[dict[str, str]]:
    """A request to another server; the headers that it is to be sent with, so that its spans join this trace."""
    where = urlsplit(url)
    attributes: dict[str, str | int] = {"http.request.method": method, "url.full": url}
    attributes |= {"server.address": where.hostname or "", "server.port": where.port or _PORTS.get(where.scheme, 0)}
    with _span(method, SpanKind.CLIENT, attributes):
        headers: dict[str, str] = {}
        propagate.inject(headers)
        yield headers
