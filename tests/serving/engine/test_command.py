"""The vLLM command of a profile, and the supervisor: real processes, none of them vLLM."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prompts import Candidate, Message, PromptTokenizer, Template
from serving.config import Config, EngineConfig, ModelConfig
from serving.engine.command import supervise, vllm_command

ROOT = Path(__file__).parents[3]
PROFILES = ["qwen3-8b.yaml", "qwen3-8b-4bit.yaml"]


def options(command: list[str]) -> dict[str, str | None]:
    """`--name value` and `--flag` as a mapping; each stands once."""
    found: dict[str, str | None] = {}
    name = ""
    for word in command:
        if word.startswith("--"):
            name = word[2:]
            assert name not in found, f"--{name} stands twice"
            found[name] = None
        elif name:
            found[name] = word
    return found


def profile(adapter: Path | None = None, python: str | None = None, **vllm: object) -> Config:
    return Config(
        model=ModelConfig(name="base", path="models/base", adapter=str(adapter) if adapter else None),
        engine=EngineConfig(kind="vllm", url="http://127.0.0.1:8123", vllm_python=python, vllm=vllm),
    )


def adapter_of_rank(folder: Path, rank: object) -> Path:
    adapter = folder / "my-adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return adapter


def test_the_command_of_a_bare_model() -> None:
    command = vllm_command(profile())
    assert command[:3] == ["vllm", "serve", "models/base"]
    assert options(command) == {
        "served-model-name": "base",
        "host": "127.0.0.1",
        "port": "8123",
        "dtype": "bfloat16",
        "max-model-len": "4097",
        "max-logprobs": "53",
        "generation-config": "vllm",
        "hf-overrides": '{"head_dtype": "float32"}',
        "enable-prefix-caching": None,
        "enable-prompt-tokens-details": None,
    }


def test_an_interpreter_runs_the_module() -> None:
    command = vllm_command(profile(python="venv/bin/python"))
    assert command[:5] == ["venv/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "models/base"]


@pytest.mark.parametrize(("rank", "accepted"), [(1, "1"), (2, "8"), (16, "16"), (24, "32"), (512, "512")])
def test_an_adapter_gets_the_rank_that_holds_it(tmp_path: Path, rank: int, accepted: str) -> None:
    adapter = adapter_of_rank(tmp_path, rank)
    found = options(vllm_command(profile(adapter)))
    assert found["lora-modules"] == f"my-adapter={adapter}"
    assert found["max-lora-rank"] == accepted
    assert found["enable-lora"] is None


def test_an_adapter_that_vllm_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rank 600 is more than vLLM's largest, 512"):
        vllm_command(profile(adapter_of_rank(tmp_path, 600)))


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"r": "big"}'])
def test_an_adapter_without_a_rank_says_what_to_set(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ValueError, match=r"cannot read the adapter's rank from .*; set model.adapter to"):
        vllm_command(profile(tmp_path))


def test_the_profiles_own_options_win() -> None:
    given = {"max_model_len": 9000, "enable-prefix-caching": False, "generation-config": None, "enforce-eager": True}
    found = options(vllm_command(profile(**given)))
    assert found["max-model-len"] == "9000"
    assert "no-enable-prefix-caching" in found
    assert "enforce-eager" in found
    assert {"generation-config", "enable-prefix-caching", "max_model_len"}.isdisjoint(found)


def test_a_local_profile_has_no_command() -> None:
    with pytest.raises(ValueError, match=r"engine\.kind is local"):
        vllm_command(Config())


@pytest.mark.parametrize("name", PROFILES)
def test_the_shipped_profiles_print_their_command(name: str) -> None:
    command = vllm_command(Config.load(ROOT / "configs" / name))
    assert command[:3] == ["vllm", "serve", "Qwen/Qwen3-8B"]
    found = options(command)
    assert found["served-model-name"] == "qwen3-8b"
    assert found["lora-modules"] == "toolace-mcp=adapters/toolace-mcp"
    assert (found["max-model-len"], found["max-lora-rank"], found["port"]) == ("32001", "64", "8001")
    assert found.get("quantization") == ("bitsandbytes" if "4bit" in name else None)
    assert not any("reasoning" in option for option in found)


@pytest.mark.parametrize("name", PROFILES)
def test_the_shipped_profiles_render_their_largest_question(
    name: str, qwen3_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    config = Config.load(ROOT / "configs" / name)
    tokenizer = PromptTokenizer(config.model.tokenizer or config.model.path)
    assert Path(config.model.tokenizer or "").resolve() == qwen3_tokenizer.resolve()
    model = config.model
    template = Template(tokenizer, chat=model.chat, readout=model.readout, layout=model.layout, budget=model.budget)
    messages = [Message("user" if number % 2 else "assistant", "word " * 3000) for number in range(40)]
    candidates = [Candidate(str(number), f"tool_{number}", "text " * 3000) for number in range(config.prefilter.k)]
    prompt = template.render(messages, candidates)
    assert len(prompt.labels) == 51
    assert 16384 < prompt.tokens <= model.budget.total


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def counting(runs: Path, code: str) -> list[str]:
    """A command that notes that it ran, then runs `code` with `count`, the number of its run."""
    return python(
        "import os, pathlib, signal, sys\n"
        f"runs = pathlib.Path({str(runs)!r})\n"
        "runs.write_text((runs.read_text() if runs.exists() else '') + '.')\n"
        f"count = len(runs.read_text())\n{code}"
    )


def test_a_command_that_ends_well_is_not_started_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert supervise(counting(runs, "")) == 0
    assert runs.read_text() == "."


def test_a_command_that_dies_is_started_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert supervise(counting(runs, "sys.exit(0 if count == 3 else 5)"), backoff_s=[0, 0]) == 0
    assert runs.read_text() == "..."


def test_the_supervisor_gives_up_after_quick_deaths(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert supervise(counting(runs, "sys.exit(5)"), backoff_s=[0, 0]) == 5
    assert runs.read_text() == "..."


def test_a_long_life_begins_the_backoff_anew(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = counting(runs, "sys.exit(0 if count == 5 else 5)")
    assert supervise(command, backoff_s=[0], quick_death_s=0) == 0
    assert runs.read_text() == "....."


def test_a_command_killed_by_a_signal_reports_it() -> None:
    assert supervise(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), backoff_s=[]) == 137


def test_a_command_that_does_not_exist() -> None:
    assert supervise(["no-such-command-anywhere"]) == 127


def supervisor(command: list[str], backoff: str = "[]") -> subprocess.Popen[str]:
    """`supervise` in a process of its own, which signals can be sent to."""
    code = (
        "import sys\nfrom serving.engine.command import supervise\n"
        f"sys.exit(supervise(sys.argv[1:], backoff_s={backoff}))"
    )
    return subprocess.Popen([*python(code), *command], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_processes_left_behind_are_ended() -> None:
    """The orphan holds an end of the output's pipe: reading returns once it is gone."""
    code = (
        "import os, subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print('orphaned', flush=True)\nos._exit(3)"
    )
    running = supervisor(python(code))
    output, _ = running.communicate(timeout=60)
    assert (output, running.returncode) == ("orphaned\n", 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_ends_the_supervision(number: signal.Signals) -> None:
    code = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\nsignal.pause()"
    )
    running = supervisor(python(code), backoff="[0, 0]")
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(number)
    output, _ = running.communicate(timeout=60)
    assert (output, running.returncode) == ("", 7)


def test_a_signal_ends_the_wait_between_two_runs() -> None:
    running = supervisor(python("print('dead', flush=True); raise SystemExit(9)"), backoff="[3600]")
    assert running.stdout is not None
    assert running.stdout.readline() == "dead\n"
    running.terminate()
    output, _ = running.communicate(timeout=60)
    assert (output, running.returncode) in [("", 9), ("", 143)]  # it may still have been running
