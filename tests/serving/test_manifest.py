"""An adapter is served only with what it was made for, and only if it does something."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from prompts import PromptTokenizer, Template
from serving.assembly import build_engine, build_router
from serving.canary import answers
from serving.config import Config
from serving.manifest import BaseModelPart, CanaryPart, LoraPart, Manifest, TemplatePart
from serving.types import Message, RouteRequest
from tests.serving.test_router import CANDIDATES

pytestmark = pytest.mark.anyio

ASKED = CanaryPart(
    query="what is the weather", candidates=(("forecast", "Weather forecast"), ("mail", "Send")), adapter=(), base=()
)


def profile(base: Path, adapter: Path | None, embedder: Path) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(base), "adapter": str(adapter) if adapter else None},
            "engine": {"dtype": "float32", "threads": 1},
            "prefilter": {"embedder": str(embedder)},
        }
    )


def save_lora(base: Path, folder: Path, *, trained: bool) -> None:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=not trained)
    get_peft_model(model, config).save_pretrained(folder)


def manifest(base: Path, folder: Path, embedder: Path) -> Manifest:
    """What the adapter in `folder` should say, its canary measured."""
    template = Template(PromptTokenizer(base), readout="listwise")
    listwise = profile(base, folder, embedder)
    listwise = listwise.model_copy(update={"model": listwise.model.model_copy(update={"readout": "listwise"})})

    async def measured() -> list[float]:
        engine = build_engine(listwise)
        await engine.start()
        [scores] = await answers(engine, template, [ASKED])
        await engine.close()
        return [float(score) for score in scores]

    return Manifest(
        name="tiny-router",
        base_model=BaseModelPart(
            name="tiny", sha256=hashlib.sha256((base / "model.safetensors").read_bytes()).hexdigest()
        ),
        template=TemplatePart(
            chat="chatml", readout="listwise", budget=template.budget, fingerprint=template.fingerprint()
        ),
        lora=LoraPart(rank=4, alpha=64, target_modules=("q_proj",)),
        canary=(ASKED.model_copy(update={"adapter": tuple(asyncio.run(measured()))}),),
    )


@pytest.fixture(scope="module")
def adapter(tiny_llama: Path, tiny_embedder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "tiny-router"
    save_lora(tiny_llama, folder, trained=True)
    manifest(tiny_llama, folder, tiny_embedder).save(folder)
    return folder


@pytest.fixture
def copy(adapter: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(adapter, tmp_path / "tiny-router"))


async def test_a_working_adapter_is_served_as_its_manifest_says(
    adapter: Path, tiny_llama: Path, tiny_embedder: Path
) -> None:
    router = build_router(profile(tiny_llama, adapter, tiny_embedder))
    assert router.template.readout == "listwise"  # the profile says pointwise: the adapter knows better
    await router.start()
    decision = await router.route(RouteRequest((Message("user", "thing four"),), CANDIDATES))
    await router.close()
    assert decision.model == "tiny-router"


async def test_an_adapter_that_changes_nothing_is_refused(copy: Path, tiny_llama: Path, tiny_embedder: Path) -> None:
    save_lora(tiny_llama, copy, trained=False)
    router = build_router(profile(tiny_llama, copy, tiny_embedder))
    with pytest.raises(ValueError, match="tiny-router changes nothing"):
        await router.start()
    await router.close()


async def test_an_adapter_that_answers_otherwise_than_recorded_is_refused(
    copy: Path, tiny_llama: Path, tiny_embedder: Path
) -> None:
    known = Manifest.load(copy)
    other = known.canary[0].model_copy(
        update={"adapter": tuple(v + 3 * i for i, v in enumerate(known.canary[0].adapter))}
    )
    known.model_copy(update={"canary": (other,)}).save(copy)
    router = build_router(profile(tiny_llama, copy, tiny_embedder))
    with pytest.raises(ValueError, match="canary 0 of the adapter tiny-router now scores"):
        await router.start()
    await router.close()


def test_other_base_weights_are_refused(copy: Path, tiny_llama: Path, tiny_embedder: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(tiny_llama, tmp_path / "base"))
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(ValueError, match="works only on the weights it was trained on"):
        build_router(profile(base, copy, tiny_embedder))


def test_another_wording_is_refused(copy: Path, tiny_llama: Path, tiny_embedder: Path) -> None:
    known = Manifest.load(copy)
    known.model_copy(update={"template": known.template.model_copy(update={"fingerprint": "0" * 16})}).save(copy)
    with pytest.raises(ValueError, match="trained with template 0000000000000000"):
        build_router(profile(tiny_llama, copy, tiny_embedder))


def test_an_adapter_without_a_manifest_is_refused_with_advice(
    copy: Path, tiny_llama: Path, tiny_embedder: Path
) -> None:
    (copy / "adapter.yaml").unlink()
    with pytest.raises(ValueError, match="light-router adapter import"):
        build_router(profile(tiny_llama, copy, tiny_embedder))


def test_an_unknown_key_in_a_manifest_is_named(copy: Path) -> None:
    file = copy / "adapter.yaml"
    file.write_text(file.read_text(encoding="utf-8") + "temprature: 2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="temprature"):
        Manifest.load(copy)
