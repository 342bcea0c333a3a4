"""The chart's own scripts, run as its containers run them: with `python -c` and arguments."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.answering import JSONHandler, answering
from tests.conftest import ROOT
from tests.k8s.charts import CHART, containers, pods, rendered

FILES = CHART / "files"
ANSWER = {
    "decision": None,
    "none_probability": 0.5,
    "ranking": [{"id": "mail", "probability": 0.25}, {"id": "weather", "probability": 0.25}],
    "model": "m",
}


def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    text = (FILES / script).read_text(encoding="utf-8")
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def archive(path: Path, files: dict[str, str]) -> str:
    """Make a .tar.gz; its digest."""
    with tarfile.open(path, "w:gz") as packed:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("folder", ["", "toolace-mcp/", "./"])
def test_an_adapter_is_delivered_once_its_digest_is_right(folder: str, tmp_path: Path) -> None:
    packed = tmp_path / "a.tar.gz"
    digest = archive(packed, {f"{folder}adapter_config.json": "{}", f"{folder}adapter.yaml": "name: a"})
    target = tmp_path / "adapter"
    target.mkdir()
    for _ in range(2):  # a container that is started again finds what is there
        done = run("deliver_adapter.py", str(packed), digest, str(target), "mine")
        assert done.returncode == 0, done.stderr
        assert {file.name for file in (target / "mine").iterdir()} == {"adapter_config.json", "adapter.yaml"}
        assert [file.name for file in target.iterdir()] == ["mine"]


def test_an_adapter_is_downloaded(tmp_path: Path) -> None:
    digest = archive(tmp_path / "a.tar.gz", {"adapter_config.json": "{}"})
    (tmp_path / "adapter").mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with answering(handler) as url:
        done = run("deliver_adapter.py", f"{url}/a.tar.gz", digest, str(tmp_path / "adapter"), "mine")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "adapter" / "mine" / "adapter_config.json").is_file()


@pytest.mark.parametrize(
    ("files", "digest", "said"),
    [
        ({"adapter_config.json": "{}"}, "0" * 64, "nothing was unpacked"),
        ({"readme": "x"}, None, "no adapter_config.json"),
        ({"../evil": "x", "adapter_config.json": "{}"}, None, "outside the destination"),
        ({"/etc/evil": "x"}, None, "no adapter_config.json"),
    ],
)
def test_a_wrong_adapter_is_refused_whole(files: dict[str, str], digest: str | None, said: str, tmp_path: Path) -> None:
    right = archive(tmp_path / "a.tar.gz", files)
    target = tmp_path / "adapter"
    target.mkdir()
    done = run("deliver_adapter.py", str(tmp_path / "a.tar.gz"), digest or right, str(target), "mine")
    assert done.returncode != 0
    assert said in done.stderr
    assert list(target.iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_the_tables_are_made(tmp_path: Path) -> None:
    for _ in range(2):
        done = run("create_tables.py", "5", LIGHT_ROUTER_CATALOG__DATABASE=f"sqlite:///{tmp_path}/a.db")
        assert done.returncode == 0, done.stderr
        assert "the tables are there" in done.stdout


def test_a_database_out_of_reach_is_waited_for(tmp_path: Path) -> None:
    text = (FILES / "create_tables.py").read_text(encoding="utf-8")
    environment = {**os.environ, "LIGHT_ROUTER_CATALOG__DATABASE": f"sqlite:///{tmp_path}/later/a.db"}
    command = [sys.executable, "-c", text, "120"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline().startswith("waiting: ")
        (tmp_path / "later").mkdir()
        assert waiting.stdout.read().splitlines()[-1] == "the tables are there"
    assert waiting.returncode == 0


def test_a_database_out_of_reach_is_given_up(tmp_path: Path) -> None:
    done = run("create_tables.py", "0", LIGHT_ROUTER_CATALOG__DATABASE=f"sqlite:///{tmp_path}/none/a.db")
    assert done.returncode == 1
    assert "gave up after 0 s" in done.stderr
    assert "no database" in run("create_tables.py", "1").stderr


class Api(JSONHandler):
    """Answers as the router's API; what, is set by each test."""

    answer: dict[str, Any] = ANSWER
    ready = 200

    def do_GET(self) -> None:  # noqa: N802  (the library's name)
        self.answer_json(self.ready, {"reason": "decisions are being made"})

    def do_POST(self) -> None:  # noqa: N802
        self.rfile.read(int(self.headers["content-length"]))
        self.answer_json(200 if self.headers["authorization"] == "Bearer k1" else 401, self.answer)


@pytest.fixture
def api() -> Iterator[str]:
    with answering(Api) as url:
        yield url


def test_the_smoke_test_passes_where_the_answer_is_a_distribution(api: str) -> None:
    done = run("smoke.py", api, API_KEYS='["k1", "k2"]')
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("keys", "ready", "answer"),
    [
        ('["k1"]', 503, {}),
        ('["wrong"]', 200, {}),
        ("", 200, {}),
        ('["k1"]', 200, {"none_probability": 0.9}),
        ('["k1"]', 200, {"ranking": [{"id": "else", "probability": 0.5}]}),
    ],
)
def test_the_smoke_test_fails_where_it_should(
    keys: str, ready: int, answer: dict[str, Any], api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Api, "ready", ready)
    monkeypatch.setattr(Api, "answer", {**ANSWER, **answer})
    assert run("smoke.py", api, API_KEYS=keys).returncode != 0


def test_the_containers_run_the_scripts_as_they_are() -> None:
    """Indented into YAML and back, they are the same."""
    documents = rendered("autoscaled")
    all_containers = [one for _, pod in pods(documents) for one in containers(pod)]
    ran = {one["args"][0] for one in all_containers if one.get("command") == ["python", "-c"]}
    names = ("deliver_adapter.py", "create_tables.py", "smoke.py")
    assert ran == {(FILES / name).read_text(encoding="utf-8") for name in names}
