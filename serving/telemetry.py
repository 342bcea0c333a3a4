"""What operators can count: Prometheus metrics of requests, decisions and errors, in a registry of their own.

Knows Decision and error classes. Does not know HTTP: the surfaces say which of them asked and how it ended.
Names follow Prometheus' conventions: base units, `_seconds`, `_total`. No label ever holds a caller's text, but for the
names of catalogues, which are short, and of which only some are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from serving.types import BusyError, Decision

# From a cached answer of a small model on a GPU to a cold one of a long list on a CPU.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
# Catalogues that are shown by name: the first ones in the alphabet.
_CATALOGS = 32
# What is asked for whenever the metrics are read: name and description.
_WATCHED = {
    "ready": "1 where /health/ready answers 200.",
    "queue_requests": "Decisions that hold a place: in progress, or waiting for the engine.",
    "queue_tokens": "Tokens of their prompts, as estimated before they were read.",
    "queue_drain_seconds": "How long they take to end at the rate of late; what Retry-After says.",
    "engine_requests": "Questions that the engine was asked and has not answered.",
    "engine_breaker_state": "0: the engine is asked; 1: tried again; 2: not asked, because it failed.",
    "catalog_sync_age_seconds": "Since the catalogues' database last said which versions there are.",
}
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
        self._refused = counter("refused", "Requests refused with 429, by the bound that was met.", "reason")
        self._degraded = counter("degraded", "Decisions made by the prefilter alone, for the engine was down.")
        # Signals of drift: compared with a week ago they say that callers, catalogue or model have changed.
        self._entropy = histogram(
            "decision_entropy_ratio", "Entropy of the posterior, as a part of the most there can be.", _SHARES
        )
        self._none_probability = histogram("none_probability", "Probability that no candidate fits.", _SHARES)
        self._margin = histogram(
            "prefilter_margin_ratio", "How far the prefilter's best lies above its second, as a part of it.", _SHARES
        )
        self._watched = {
            name: Gauge(f"light_router_{name}", text, registry=self.registry) for name, text in _WATCHED.items()
        }
        self._catalog_candidates = Gauge(
            "light_router_catalog_candidates", "Candidates of a catalogue.", ["catalog"], registry=self.registry
        )
        self._catalog_version = Gauge(
            "light_router_catalog_version", "Version of a catalogue in memory.", ["catalog"], registry=self.registry
        )
        self._catalogs: Callable[[], Mapping[str, tuple[int, int]]] = dict

    def request(self, surface: str, outcome: str, seconds: float) -> None:
        """Count a request that ended. `outcome` is "ok", "disconnected" or an error's code."""
        self._requests.labels(surface, outcome).inc()
        self._request_seconds.labels(surface).observe(seconds)

    def error(self, error: Exception) -> None:
        """Count an error that a request ended in."""
        self._errors.labels(type(error).__name__).inc()
        if isinstance(error, BusyError):
            self._refused.labels(error.reason).inc()

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
        if decision.degraded:  # its scores tell nothing of the model
            self._degraded.inc()
            return
        self._decisions.inc()
        if decision.chosen is None:
            self._none_answers.inc()
        self._none_probability.observe(decision.none_probability)
        if (entropy := _entropy(decision)) is not None:
            self._entropy.observe(entropy)
        if decision.prefilter.margin is not None:
            self._margin.observe(decision.prefilter.margin)
        self._considered.observe(decision.prefilter.considered)
        self._kept.observe(decision.prefilter.kept)
        self._prompt_tokens.inc(decision.prompt_tokens)
        self._cached_tokens.inc(decision.cached_tokens)
        for stage, milliseconds in decision.timings_ms.items():
            self._stage_seconds.labels(stage).observe(milliseconds / 1000)

    def watch(self, name: str, value: Callable[[], float]) -> None:
        """Ask `value` for a gauge whenever the metrics are read."""
        self._watched[name].set_function(value)

    def watch_catalogs(self, sizes: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        """Ask `sizes` for candidates and version of every catalogue whenever the metrics are read."""
        self._catalogs = sizes

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as text and its content type, in the format that an Accept header asks for."""
        self._catalog_candidates.clear()
        self._catalog_version.clear()
        for name, (candidates, version) in sorted(self._catalogs().items())[:_CATALOGS]:
            self._catalog_candidates.labels(name).set(candidates)
            self._catalog_version.labels(name).set(version)
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _entropy(decision: Decision) -> float | None:
    """Entropy of the posterior over candidates and none, from 0 to 1; None where only the winner was read."""
    posterior = [decision.none_probability, *(ranked.probability for ranked in decision.ranking)]
    if len(decision.ranking) < decision.prefilter.kept or len(posterior) < 2:
        return None
    return -sum(p * math.log(p) for p in posterior if p > 0) / math.log(len(posterior))
