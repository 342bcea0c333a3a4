"""What is wrong with a profile on this machine, and how to mend it: `light-router doctor`.

Knows every part that `light-router serve` needs, and looks at each without starting the server. Asks nothing of other
machines than whether they answer, and as what. A check returns what it found, or raises a ProblemError.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from prompts import PromptTokenizer, Template
from serving.assembly import with_manifest
from serving.catalog.store import Store
from serving.config import Config
from serving.prefilter import make_embeddings
from serving.prefilter.embedder import Embedder
from serving.types import LightRouterError

# What was measured with; an older vLLM lacks `logprob_token_ids` or `/generative_scoring`.
VLLM_SINCE = (0, 32)
_ANSWER_S = 5.0
_CPU = Path("/proc/cpuinfo")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

Status = Literal["ok", "warn", "fail"]


class ProblemError(Exception):
    """What is not well, how to mend it, and whether a server could live with it."""

    def __init__(self, found: str, mend: str, status: Status = "fail") -> None:
        super().__init__(found)
        self.mend = mend
        self.status = status


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: what is there, and where it is not well, how to mend it."""

    check: str
    status: Status
    found: str
    mend: str = ""

    def as_json(self) -> dict[str, str]:
        """As a JSON object."""
        return asdict(self)


def examine(path: Path, port: int | None = None) -> list[Finding]:
    """Every check of a profile, in the order in which a server needs what they look at."""
    try:
        config = Config.load(path)
    except ValueError as error:
        return [Finding("config", "fail", str(error), f"correct {path}; serving/config.py says what each key means")]
    findings = [Finding("config", "ok", f"{path} is valid")]
    checks: dict[str, Callable[[Config], str]] = {
        "weights": _weights,
        "adapter": _adapter,
        "engine": _engine,
        "embedder": _embedder,
        "database": _database,
        "port": partial(_port, port=port),
        "processor": _processor,
        "memory": _memory,
    }
    for name, check in checks.items():
        try:
            findings.append(Finding(name, "ok", check(config)))
        except ProblemError as problem:
            findings.append(Finding(name, problem.status, str(problem), problem.mend))
    return findings


def _weight_files(config: Config) -> list[Path]:
    folder = Path(config.model.path)
    return [*folder.glob("*.safetensors"), *folder.glob("*.gguf")]


def _weights(config: Config) -> str:
    tokenizer = Path(config.model.tokenizer or config.model.path)
    if not (tokenizer / "tokenizer.json").is_file():
        raise ProblemError(f"{tokenizer}/tokenizer.json is not there", "run `make setup`, or set model.tokenizer")
    if config.engine.kind == "vllm":
        return f"the tokenizer is in {tokenizer}; the weights are vLLM's matter"
    if not (files := _weight_files(config)):
        raise ProblemError(f"{config.model.path} holds no weights", "run `make setup`, or set model.path")
    if find_spec("torch") is None:
        raise ProblemError("torch is not installed", "pip install 'light-router[cpu]'")
    return f"{config.model.path}: {sum(file.stat().st_size for file in files) / 2**20:,.0f} MiB"


def _adapter(config: Config) -> str:
    name = config.model.adapter
    if name is None:
        raise ProblemError("none: the bare model decides, which was not made for it", "set model.adapter", "warn")
    if not Path(name).is_dir():
        if config.engine.kind == "local":
            raise ProblemError(f"the folder {name} does not exist", "set model.adapter to one that does")
        found = f"{name} is no folder here, so that nothing tells whether it was made for the profile's readout"
        raise ProblemError(found, "put its folder here as well, with its adapter.yaml", "warn")
    try:
        adapted, manifest = with_manifest(config)
        if manifest is not None:
            model = adapted.model
            tokenizer = PromptTokenizer(model.tokenizer or model.path)
            manifest.check_template(
                Template(tokenizer, chat=model.chat, readout=model.readout, layout=model.layout, budget=model.budget)
            )
    except (ValueError, OSError) as error:
        raise ProblemError(
            str(error), "serve the base model that it was made for, or make it anew for this one"
        ) from error
    return f"{name} belongs to this base model and wording"


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Version(_Told):
    version: str


class _Card(_Told):
    id: str


class _Models(_Told):
    data: list[_Card]


def _engine(config: Config) -> str:
    settings, wanted = config.engine, config.model.served_name
    if settings.kind == "local":
        return "in this process"
    mend = "start it with the command that `light-router engine --config FILE` prints, or set engine.url"
    headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}"} if settings.api_key else {}
    try:
        with httpx.Client(base_url=settings.url, timeout=_ANSWER_S, trust_env=False, headers=headers) as client:
            client.get("/health").raise_for_status()
            models = client.get("/v1/models")
            if models.status_code == httpx.codes.UNAUTHORIZED:
                raise ProblemError("vLLM refuses the key", "set LIGHT_ROUTER_ENGINE__API_KEY to vLLM's --api-key")
            served = [card.id for card in _Models.model_validate_json(models.content).data]
            version = _Version.model_validate_json(client.get("/version").content).version
    except httpx.HTTPError as error:
        raise ProblemError(f"no vLLM server is well at {settings.url}: {error!r}", mend) from error
    except ValidationError as error:
        raise ProblemError(f"what answers at {settings.url} is no vLLM server", "set engine.url to one") from error
    if wanted not in served:
        raise ProblemError(f"vLLM serves {', '.join(served) or 'nothing'}, not {wanted}", mend)
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if numbers < list(VLLM_SINCE):
        raise ProblemError(
            f"vLLM is version {version}", f"{'.'.join(map(str, VLLM_SINCE))} or later was tested", "warn"
        )
    return f"vLLM {version} at {settings.url} serves {wanted}"


def _embedder(config: Config) -> str:
    settings = config.prefilter
    if settings.method == "bm25":
        return "none is needed: candidates are ranked by BM25 alone"
    if settings.embedder_url is not None:
        embeddings = make_embeddings(settings)
        try:
            asyncio.run(_once(embeddings.embedder)) if embeddings else None
        except LightRouterError as error:
            raise ProblemError(str(error), "start it, or correct prefilter.embedder_url") from error
        return f"{settings.embedder} answers at {settings.embedder_url}"
    if not (Path(settings.embedder) / "modules.json").is_file():
        mend = "run `make setup`, set prefilter.embedder or embedder_url, or prefilter.method to bm25"
        raise ProblemError(f"{settings.embedder} is no sentence-transformers folder", mend)
    if find_spec("sentence_transformers") is None:
        mend = "pip install 'light-router[cpu]', or set prefilter.embedder_url"
        raise ProblemError("sentence-transformers is not installed", mend)
    return settings.embedder


async def _once(part: Embedder | Store) -> None:
    """Start it and end it."""
    try:
        await part.start()
    finally:
        await part.close()


def _database(config: Config) -> str:
    url = config.catalog.database
    if url is None:
        return "none: requests bring their candidates"
    if url.startswith("sqlite:///") and not (file := Path(url.removeprefix("sqlite:///"))).exists():
        folder = file.resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ProblemError(f"{file} cannot be made", "make its folder writable, or set catalog.database")
        return f"{file} will be made at the first start"
    try:
        asyncio.run(_once(Store(url)))
    except (LightRouterError, ValueError) as error:
        raise ProblemError(str(error), "start it, or correct catalog.database") from error
    return "it can be used"


def _port(config: Config, port: int | None) -> str:
    host, number = config.server.host, config.server.port if port is None else port
    try:
        with socket.create_server((host, number)):
            return f"{host}:{number} is free"
    except OSError as error:
        mend = "stop what listens there, or serve on another --port"
        raise ProblemError(f"{host}:{number} cannot be listened on: {error.strerror}", mend) from error


def _processor(config: Config) -> str:
    cores = len(os.sched_getaffinity(0))
    threads = config.engine.threads or max(cores - 1, 1)
    if config.engine.kind == "local" and threads > cores:
        raise ProblemError(
            f"{threads} torch threads for {cores} cores", "lower engine.threads, or leave it out", "warn"
        )
    flags = _CPU.read_text(encoding="utf-8") if _CPU.exists() else "bf16"
    if config.engine.kind == "local" and config.engine.dtype == "bfloat16" and "bf16" not in flags:
        mend = "try engine.dtype: float32, and measure both with `light-router bench`"
        raise ProblemError("this processor has no instructions for bfloat16", mend, "warn")
    return f"{cores} cores"


def _memory(config: Config) -> str:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = 0 if config.engine.kind == "vllm" else sum(file.stat().st_size for file in _weight_files(config))
    needed += (config.engine.prefix_cache_mb + config.prefilter.cache_mb) * 2**20
    if free < needed:
        found = f"{free / 2**30:.1f} GiB are free; weights and caches may take {needed / 2**30:.1f} GiB"
        raise ProblemError(found, "end other programs, or lower engine.prefix_cache_mb", "warn")
    if _HUGE_PAGES.exists() and "[never]" in _HUGE_PAGES.read_text(encoding="utf-8"):
        mend = f"as root: echo madvise > {_HUGE_PAGES}"
        raise ProblemError(
            "transparent huge pages are switched off, so that large weights take more look-ups", mend, "warn"
        )
    return f"{free / 2**30:.1f} GiB are free"
