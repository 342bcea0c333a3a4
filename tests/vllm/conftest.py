"""Real vLLM servers, started by the project's own command under its own supervisor, and the models they serve.

Each is started once, when a test first asks for it. Its log is a file in pytest's temporary folder, which stays after
a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from serving.config import Config, EngineConfig, ModelConfig
from serving.engine.command import vllm_command
from serving.engine.vllm import VllmEngine
from serving.types import EngineUnavailableError

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB for keys and values
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OPTIONS: dict[str, str | int | float | bool | None] = {
    "enforce-eager": True,  # compiling would need a C++ compiler, and takes longer than these tests run
    "distributed-executor-backend": "uni",  # one process less to start
}
SUPERVISOR = (
    "import sys\nfrom serving.engine.command import supervise\nsys.exit(supervise(sys.argv[1:], backoff_s=[1.0]))"
)


@dataclass(frozen=True)
class Server:
    """A running vLLM server: the profile it was started with, its supervisor, and its log."""

    profile: Config
    supervisor: psutil.Process
    log: Path

    def model(self, **changes: object) -> Config:
        """The profile with another readout, or with another adapter or none."""
        return self.profile.model_copy(update={"model": self.profile.model.model_copy(update=changes)})


@contextlib.asynccontextmanager
async def connected(config: Config) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(config)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


def _engine() -> EngineConfig:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return EngineConfig(
        kind="vllm",
        url=f"http://127.0.0.1:{port}",
        vllm_python=str(PYTHON),
        vllm=OPTIONS,
        timeout_s=120,
        start_timeout_s=400,
        threads=1,  # of the in-process engine: it runs beside vLLM
    )


@contextlib.contextmanager
def _running(config: Config, log: Path) -> Iterator[Server]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, *vllm_command(config)],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Server(config, psutil.Process(process.pid), log)
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for survivor in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                survivor.kill()


async def _ready(config: Config) -> None:
    async with connected(config):
        pass


@contextlib.contextmanager
def _served(config: Config, log: Path) -> Iterator[Server]:
    with _running(config, log) as server:
        try:
            asyncio.run(_ready(config))
        except EngineUnavailableError as error:
            tail = "".join(log.read_text().splitlines(keepends=True)[-60:])
            pytest.fail(f"{error}\nThe server's log, {log}, ends:\n{tail}", pytrace=False)
        yield server


@pytest.fixture(scope="session")
def visible_adapter(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Path:
    """A LoRA adapter with random weights, large enough to move the posterior, small enough not to ruin it.

    Rank 1: vLLM gathers an adapter's weights anew for every token on a CPU, which takes longer than the model itself.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters") / "visible"
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.bfloat16)
    config = LoraConfig(r=1, lora_alpha=1, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer: Path) -> Path:
    """Qwen3's architecture and whole vocabulary, two small layers, random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny-qwen3"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(qwen3_tokenizer / name, folder)
    return folder


@pytest.fixture(scope="session")
def smollm2_server(tmp_path_factory: pytest.TempPathFactory, smollm2: Path, visible_adapter: Path) -> Iterator[Server]:
    model = ModelConfig(name="smollm2", path=str(smollm2), adapter=str(visible_adapter))
    with _served(Config(model=model, engine=_engine()), tmp_path_factory.mktemp("logs") / "smollm2.log") as server:
        yield server


@pytest.fixture(scope="session")
def qwen3_server(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3: Path) -> Iterator[Server]:
    """Serves the questions of configs/qwen3-8b.yaml: its prompt path and budget, with a model of 20 MB."""
    shipped = Config.load(ROOT / "configs" / "qwen3-8b.yaml")
    model = shipped.model.model_copy(
        update={"name": "tiny-qwen3", "path": str(tiny_qwen3), "adapter": None, "readout": "generate"}
    )
    config = shipped.model_copy(update={"model": model, "engine": _engine()})
    with _served(config, tmp_path_factory.mktemp("logs") / "qwen3.log") as server:
        yield server
