"""The vLLM server behind a profile: its exact command, and a supervisor that keeps it running.

Knows the configuration and vLLM's options. Does not know requests, and does not import vLLM, which has an
environment of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from prompts.template import LABELS, Readout
from serving.config import Config

logger = logging.getLogger(__name__)

# The ranks that vLLM accepts for --max-lora-rank.
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Tokens that the model writes after the longest prompt: one label, or a 64-character name and its end.
OUTPUT_TOKENS: dict[Readout, int] = {"pointwise": 1, "listwise": 1, "generate": 65}

# A server that lived shorter than this died at start, or of its first requests: no memory, a wrong path, a bad option.
QUICK_DEATH_S = 60.0
# Seconds before each restart after quick deaths in a row; when they are used up the supervisor gives up.
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 16.0)


def vllm_command(config: Config) -> list[str]:
    """The command that starts the vLLM server which the profile's engine expects.

    It listens on the port of `engine.url` on loopback: vLLM's own key guards only part of its routes. No reasoning
    parser is set: it would stand between the prompt and the constrained answer. A key is never part of a command,
    which other users of a machine can see: vLLM takes `engine.api_key` from its environment, as VLLM_API_KEY.

    Raises:
        ValueError: the profile is served in process, or its adapter's rank cannot be read or is too large for vLLM.
    """
    model, engine = config.model, config.engine
    if engine.kind != "vllm":
        raise ValueError("engine.kind is local: this profile starts no vLLM; use one with engine.kind: vllm")
    url = urlsplit(engine.url)
    options: dict[str, str | int | float | bool | None] = {
        "served-model-name": model.name,
        "host": "127.0.0.1",
        "port": url.port or (443 if url.scheme == "https" else 80),
        "dtype": engine.dtype,
        "max-model-len": model.budget.total + OUTPUT_TOKENS[model.readout],
        "max-logprobs": len(LABELS) + 1,
        "generation-config": "vllm",  # the model's own sampling defaults would change greedy choices
        # Logits of the last layer in float32: in bfloat16 those above 16 step by 1/8, and candidates tie. A model
        # whose last layer is quantised cannot do it: `hf-overrides: null` in the profile leaves it out.
        "hf-overrides": '{"head_dtype": "float32"}',
        "enable-prefix-caching": True,
        "enable-prompt-tokens-details": True,  # reports how many prompt tokens the cache held
    }
    given = {name.replace("_", "-"): value for name, value in engine.vllm.items()}
    if model.adapter:
        options["enable-lora"] = True
        options["lora-modules"] = f"{model.served_name}={model.adapter}"
        if "max-lora-rank" not in given:
            options["max-lora-rank"] = _lora_rank(Path(model.adapter))
    if engine.vllm_python:
        command = [engine.vllm_python, "-m", "vllm.entrypoints.openai.api_server", "--model", model.path]
    else:
        command = ["vllm", "serve", model.path]
    for name, value in (options | given).items():
        if value is True:
            command.append(f"--{name}")
        elif value is False:
            command.append(f"--no-{name}")
        elif value is not None:
            command += [f"--{name}", str(value)]
    return command


def _lora_rank(adapter: Path) -> int:
    """The smallest rank that vLLM accepts and that holds the adapter's: memory is reserved for all of it."""
    file = adapter / "adapter_config.json"
    remedy = "set model.adapter to the adapter's folder, or engine.vllm.max-lora-rank to its rank"
    try:
        rank = int(json.loads(file.read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot read the adapter's rank from {file}: {error!r}; {remedy}") from error
    for accepted in LORA_RANKS:
        if rank <= accepted:
            return accepted
    raise ValueError(f"{file}: rank {rank} is more than vLLM's largest, {LORA_RANKS[-1]}")


def supervise(
    command: Sequence[str], *, backoff_s: Sequence[float] = BACKOFF_S, quick_death_s: float = QUICK_DEATH_S
) -> int:
    """Run a command until it is told to stop, and start it again when it dies.

    SIGTERM, SIGINT and SIGHUP are passed on, and end the supervision once the command has ended. So does an exit
    status of 0. After a death the next of `backoff_s` is waited for, until there is none left; a run of at least
    `quick_death_s` begins them anew.

    Returns:
        The command's last exit status; 128 + N where signal N ended it; 127 where it cannot be started.
    """
    return asyncio.run(_supervise(command, backoff_s, quick_death_s))


async def _supervise(command: Sequence[str], backoff_s: Sequence[float], quick_death_s: float) -> int:
    stopping = asyncio.Event()
    process: asyncio.subprocess.Process | None = None

    def stop(number: signal.Signals) -> None:
        stopping.set()
        if process is not None and process.returncode is None:
            process.send_signal(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    deaths = 0
    while True:
        started = time.monotonic()
        try:
            # A session of its own: Ctrl-C in a terminal reaches it once, from here, and all it leaves can be ended.
            process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
        except OSError as error:
            logger.error("cannot start %s: %s", command[0], error)
            return 127
        if stopping.is_set():  # told to stop while it was being started
            process.terminate()
        status = await process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # engine processes left behind would keep the GPU's memory
        status = status if status >= 0 else 128 - status
        if stopping.is_set() or status == 0:
            return status
        deaths = deaths + 1 if time.monotonic() - started < quick_death_s else 1
        if deaths > len(backoff_s):
            logger.error("%s died %d times in a row within %.0f s: giving up", command[0], deaths, quick_death_s)
            return status
        logger.warning("%s ended with status %d; restarting in %.0f s", command[0], status, backoff_s[deaths - 1])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), backoff_s[deaths - 1])
            return status
