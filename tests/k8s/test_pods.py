"""What runs: without rights, from fixed images, probed patiently, ended in peace, and out of everybody's reach."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.k8s.charts import (
    GPU,
    NAMESPACE,
    RELEASE,
    RENDERINGS,
    Document,
    containers,
    named,
    of_kind,
    pods,
    rendered,
)


def weaknesses(pod: Document) -> list[str]:
    """Where a pod is less than Pod Security's `restricted` asks, or can write to its image."""
    spec = pod["spec"]
    security = spec.get("securityContext", {})
    found = []
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        found.append("it may run as root")
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("no seccomp profile")
    if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        found.append("it shares the host's namespaces")
    if spec.get("enableServiceLinks") is not False:
        found.append("it gets variables of other services")
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "name"}
    found += [f"volume {one['name']}" for one in spec.get("volumes", []) if not one.keys() <= allowed]
    for container in containers(pod):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.append(f"{container['name']} may gain rights")
        if own.get("capabilities") != {"drop": ["ALL"]}:
            found.append(f"{container['name']} has capabilities")
        if own.get("readOnlyRootFilesystem") is not True:
            found.append(f"{container['name']} can write to its image")
        if (
            not {"cpu", "memory"} <= container["resources"]["requests"].keys()
            or "memory" not in container["resources"]["limits"]
        ):
            found.append(f"{container['name']} has no bounds")
        if "@sha256:" not in container["image"] and container["image"].partition(":")[2] in {"", "latest"}:
            found.append(f"{container['name']} runs what a moving tag names")
    return found


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_pod_is_restricted(name: str) -> None:
    documents = rendered(name)
    assert {owner: weaknesses(pod) for owner, pod in pods(documents) if weaknesses(pod)} == {}
    tokens = {owner for owner, pod in pods(documents) if pod["spec"].get("automountServiceAccountToken") is not False}
    assert tokens <= {f"{RELEASE}-balancer"}, "nothing else asks the cluster anything"


BREAKS: dict[str, Callable[[Document], Any]] = {
    "root": lambda pod: pod["spec"]["securityContext"].update(runAsUser=0),
    "seccomp": lambda pod: pod["spec"]["securityContext"].pop("seccompProfile"),
    "host": lambda pod: pod["spec"].update(hostNetwork=True),
    "links": lambda pod: pod["spec"].pop("enableServiceLinks"),
    "volume": lambda pod: pod["spec"]["volumes"].append({"name": "etc", "hostPath": {"path": "/etc"}}),
    "privileged": lambda pod: pod["spec"]["containers"][0]["securityContext"].update(privileged=True),
    "capability": lambda pod: pod["spec"]["containers"][0]["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]),
    "writable": lambda pod: pod["spec"]["initContainers"][0].pop("securityContext"),
    "unbounded": lambda pod: pod["spec"]["containers"][0]["resources"]["limits"].pop("memory"),
    "latest": lambda pod: pod["spec"]["containers"][0].update(image="vllm:latest"),
    "untagged": lambda pod: pod["spec"]["containers"][0].update(image="vllm"),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_weaker_pod_is_noticed(broken: str) -> None:
    pod = copy.deepcopy(named(rendered("one-gpu"), "StatefulSet", "vllm")["spec"]["template"])
    assert weaknesses(pod) == []
    BREAKS[broken](pod)
    assert len(weaknesses(pod)) >= 1


def reach(documents: tuple[Document, ...], component: str) -> list[dict[str, Any]]:
    """Who may connect to a component's pods, by the policies that select them."""
    labels = {"app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": component}
    labels["app.kubernetes.io/name"] = "light-router"
    policies = [
        policy["spec"]
        for policy in of_kind(documents, "NetworkPolicy")
        if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ]
    assert policies, f"{component} is open to everybody"
    assert all("Ingress" in policy["policyTypes"] for policy in policies)
    return [peer for policy in policies for rule in policy["ingress"] for peer in rule["from"]]


def only(component: str) -> list[dict[str, Any]]:
    labels = {"app.kubernetes.io/name": "light-router", "app.kubernetes.io/instance": RELEASE}
    return [{"podSelector": {"matchLabels": {**labels, "app.kubernetes.io/component": component}}}]


def test_only_the_api_or_what_stands_between_reaches_vllm() -> None:
    assert reach(rendered("one-gpu"), "vllm") == only("api")
    assert reach(rendered("multi-gpu"), "vllm") == only("balancer")
    assert reach(rendered("multi-gpu"), "balancer") == only("api")
    gateways = {"kubernetes.io/metadata.name": "gateways"}
    assert reach(rendered("inference-pool"), "vllm") == [{"namespaceSelector": {"matchLabels": gateways}}]


@pytest.mark.parametrize("name", RENDERINGS)
def test_nothing_of_vllm_is_outside_the_cluster(name: str) -> None:
    for service in of_kind(rendered(name), "Service"):
        assert service["spec"].get("type", "ClusterIP") == "ClusterIP"
    shown = {
        backend["name"]
        for route in of_kind(rendered(name), "HTTPRoute")
        for rule in route["spec"]["rules"]
        for backend in rule["backendRefs"]
        if backend.get("kind", "Service") == "Service"
    }
    assert shown <= {f"{RELEASE}-api"}


@pytest.mark.parametrize("name", GPU)
def test_vllm_may_not_call_out_but_for_weights(name: str) -> None:
    (policy,) = [one for one in of_kind(rendered(name), "NetworkPolicy") if one["metadata"]["name"].endswith("-vllm")]
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert ports <= {53, 443}
    offline = rendered(name, "--set", "config.model.path=/cache/qwen3-8b,adapter.url=,adapter.existingClaim=")
    (policy,) = [one for one in of_kind(offline, "NetworkPolicy") if one["metadata"]["name"].endswith("-vllm")]
    assert {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]} == {53}


def test_the_balancer_may_only_look_at_pods_of_its_namespace() -> None:
    documents = rendered("multi-gpu")
    assert named(documents, "Role", "balancer")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
    ]
    arguments = named(documents, "Deployment", "balancer")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--service-discovery-namespace={NAMESPACE}" in arguments
    labels = dict(argument.split("=") for argument in arguments if not argument.startswith("--"))
    assert labels.items() <= named(documents, "StatefulSet", "vllm")["spec"]["template"]["metadata"]["labels"].items()


def serving(documents: tuple[Document, ...]) -> list[Document]:
    return [document["spec"]["template"]["spec"] for document in of_kind(documents, "Deployment", "StatefulSet")]


@pytest.mark.parametrize("name", RENDERINGS)
def test_a_busy_engine_fails_no_probe(name: str) -> None:
    """Liveness asks what the event loop answers beside its work, and gives it a minute; readiness 15 s."""
    for spec in serving(rendered(name)):
        probes = spec["containers"][0]
        live, ready, start = (probes[kind] for kind in ("livenessProbe", "readinessProbe", "startupProbe"))
        assert live["timeoutSeconds"] >= 10
        assert live["periodSeconds"] * live["failureThreshold"] >= 60
        assert ready["timeoutSeconds"] >= 5
        assert ready["periodSeconds"] * ready.get("failureThreshold", 3) >= 15
        assert live["httpGet"]["path"] in {"/health/live", "/liveness", "/health"}
        assert start["httpGet"]["path"] == live["httpGet"]["path"]


@pytest.mark.parametrize("name", GPU)
def test_vllm_has_time_to_download_its_model(name: str) -> None:
    probe = named(rendered(name), "StatefulSet", "vllm")["spec"]["template"]["spec"]["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 45 * 60


@pytest.mark.parametrize("name", RENDERINGS)
@pytest.mark.parametrize("timeout", [30, 90])
def test_the_grace_time_holds_what_is_in_flight(name: str, timeout: int) -> None:
    """preStop until nobody sends any more, then one engine timeout, then some room to end."""
    for spec in serving(rendered(name, "--set", f"config.engine.timeout_s={timeout}")):
        pause = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert spec["terminationGracePeriodSeconds"] >= pause + timeout + 10


@pytest.mark.parametrize("name", RENDERINGS)
def test_replicas_are_spread_and_drained_one_by_one(name: str) -> None:
    documents = rendered(name)
    budgets = [one["spec"] for one in of_kind(documents, "PodDisruptionBudget")]
    for document in of_kind(documents, "Deployment", "StatefulSet"):
        selector = document["spec"]["selector"]
        spread = document["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        assert all(one["labelSelector"] == selector for one in spread)
        assert [budget["maxUnavailable"] for budget in budgets if budget["selector"] == selector] == [1]


@pytest.mark.parametrize("name", GPU)
def test_vllm_has_a_gpu_its_cache_and_shared_memory(name: str) -> None:
    spec = named(rendered(name), "StatefulSet", "vllm")["spec"]
    pod = spec["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["/dev/shm"] == "shared-memory"
    claims = [one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", [])]
    shared = [one["name"] for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert mounts["/cache"] in claims + shared
    caches = [one["value"] for one in pod["containers"][0]["env"] if one.get("value", "").startswith("/cache")]
    assert len(caches) >= 5


@pytest.mark.parametrize("name", ["inference-pool", "autoscaled"])
def test_the_adapter_is_delivered_to_the_api_and_to_vllm_alike(name: str) -> None:
    delivered = []
    for kind, owner in (("Deployment", "api"), ("StatefulSet", "vllm")):
        pod = named(rendered(name), kind, owner)["spec"]["template"]
        (init,) = [one for one in pod["spec"]["initContainers"] if one["name"] == "adapter"]
        delivered.append(init["args"][1:])
        (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == "adapter"]
        assert mount["readOnly"] is True
    assert delivered[0] == delivered[1]
    assert delivered[0][1:] == ["0" * 64, "/adapter", "toolace-mcp"]


def test_a_catalogue_in_a_file_has_one_writer_and_a_volume_that_stays() -> None:
    for name in ("one-gpu", "cpu"):
        deployment = named(rendered(name), "Deployment", "api")
        assert deployment["spec"]["strategy"]["type"] == "Recreate"
        assert deployment["spec"]["replicas"] == 1
        claim = named(rendered(name), "PersistentVolumeClaim", "data")
        assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not of_kind(rendered("multi-gpu"), "PersistentVolumeClaim")


def test_the_tables_are_made_before_an_upgrade_where_there_is_a_server() -> None:
    job = named(rendered("multi-gpu"), "Job", "tables")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,pre-upgrade"
    assert not of_kind(rendered("one-gpu"), "Job")


def test_helm_test_asks_the_release() -> None:
    pod = named(rendered("one-gpu"), "Pod", "smoke")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["args"][1] == f"http://{RELEASE}-api"
