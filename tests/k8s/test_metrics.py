"""Alerts, dashboard and scaling ask for metrics that the server has, with labels and values that it gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import promql_parser
import pytest

from serving.api.errors import KINDS, error_response
from serving.telemetry import Telemetry
from tests.k8s.charts import RELEASE, named, of_kind, rendered

# Prometheus itself adds these to what it scrapes by a ServiceMonitor.
TARGET_LABELS = {"namespace", "service", "pod"}
UNEXPECTED = json.loads(error_response(RuntimeError(), "/", "").body)["error"]["code"]
OUTCOMES = {"ok", "disconnected", UNEXPECTED, *(kind.code for _, kind in KINDS)}
# What Grafana puts in.
GRAFANA = {"$__rate_interval": "5m", "$namespace": "production", "$service": "router-api"}


@cache
def exposed() -> dict[str, set[str]]:
    """The name of every sample that the server can give, and its labels."""
    telemetry = Telemetry()
    for metric in vars(telemetry).values():
        if labels := getattr(metric, "_labelnames", ()):  # it gives samples once it has been asked for a value
            metric.labels(*labels)
    samples: dict[str, set[str]] = {}
    for family in telemetry.registry.collect():
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of a metric in an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or []:
        yield from selectors(inner)


def groups(node: Any) -> Iterator[str]:
    """Every label that an expression groups by."""
    modifier = getattr(node, "modifier", None)
    if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
        yield from modifier.labels
    for name in ("expr", "lhs", "rhs", "param"):
        if (inner := getattr(node, name, None)) is not None:
            yield from groups(inner)
    for inner in getattr(node, "args", None) or []:
        yield from groups(inner)


def faults(expression: str) -> list[str]:
    """What an expression asks for that no server gives."""
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    parsed = promql_parser.parse(expression)
    found = []
    asked = list(selectors(parsed))
    for selector in asked:
        if selector.name not in exposed():
            found.append(f"no metric {selector.name}")
            continue
        labels = exposed()[selector.name] | TARGET_LABELS
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                found.append(f"{selector.name} has no label {matcher.name}")
            if matcher.name == "outcome" and not set(matcher.value.split("|")) <= OUTCOMES:
                found.append(f"no outcome {matcher.value}")
    known = set.union(TARGET_LABELS, *(exposed().get(selector.name, set()) for selector in asked))
    found += [f"nothing has the label {label}" for label in groups(parsed) if label not in known]
    return found if asked else ["it asks for nothing"]


def rules() -> list[dict[str, Any]]:
    (document,) = of_kind(rendered("multi-gpu"), "PrometheusRule")
    found: list[dict[str, Any]] = document["spec"]["groups"][0]["rules"]
    return found


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads(named(rendered("multi-gpu"), "ConfigMap", "dashboard")["data"]["light-router.json"])
    found: list[dict[str, Any]] = dashboard["panels"]
    return found


def test_every_alert_asks_for_what_there_is_and_says_what_to_do() -> None:
    assert len(rules()) >= 7
    for rule in rules():
        assert faults(rule["expr"]) == [], rule["alert"]
        assert {"summary", "action"} <= rule["annotations"].keys()
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_every_alert_looks_at_this_release_only() -> None:
    for rule in rules():
        for selector in selectors(promql_parser.parse(rule["expr"])):
            given = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
            assert given.items() >= {"namespace": "production", "service": f"{RELEASE}-api"}.items()


def test_every_panel_asks_for_what_there_is() -> None:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(expressions) >= 12
    assert {expression: faults(expression) for expression in expressions if faults(expression)} == {}


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in panels()}) == len(places)


def test_replicas_follow_what_the_server_counts() -> None:
    scaled = of_kind(rendered("autoscaled"), "ScaledObject")
    assert {one["spec"]["scaleTargetRef"]["kind"] for one in scaled} == {"Deployment", "StatefulSet"}
    for one in scaled:
        assert faults(one["spec"]["triggers"][0]["metadata"]["query"]) == []


def test_what_is_scraped_is_where_the_metrics_are() -> None:
    (monitor,) = of_kind(rendered("multi-gpu"), "ServiceMonitor")
    service = named(rendered("multi-gpu"), "Service", "-api")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("light_router_redy == 0", "no metric light_router_redy"),
        ("rate(light_router_requests[5m])", "no metric light_router_requests"),
        ('light_router_ready{surface="route"}', "light_router_ready has no label surface"),
        ('light_router_requests_total{outcome="timeout"}', "no outcome timeout"),
        ("sum by (model) (light_router_decisions_total)", "nothing has the label model"),
        ("histogram_quantile(0.9, light_router_request_seconds)", "no metric light_router_request_seconds"),
        ("1 + light_router_ready / absent(nothing)", "no metric nothing"),
        ("vector(1)", "it asks for nothing"),
    ],
)
def test_an_expression_that_asks_for_nothing_real_is_noticed(expression: str, fault: str) -> None:
    assert fault in faults(expression)
