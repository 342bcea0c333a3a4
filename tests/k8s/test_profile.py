"""The profile that the chart renders is one that the server takes, and both sides of it agree."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.config import Config
from serving.engine.command import vllm_command
from tests.conftest import ROOT
from tests.k8s.charts import (
    CHART,
    GPU,
    RELEASE,
    RENDERINGS,
    Document,
    containers,
    named,
    of_kind,
    pods,
    rendered,
    run,
    values_of,
)


def profile(name: str, tmp_path: Path, *options: str) -> Config:
    """What the API's pods read."""
    text = named(rendered(name, *options), "ConfigMap", "profile")["data"]["profile.yaml"]
    file = tmp_path / "profile.yaml"
    file.write_text(text, encoding="utf-8")
    return Config.load(file)


@pytest.mark.parametrize("name", RENDERINGS)
def test_the_server_takes_the_profile(name: str, tmp_path: Path) -> None:
    config = profile(name, tmp_path)
    assert config.server.host == "0.0.0.0"
    assert config.server.port == 8000
    assert config.engine.kind == ("local" if name == "cpu" else "vllm")


def test_a_key_that_the_server_does_not_know_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.nmae"):
        profile("one-gpu", tmp_path, "--set", "config.model.nmae=x")


def test_large_numbers_stay_whole(tmp_path: Path) -> None:
    """Helm reads numbers as floats, and writes large ones with an exponent."""
    assert profile("cpu", tmp_path, "--set", "config.server.max_body_bytes=8388608").server.max_body_bytes == 8388608


@pytest.mark.parametrize(("name", "other"), [("one-gpu", "qwen3-8b"), ("multi-gpu", "qwen3-8b"), ("cpu", "cpu")])
def test_the_model_is_asked_as_in_the_repository_s_own_profile(name: str, other: str, tmp_path: Path) -> None:
    ours, theirs = profile(name, tmp_path), Config.load(ROOT / "configs" / f"{other}.yaml")
    assert ours.model.model_dump(exclude={"adapter"}) == theirs.model.model_dump(exclude={"adapter"})
    assert ours.prefilter.model_dump(exclude={"threads"}) == theirs.prefilter.model_dump(exclude={"threads"})
    assert ours.engine.dtype == theirs.engine.dtype
    assert ours.engine.vllm.items() >= theirs.engine.vllm.items()


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("one-gpu", f"http://{RELEASE}-vllm:8001"),
        ("multi-gpu", f"http://{RELEASE}-balancer:8001"),
        ("inference-pool", "http://inference.gateways.svc"),
    ],
)
def test_the_api_asks_what_serves(name: str, url: str, tmp_path: Path) -> None:
    assert profile(name, tmp_path).engine.url == url
    services = {f"http://{one['metadata']['name']}:{one['spec']['ports'][0]['port']}" for one in services_of(name)}
    assert url in services or name == "inference-pool"


def services_of(name: str) -> list[Document]:
    return of_kind(rendered(name), "Service")


@pytest.mark.parametrize("name", GPU)
def test_vllm_starts_with_the_command_that_the_profile_wants(name: str, tmp_path: Path) -> None:
    """The init container prints it with `light-router engine`; here it is made the same way."""
    command = vllm_command(profile(name, tmp_path))
    options = dict(zip(command, [*command[1:], ""], strict=True))
    assert command[:2] == ["vllm", "serve"]
    assert options["--host"] == "0.0.0.0"
    pod = named(rendered(name), "StatefulSet", "vllm")["spec"]["template"]
    main = pod["spec"]["containers"][0]
    assert options["--port"] == str(main["ports"][0]["containerPort"])
    init = pod["spec"]["initContainers"][-1]
    assert init["args"][0].startswith("light-router engine --config /etc/light-router/profile.yaml > /command/vllm")
    assert main["args"] == ['eval "exec $(cat /command/vllm)"']


def test_the_printed_command_survives_the_shell(tmp_path: Path) -> None:
    """Its JSON option above all: quoted by one program, read by another."""
    command = ["printf", "%s\n", *vllm_command(profile("one-gpu", tmp_path))]
    (tmp_path / "vllm").write_text(shlex.join(command) + "\n", encoding="utf-8")
    script = f'eval "exec $(cat {tmp_path}/vllm)"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == command[2:]
    assert json.loads(done.stdout.splitlines()[command.index("--hf-overrides") - 2 + 1]) == {"head_dtype": "float32"}


def test_a_delivered_adapter_is_the_one_that_is_served(tmp_path: Path) -> None:
    config = profile("autoscaled", tmp_path)
    assert config.model.adapter == "/adapter/toolace-mcp"
    assert config.model.served_name == "toolace-mcp"
    assert "toolace-mcp=/adapter/toolace-mcp" in vllm_command(config)


def variables(name: str) -> dict[str, dict[str, Any]]:
    return {
        one["name"]: one
        for _, pod in pods(rendered(name))
        for container in containers(pod)
        for one in container.get("env", [])
    }


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_variable_is_one_that_the_server_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = {"LIGHT_ROUTER_SERVER__API_KEYS": '["a"]', "LIGHT_ROUTER_CATALOG__DATABASE": "postgresql://u:p@h/d"}
    ours = [one for one in variables(name) if one.startswith("LIGHT_ROUTER_")]
    before = profile(name, tmp_path)
    for one in ours:
        monkeypatch.setenv(one, examples.get(one, "secret"))
    after = profile(name, tmp_path)
    assert ours
    assert len({str(after.model_dump()), str(before.model_dump())}) == 2
    assert after.server.api_keys[0].get_secret_value() == "a"


@pytest.mark.parametrize("name", RENDERINGS)
def test_secrets_are_references(name: str) -> None:
    for variable, entry in variables(name).items():
        if any(word in variable for word in ("KEY", "TOKEN", "DATABASE")):
            reference = entry["valueFrom"]["secretKeyRef"]
            assert reference["name"] == "light-router"
            assert not reference.get("optional"), "a missing key would open the server"
    assert not of_kind(rendered(name), "Secret")


def test_the_external_secret_holds_every_key_that_is_read() -> None:
    (external,) = of_kind(rendered("inference-pool"), "ExternalSecret")
    made = {one["secretKey"] for one in external["spec"]["data"]}
    read = {
        one["valueFrom"]["secretKeyRef"]["key"] for one in variables("inference-pool").values() if "valueFrom" in one
    }
    assert made == read


def test_a_changed_profile_restarts_what_reads_it() -> None:
    def checksums(*options: str) -> list[str]:
        documents = rendered("one-gpu", *options)
        owners = [named(documents, "Deployment", "api"), named(documents, "StatefulSet", "vllm")]
        return [str(one["spec"]["template"]["metadata"]["annotations"]["checksum/profile"]) for one in owners]

    api, vllm = checksums()
    assert checksums("--set", "api.preStopSeconds=20") == [api, vllm]
    assert checksums("--set", "config.prefilter.k=20")[1] == vllm
    assert checksums("--set", "config.prefilter.k=20")[0] != api
    assert checksums("--set", "config.engine.vllm.max-num-seqs=8")[1] != vllm


@pytest.mark.parametrize("name", ["one-gpu", "multi-gpu", "cpu"])
def test_a_profile_names_only_what_the_chart_knows(name: str) -> None:
    own = yaml.safe_load((CHART / f"values-{name}.yaml").read_text(encoding="utf-8"))
    known = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert own.keys() <= known.keys()


def test_the_notes_warn_of_what_is_open() -> None:
    def notes(*options: str) -> str:
        done = run("install", RELEASE, str(CHART), *values_of("one-gpu"), "--dry-run=client", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:")[2]

    safe = notes("--set", "config.model.adapter=adapters/mine")
    assert "helm test" in safe
    assert "WARNING" not in safe
    assert "nobody is asked for a key" in notes("--set", "secrets.keys.apiKeys=")
    assert "no adapter is given" in notes()
    assert "every pod in the cluster reaches vLLM" in notes("--set", "networkPolicy.enabled=false")
