"""Makes the manifest of a trained adapter, and says whether an adapter can be served.

Knows an adapter's folder, its base model and the engine that will serve it. Does not train or calibrate.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from prompts import PromptTokenizer, Template
from serving.assembly import build_engine, build_router
from serving.canary import answers
from serving.config import Config, ModelConfig
from serving.manifest import BaseModelPart, CanaryPart, DataPart, LoraPart, Manifest, TemplatePart

# Plain questions over plain tools: a router answers them otherwise than its base model.
_QUESTIONS = (
    (
        "Will it rain in Lisbon tomorrow?",
        (("get_forecast", "Weather forecast for a city and a day"), ("send_mail", "Send an e-mail")),
    ),
    (
        "Tell Ana by mail that I am late",
        (
            ("get_forecast", "Weather forecast for a city and a day"),
            ("send_mail", "Send an e-mail"),
            ("create_invoice", "Create an invoice for a customer"),
        ),
    ),
    ("Thank you, that is all", (("book_hotel", "Book a hotel room"), ("list_files", "List the files of a folder"))),
)


def template_of(config: Config) -> Template:
    """The template that a profile's model section describes."""
    model = config.model
    return Template(
        PromptTokenizer(model.tokenizer or model.path),
        chat=model.chat,
        readout=model.readout,
        layout=model.layout,
        budget=model.budget,
    )


async def canary(config: Config) -> tuple[CanaryPart, ...]:
    """The questions, with what base model and adapter of this profile answer to them now.

    Raises:
        EngineUnavailableError: either cannot be loaded.
    """
    template = template_of(config)
    parts = [CanaryPart(query=query, candidates=candidates, adapter=(), base=()) for query, candidates in _QUESTIONS]
    found: dict[str, list[tuple[float, ...]]] = {}
    bare = config.model_copy(update={"model": config.model.model_copy(update={"adapter": None})})
    for name, profile in (("base", bare), ("adapter", config)):
        engine = build_engine(profile)
        await engine.start()
        try:
            found[name] = [tuple(map(float, scores)) for scores in await answers(engine, template, parts)]
        finally:
            await engine.close()
    return tuple(
        part.model_copy(update={"base": base, "adapter": adapter})
        for part, base, adapter in zip(parts, found["base"], found["adapter"], strict=True)
    )


def lora_part(adapter: Path) -> LoraPart:
    """Rank, alpha and target modules from peft's own file.

    Raises:
        ValueError: the folder is no LoRA adapter of peft.
    """
    file = adapter / "adapter_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        targets = config["target_modules"]
        return LoraPart(
            rank=config["r"],
            alpha=config["lora_alpha"],
            target_modules=(targets,) if isinstance(targets, str) else tuple(sorted(targets)),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not describe a LoRA adapter of peft: {error!r}") from error


def base_part(config: Config) -> BaseModelPart:
    """The base model by the digest of its weights, where they are a file here."""
    file = Path(config.model.path) / "model.safetensors"
    if not file.is_file():
        return BaseModelPart(name=config.model.name)
    with file.open("rb") as weights:
        return BaseModelPart(name=config.model.name, sha256=hashlib.file_digest(weights, "sha256").hexdigest())


async def make_manifest(
    config: Config, *, data: tuple[DataPart, ...] = (), hyperparameters: dict[str, Any] | None = None, command: str = ""
) -> Manifest:
    """A manifest for the adapter that `config` names, its canary measured on this machine.

    Args:
        config: a profile whose `model` says how the adapter was trained: chat format, readout, layout, budget.
        data: what it was trained on.
        hyperparameters: every value of the run.
        command: the exact command of the run.

    Raises:
        ValueError: no adapter is named, or its folder is none of peft's.
        EngineUnavailableError: base model or adapter cannot be loaded.
    """
    if config.model.adapter is None:
        raise ValueError("model.adapter names no folder")
    folder, template = Path(config.model.adapter), template_of(config)
    return Manifest(
        name=folder.name,
        base_model=base_part(config),
        template=TemplatePart(
            chat=config.model.chat,
            readout=template.readout,
            layout=template.layout,
            budget=template.budget,
            fingerprint=template.fingerprint(),
        ),
        lora=lora_part(folder),
        max_candidates=template.max_candidates,
        trained_on=data,
        hyperparameters=hyperparameters or {},
        command=command,
        canary=await canary(config),
    )


async def verify(config: Config) -> Manifest:
    """Start the adapter as the server would, and stop it again.

    Raises:
        ValueError: the server would refuse it; the message says why.
        EngineUnavailableError: a model cannot be loaded.
    """
    if config.model.adapter is None:
        raise ValueError("model.adapter names no folder")
    router = build_router(config)
    try:
        await router.start()
    finally:
        await router.close()
    return Manifest.load(config.model.adapter)


def trained(config: Config, adapter: Path) -> tuple[Config, dict[str, Any]]:
    """What `adapters/train.py` recorded beside the weights: the profile it trained for, and the facts of the run.

    Raises:
        ValueError: there is no such record.
    """
    file = adapter / "training.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        wording = {key: record["recipe"]["model"][key] for key in ("chat", "readout", "layout", "budget")}
        cases = record["data"]["train"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no record of a training run: {error!r}; `import` takes other adapters") from error
    model = ModelConfig.model_validate({**config.model.model_dump(), **wording})
    data = sources(Path(record["recipe"]["data"]["train"]), cases["sha256"])
    facts = {"data": data, "hyperparameters": record["recipe"], "command": " ".join(record["command"])}
    return config.model_copy(update={"model": model}), facts


def sources(train: Path, digest: str) -> tuple[DataPart, ...]:
    """The sources of a file of training cases, from the manifest that `build_cases` wrote beside it."""
    file = train.parent / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        return tuple(
            DataPart(
                name=name, licence=manifest["recipe"]["sources"][name]["licence"], sha256=digest, cases=made["train"]
            )
            for name, made in sorted(manifest["sources"].items())
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} does not say where the training cases come from: {error!r}") from error
