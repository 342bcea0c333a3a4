"""Every profile renders into documents that Kubernetes would take, and each check refuses what is broken."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.k8s.charts import CHART, RENDERINGS, Document, named, of_kind, pods, rendered, run, template, values_of
from tests.k8s.validation import SCHEMAS, faults

CUSTOM = ("ExternalSecret", "HTTPRoute", "InferencePool", "PrometheusRule", "ScaledObject", "ServiceMonitor")
WITHOUT_SPEC = ("ConfigMap", "Role", "RoleBinding", "ServiceAccount")
KINDS = (
    *CUSTOM,
    *WITHOUT_SPEC,
    "Deployment",
    "HorizontalPodAutoscaler",
    "Job",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "Service",
    "StatefulSet",
)


@cache
def example(kind: str) -> Document:
    """One document of a kind, from the first rendering that has any."""
    return next(document for name in RENDERINGS for document in of_kind(rendered(name), kind))


@pytest.mark.parametrize("name", RENDERINGS)
def test_lint(name: str) -> None:
    done = run("lint", "--strict", str(CHART), *values_of(name))
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_refuses_a_broken_chart(tmp_path: Any) -> None:
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: broken\n", encoding="utf-8")
    assert run("lint", "--strict", str(tmp_path)).returncode != 0


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_document_is_valid(name: str) -> None:
    documents = rendered(name)
    assert [fault for document in documents for fault in faults(document)] == []
    keys = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(keys) == len(set(keys))


def test_the_renderings_use_every_kind_that_is_tested_and_no_other() -> None:
    assert {document["kind"] for name in RENDERINGS for document in rendered(name)} == set(KINDS)


def test_every_custom_schema_is_a_schema_and_is_used() -> None:
    used = {f"{kind.lower()}-{example(kind)['apiVersion'].replace('/', '-')}.json" for kind in CUSTOM}
    assert {file.name for file in SCHEMAS.iterdir()} == used
    for file in SCHEMAS.iterdir():
        Draft202012Validator.check_schema(json.loads(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_that_does_not_exist_is_refused(kind: str) -> None:
    broken = copy.deepcopy(example(kind))
    where = broken if kind in WITHOUT_SPEC else broken["spec"]
    where["notAField"] = "x"
    assert faults(broken)


def test_a_kind_without_a_schema_is_refused() -> None:
    (fault, *_) = faults({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}})
    assert "no schema for example.com/v1 Widget" in fault


def change(kind: str, path: list[Any], value: Any) -> Document:
    """A document of a kind with one value replaced, or removed where it is None."""
    broken = copy.deepcopy(example(kind))
    at: Any = broken
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return broken


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ["spec", "replicas"], "two"),
        ("Deployment", ["spec", "selector"], None),
        ("StatefulSet", ["spec", "template", "spec", "containers", 0, "ports", 0, "containerPort"], "http"),
        ("NetworkPolicy", ["spec", "podSelector"], []),
        ("Service", ["spec", "ports", 0, "port"], None),
        ("ServiceMonitor", ["spec", "endpoints", 0, "interval"], "soon"),
        ("ServiceMonitor", ["spec", "selector"], None),
        ("PrometheusRule", ["spec", "groups", 0, "rules", 0, "expr"], None),
        ("PrometheusRule", ["spec", "groups", 0, "rules", 0, "for"], "5 minutes"),
        ("HTTPRoute", ["spec", "rules", 0, "matches", 0, "path", "type"], "Prefix"),
        ("HTTPRoute", ["spec", "rules", 0, "timeouts", "request"], "35"),
        ("InferencePool", ["spec", "endpointPickerRef", "port"], None),
        ("InferencePool", ["spec", "targetPorts"], []),
        ("InferencePool", ["spec", "selector"], {"app": "vllm"}),
        ("ScaledObject", ["spec", "triggers", 0, "metadata", "threshold"], 16),
        ("ScaledObject", ["spec", "triggers", 0, "metadata", "serverAddress"], None),
        ("ScaledObject", ["spec", "scaleTargetRef", "name"], None),
        ("ExternalSecret", ["spec", "secretStoreRef", "kind"], "Vault"),
        ("ExternalSecret", ["spec", "data", 0, "remoteRef", "key"], None),
    ],
)
def test_a_broken_value_is_refused(kind: str, path: list[Any], value: Any) -> None:
    assert faults(example(kind)) == []
    assert faults(change(kind, path, value))


def test_a_route_to_a_service_without_a_port_is_refused() -> None:
    (route,) = [one for one in of_kind(rendered("inference-pool"), "HTTPRoute") if "api" in one["metadata"]["name"]]
    broken = copy.deepcopy(route)
    del broken["spec"]["rules"][0]["backendRefs"][0]["port"]
    assert faults(route) == []
    assert faults(broken)


SCHEMA_REFUSES = {
    "an unknown key": "replicas=2",
    "an unknown nested key": "api.replica=2",
    "a wrong type": "api.replicas=many",
    "no replica": "api.replicas=0",
    "an unknown flavour": "image.flavour=gpu",
    "a moving tag": "vllm.image.tag=latest",
    "no tag at all": "vllm.image.tag=",
    "a short digest": "image.digest=sha256:12",
    "an adapter without its digest": "adapter.url=https://a/b.tar.gz,adapter.name=a",
    "a claim without the file's name": f"adapter.existingClaim=c,adapter.name=a,adapter.sha256={'a' * 64}",
    "a name that leaves the folder": f"adapter.url=https://a/b,adapter.name=../a,adapter.sha256={'a' * 64}",
    "an address that the chart sets": "config.engine.url=http://a",
    "a key in the open": "config.server.api_keys[0]=secret",
    "a password in the open": "config.catalog.database=postgresql://u:p@h/d",
    "a key of the LLM in the open": "config.llm.api_key=secret",
    "no resources": "vllm.resources=null",
    "a size that is none": "vllm.cache.size=big",
    "an unknown policy": "balancer.policy=best",
    "a gateway without a name": "inferencePool.enabled=true,inferencePool.url=http://a",
    "a route without a parent": "httpRoute.enabled=true",
    "KEDA without Prometheus": "keda.enabled=true",
    "a store without a name": "secrets.externalSecret.enabled=true",
    "a variable of another program": "secrets.variables.PATH=key",
    "nobody who may ask": "networkPolicy.apiFrom=[]",
}


@pytest.mark.parametrize("values", SCHEMA_REFUSES.values(), ids=SCHEMA_REFUSES)
def test_the_schema_refuses(values: str) -> None:
    option = "--set-json" if values.endswith("]") else "--set"
    done = template("multi-gpu", option, values)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


CONTRADICTIONS = {
    "config.engine.kind is vllm": ("multi-gpu", "vllm.enabled=false"),
    "needs torch": ("cpu", "image.flavour=api"),
    "has no embedder": ("multi-gpu", "image.flavour=api"),
    "scatter conversations": ("multi-gpu", "balancer.enabled=false"),
    "stand before vLLM": ("cpu", "balancer.enabled=true"),
    "exclude each other: each chooses": ("inference-pool", "balancer.enabled=true"),
    "exclude each other: both would": ("autoscaled", "api.autoscaling.enabled=true"),
    "cannot share a SQLite file": ("one-gpu", "api.replicas=2"),
    "must lie on the volume": ("cpu", "config.catalog.database=sqlite:///light-router.db"),
    "set secrets.existingSecret": ("multi-gpu", "secrets.existingSecret="),
}


@pytest.mark.parametrize("said", CONTRADICTIONS)
def test_values_that_contradict_each_other_are_refused(said: str) -> None:
    name, values = CONTRADICTIONS[said]
    done = template(name, "--set", values)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_reference_is_kept(name: str) -> None:
    """Volumes, accounts, selectors, scale targets and secrets name what the release or its values hold."""
    documents = rendered(name)
    names = {(one["kind"], one["metadata"]["name"]) for one in documents}
    given = {("PersistentVolumeClaim", "adapters"), ("PersistentVolumeClaim", "models"), ("Secret", "light-router")}
    labels = [pod["metadata"]["labels"] for _, pod in pods(documents)]

    def selects(selector: dict[str, str]) -> bool:
        return any(selector.items() <= each.items() for each in labels)

    for owner, pod in pods(documents):
        spec = pod["spec"]
        wanted = {("ConfigMap", one["configMap"]["name"]) for one in spec.get("volumes", []) if "configMap" in one}
        claims = (one["persistentVolumeClaim"] for one in spec.get("volumes", []) if "persistentVolumeClaim" in one)
        wanted |= {("PersistentVolumeClaim", claim["claimName"]) for claim in claims}
        if "serviceAccountName" in spec:
            wanted.add(("ServiceAccount", spec["serviceAccountName"]))
        templates = next(
            (one for one in documents if one["metadata"]["name"] == owner and one["kind"] == "StatefulSet"), {}
        )
        volumes = {one["name"] for one in spec.get("volumes", [])}
        volumes |= {one["metadata"]["name"] for one in templates.get("spec", {}).get("volumeClaimTemplates", [])}
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, owner
            references = (one["valueFrom"]["secretKeyRef"] for one in container.get("env", []) if "valueFrom" in one)
            wanted |= {("Secret", one["name"]) for one in references}
        assert wanted <= names | given, owner
    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] == "Service":
            assert selects(spec["selector"])
        elif document["kind"] in {"Deployment", "StatefulSet", "PodDisruptionBudget", "InferencePool"}:
            assert selects(spec["selector"]["matchLabels"])
        elif document["kind"] == "NetworkPolicy":
            assert selects(spec["podSelector"]["matchLabels"])
        elif document["kind"] in {"ScaledObject", "HorizontalPodAutoscaler"}:
            target = spec["scaleTargetRef"]
            assert (target["kind"], target["name"]) in names
            scaled = named(documents, target["kind"], target["name"])
            assert "replicas" not in scaled["spec"], "each upgrade would undo what the autoscaler set"
