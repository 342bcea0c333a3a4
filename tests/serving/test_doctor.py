from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from serving.cli import app
from serving.doctor import examine
from tests.faults.vllm_process import VllmProcess


@pytest.fixture
def good(tmp_path: Path, smollm2: Path) -> dict[str, Any]:
    """A profile of which everything is there."""
    return {
        "model": {"name": "base", "path": str(smollm2), "adapter": "adapters/smollm2-135m-router"},
        "prefilter": {"embedder": str(smollm2.parent / "all-minilm-l6-v2")},
        "catalog": {"database": f"sqlite:///{tmp_path / 'catalog.db'}"},
        "server": {"port": 0},
    }


def findings(tmp_path: Path, profile: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    file = tmp_path / "profile.yaml"
    file.write_text(yaml.safe_dump(profile), encoding="utf-8")
    return {finding.check: (finding.status, finding.found, finding.mend) for finding in examine(file)}


def test_all_is_well(tmp_path: Path, good: dict[str, Any]) -> None:
    found = findings(tmp_path, good)
    assert " ".join(found) == "config weights adapter engine embedder database port processor memory"
    assert {check: status for check, (status, _, _) in found.items() if status == "fail"} == {}
    assert not (tmp_path / "catalog.db").exists(), "it only looks"


@pytest.mark.parametrize(
    ("section", "values", "check", "found", "mend"),
    [
        ("model", {"path": "nowhere"}, "weights", "nowhere/tokenizer.json is not there", "make setup"),
        ("model", {"adapter": "nowhere"}, "adapter", "the folder nowhere does not exist", "model.adapter"),
        ("prefilter", {"embedder": "nowhere"}, "embedder", "no sentence-transformers folder", "make setup"),
        ("prefilter", {"embedder_url": "http://127.0.0.1:9/v1"}, "embedder", "cannot be reached", "start it"),
        ("catalog", {"database": "sqlite:////nowhere/x.db"}, "database", "cannot be made", "writable"),
        ("catalog", {"database": "postgresql://nobody@127.0.0.1:9/x"}, "database", "cannot be used", "start it"),
        ("engine", {"kind": "vllm", "url": "http://127.0.0.1:9"}, "engine", "no vLLM server is well", "--config FILE"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(
    tmp_path: Path, good: dict[str, Any], section: str, values: dict[str, Any], check: str, found: str, mend: str
) -> None:
    status, shown, remedy = findings(tmp_path, {**good, section: {**good.get(section, {}), **values}})[check]
    assert status == "fail"
    assert found in shown
    assert mend in remedy


def test_an_adapter_of_another_base_model(tmp_path: Path, good: dict[str, Any], smollm2: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in smollm2.glob("*.json"):
        shutil.copy(file, other)
    (other / "model.safetensors").write_bytes(b"other weights")
    good["model"]["path"] = str(other)
    status, found, _ = findings(tmp_path, good)["adapter"]
    assert status == "fail"
    assert "sha256" in found or "weights" in found


def test_a_taken_port(tmp_path: Path, good: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        good["server"]["port"] = taken.getsockname()[1]
        assert findings(tmp_path, good)["port"][0] == "fail"


@pytest.fixture(scope="module")
def vllm() -> Iterator[VllmProcess]:
    process = VllmProcess()
    yield process
    process.kill()


@pytest.mark.parametrize(
    ("name", "version", "status", "found"),
    [
        ("base", "0.32.1", "ok", "vLLM 0.32.1"),
        ("base", "1.0", "ok", "serves base"),
        ("base", "0.9.2", "warn", "0.9.2"),
        ("other", "0.32.1", "fail", "vLLM serves base, not other"),
    ],
)
def test_vllm_is_asked_what_it_is(
    tmp_path: Path, good: dict[str, Any], vllm: VllmProcess, name: str, version: str, status: str, found: str
) -> None:
    vllm.answer("well", version=version)
    good["model"] |= {"adapter": None, "name": name}
    good["engine"] = {"kind": "vllm", "url": vllm.url}
    told = findings(tmp_path, good)["engine"]
    assert told[0] == status
    assert found in told[1]


def test_the_command_says_it_with_its_exit_code(tmp_path: Path, good: dict[str, Any]) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(yaml.safe_dump({**good, "model": {**good["model"], "adapter": "nowhere"}}), encoding="utf-8")
    ran = CliRunner().invoke(app, ["doctor", "--config", str(file), "--json"])
    assert ran.exit_code == 1
    assert {"check": "adapter", "status": "fail"}.items() <= json.loads(ran.stdout)[2].items()
    file.write_text("model: {nonsense: 1}", encoding="utf-8")
    ran = CliRunner().invoke(app, ["doctor", "--config", str(file)])
    assert ran.exit_code == 1
    assert "model.nonsense" in ran.stdout
