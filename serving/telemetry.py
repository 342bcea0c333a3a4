"""What operators can count: Prometheus metrics of requests, decisions and errors, in a registry of their own.

Knows Decision and error classes. Does not know HTTP: the surfaces say which of them asked and how it ended.
Names follow Prometheus' conventions: base units, `_seconds`, `_total`. No label ever holds a caller's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from serving.types import Decision

# From a cached answer of a small model on a GPU to a cold one of a long list on a CPU.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CANDIDATES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


class Telemetry:
    """The metrics of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"light_router_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"light_router_{name}", text, labels, buckets=buckets, registry=self.registry)

        self._requests = counter("requests", "Requests by surface and by how they ended.", "surface", "outcome")
        self._request_seconds = histogram(
            "request_seconds", "From the request's first byte to the answer's last, by surface.", _SECONDS, "surface"
        )
        self._errors = counter("errors", "Requests that ended in an error, by its class.", "error")
        self._disconnects = counter("disconnects", "Requests whose client left; their decisions were cancelled.")
        self._stage_seconds = histogram("stage_seconds", "Time of one decision, by stage.", _SECONDS, "stage")
        self._considered = histogram("candidates_considered", "Candidates in a decision's request.", _CANDIDATES)
        self._kept = histogram("candidates_kept", "Candidates that reached the model.", _CANDIDATES)
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts, a shared prefix counted once.")
        self._cached_tokens = counter("cached_tokens", "Tokens of prompts that were not computed again.")
        self._none_answers = counter("none_answers", "Decisions that no candidate fits.")
        self._decisions = counter("decisions", "Decisions made among candidates.")
        self._in_progress = Gauge(
            "light_router_decisions_in_progress", "Decisions being made or waiting.", registry=self.registry
        )
        self._ready = Gauge("light_router_ready", "1 where /health/ready answers 200.", registry=self.registry)

    def request(self, surface: str, outcome: str, seconds: float) -> None:
        """Count a request that ended. `outcome` is "ok", "disconnected" or an error's code."""
        self._requests.labels(surface, outcome).inc()
        self._request_seconds.labels(surface).observe(seconds)

    def error(self, error: Exception) -> None:
        """Count an error that a request ended in."""
        self._errors.labels(type(error).__name__).inc()

    def disconnect(self) -> None:
        """Count a client that left before its answer."""
        self._disconnects.inc()

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Count a decision as in progress."""
        with self._in_progress.track_inprogress():
            yield

    def decision(self, decision: Decision) -> None:
        """Count a decision and what it took. Where there were no candidates nothing was decided."""
        if not decision.prefilter.considered:
            return
        self._decisions.inc()
        if decision.chosen is None:
            self._none_answers.inc()
        self._considered.observe(decision.prefilter.considered)
        self._kept.observe(decision.prefilter.kept)
        self._prompt_tokens.inc(decision.prompt_tokens)
        self._cached_tokens.inc(decision.cached_tokens)
        for stage, milliseconds in decision.timings_ms.items():
            self._stage_seconds.labels(stage).observe(milliseconds / 1000)

    def watch_ready(self, ready: Callable[[], bool]) -> None:
        """Ask `ready` whenever the metrics are read."""
        self._ready.set_function(lambda: float(ready()))

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as text and its content type, in the format that an Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
