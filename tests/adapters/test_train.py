"""Training: the same numbers as serving, and runs that learn, resume, share work and leave a loadable adapter."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file
from torch.nn import functional
from transformers import AutoModelForCausalLM, EvalPrediction

from adapters.branches import BranchAttention, Row, dense_mask
from adapters.cases import TrainingCase, write_cases
from adapters.merged import ADAPTER, MergedAdapter
from adapters.recipe import Recipe
from adapters.train import Questions, by_source, label_ids, latest_checkpoint, load_model, train
from prompts import Candidate, Message, PromptTokenizer, Template
from serving.config import Config, EngineConfig, ModelConfig
from serving.engine.base import ScoreRequest
from serving.engine.branches import Branches
from serving.engine.local import LocalEngine
from tests.conftest import ROOT

TOOLS = ["harbour", "library", "orchestra", "bakery"]
# Enough for the tiny model, whose weights are random.
LONG = {"epochs": 8, "learning_rate": 0.003, "eval_every": 48, "save_every": 48}
CPU = torch.device("cpu")


def case(number: int) -> TrainingCase:
    """The garden is right and stands first; every fourth case offers none. A random model can learn that."""
    rng = np.random.default_rng(number)
    right = float(number % 4 > 0)
    names = [*(["garden"] if right else []), *rng.permutation(TOOLS)[: rng.integers(1, 4)].tolist()]
    return TrainingCase(
        case_id=str(number),
        source=f"set{number % 2}",
        messages=(Message("user", f"{'quickly ' * int(rng.integers(1, 9))}please"),),
        candidates=tuple(Candidate(name, name, f"about {'the ' * int(rng.integers(1, 6))}{name}") for name in names),
        targets=(right, *[0.0] * (len(names) - 1)),
        none_weight=1 - right,
    )


@pytest.fixture
def make_recipe(tmp_path: Path, tiny_llama: Path):
    """A recipe file over the tiny model; float32 and one thread, so that runs can be compared."""
    for side, numbers in (("train", range(24)), ("dev", range(100, 106))):
        write_cases(tmp_path / f"{side}.jsonl.gz", map(case, numbers))

    def make(*, readout: str = "pointwise", lora=None, data=None, **training) -> Path:
        values = {
            "model": {"name": "tiny", "path": str(tiny_llama), "readout": readout},
            "lora": {"rank": 4, "alpha": 8, **(lora or {})},
            "data": {side: str(tmp_path / f"{side}.jsonl.gz") for side in ("train", "dev")} | (data or {}),
            "training": {"dtype": "float32", "threads": 1, "batch": 4, "eval_every": 3, "save_every": 2, **training},
        }
        file = tmp_path / "recipe.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        return file

    return make


def template_of(recipe: Recipe) -> Template:
    return Template(PromptTokenizer(recipe.model.path), readout=recipe.model.readout)


def history(out: Path) -> list[dict]:
    return json.loads((out / "training.json").read_text(encoding="utf-8"))["log"]


def command(*arguments: object) -> list[str]:
    return ["-m", "adapters.commands", "train", *map(str, arguments)]


# Without PYTHON* of the caller, and one thread in each process.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=True
    )


@pytest.mark.parametrize(("prefix", "lengths"), [(1, [1]), (17, [5, 1, 9, 3]), (40, [7, 7, 7])])
def test_branch_attention_is_attention_under_the_rows_mask(prefix: int, lengths: list[int]) -> None:
    torch.manual_seed(0)
    tokens = prefix + sum(lengths)
    query, key, value = (2 * torch.randn(heads, tokens, 16, requires_grad=True) for heads in (6, 2, 2))
    inputs = [x.detach().requires_grad_() for x in (query, key, value)]
    grad = torch.randn(6, tokens, 16)
    mask = dense_mask(prefix, lengths)[0]
    expected = functional.scaled_dot_product_attention(*(x[None] for x in inputs), mask, scale=0.3, enable_gqa=True)[0]
    out = BranchAttention.apply(*inputs, Row(prefix, Branches.of(lengths)), 0.3)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    gradients = (torch.autograd.grad(x, inputs, grad) for x in (out, expected))
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.anyio
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("readout", ["pointwise", "listwise"])
async def test_training_scores_a_case_as_serving_does(make_recipe, readout: str, dense: bool) -> None:
    recipe = Recipe.load(make_recipe(readout=readout))
    template = template_of(recipe)
    row = Questions([case(1)], template, recipe, vary=False, dense=dense)[0]
    model = load_model(recipe, template, CPU).eval()
    if dense:
        model.get_base_model().set_attn_implementation("sdpa")
    columns, _, _ = (row.pop(name) for name in ("columns", "targets", "source"))
    with torch.no_grad():
        logits = model(**row, use_cache=False).logits[0][:, columns]

    engine = LocalEngine(
        Config(model=ModelConfig(path=recipe.model.path), engine=EngineConfig(dtype="float32", threads=1))
    )
    await engine.start()
    prompt = template.render(case(1).messages, case(1).candidates)
    served = (await engine.score(ScoreRequest(prompt.prefix, prompt.continuations, prompt.labels))).logprobs
    await engine.close()
    differences = np.ptp(logits.double().numpy() - served, axis=1)  # log-probabilities are logits and a constant
    assert differences.max() < 1e-4


def test_merged_layers_have_the_gradients_of_pefts_own(make_recipe) -> None:
    recipe = Recipe.load(make_recipe())
    template = template_of(recipe)
    row = Questions([case(1)], template, recipe, vary=False, dense=False)[0]
    for name in ("columns", "targets", "source"):
        row.pop(name)
    models = [load_model(recipe, template, CPU) for _ in range(2)]
    for model in models:
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    MergedAdapter(models[1])
    for model in models:
        model(**row, use_cache=False).logits.square().sum().backward()
    for (name, plain), (_, merged) in zip(*(model.named_parameters() for model in models), strict=True):
        if "lora" in name:
            assert plain.grad.abs().max() > 0
            torch.testing.assert_close(merged.grad, plain.grad, atol=1e-5, rtol=1e-3)


def test_questions_vary_by_epoch_and_keep_what_is_right(make_recipe) -> None:
    recipe = Recipe.load(make_recipe(data={"drop_wrong": 0.5}))
    template = template_of(recipe)
    cases = [case(number) for number in range(24)]
    varied = Questions(cases, template, recipe, vary=True, dense=False)
    whole = Questions(cases, template, recipe, vary=False, dense=False)

    def shown() -> list[list[int]]:
        return [varied[i]["input_ids"][0].tolist() for i in range(len(cases))]

    first, again = shown(), shown()
    varied.epoch = 1
    assert first == again
    assert first != shown()
    assert sum(map(len, first)) < sum(whole[i]["input_ids"].numel() for i in range(len(cases)))
    for i, question in enumerate(cases):
        item = varied[i]
        assert item["targets"].sum() == 1
        assert len(item["targets"]) == len(item["logits_to_keep"]) >= 2
        ends = [0, *(item["logits_to_keep"] + 1).tolist()]
        asked = template.tokenizer.decode(item["input_ids"][0, ends[-3] : ends[-1]].tolist())
        right = [c.name for c, weight in zip(question.candidates, question.targets, strict=True) if weight]
        if right and item["targets"][-2] == 1:
            assert f"{right[0]}: about" in asked


def test_hit_is_counted_for_each_source() -> None:
    rows = np.array([[0.5, 1], [1.5, 0], [1.0, 1]])
    metrics = by_source(["a", "b", "unseen"], EvalPrediction(predictions=rows, label_ids=np.array([0, 0, 1])))
    assert metrics == {"hit@1": pytest.approx(2 / 3), "loss/a": 1, "hit@1/a": 0.5, "loss/b": 1, "hit@1/b": 1}


# A tiny listwise model learns the share of none, but not which list it is.
@pytest.mark.parametrize(("readout", "bound"), [("pointwise", 0.5), ("listwise", 0.8)])
def test_a_run_learns_and_leaves_an_adapter_that_serving_loads(
    make_recipe, tmp_path: Path, readout: str, bound: float
) -> None:
    file = make_recipe(readout=readout, data={"shuffle": False}, **LONG)
    recipe, out = Recipe.load(file), tmp_path / "out"
    train(recipe, out)
    log = history(out)
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert len(losses) == 48
    assert np.mean(losses[-6:]) < bound * np.mean(losses[:6])
    assert "eval_hit@1/set0" in log[-2]
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")

    weights = load_file(out / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    text = (out / "adapter_config.json").read_text(encoding="utf-8")
    assert json.loads(text)["base_model_name_or_path"] == "tiny"
    assert "/" not in text
    base = AutoModelForCausalLM.from_pretrained(recipe.model.path)
    plain = base.lm_head.weight.detach().clone()
    merged = PeftModel.from_pretrained(base, out).merge_and_unload()
    assert torch.equal(merged.lm_head.weight, plain)
    assert len(weights) == 2 * 7 * 2


def test_only_named_layers_are_trained_and_a_run_goes_on_from_an_adapter(make_recipe, tmp_path: Path) -> None:
    lora = {"target_modules": ["q_proj", "down_proj"], "layers": [1, 2]}
    train(Recipe.load(make_recipe(lora=lora, max_steps=2)), tmp_path / "first")
    first = load_file(tmp_path / "first/adapter_model.safetensors")
    assert {re.search(r"layers\.\d+.*(q|down)_proj", name)[0][:8] for name in first} == {"layers.1"}
    recipe = Recipe.load(make_recipe(max_steps=1, learning_rate=1e-6))
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"adapter": str(tmp_path / "first")})})
    train(recipe, tmp_path / "second")
    second = load_file(tmp_path / "second/adapter_model.safetensors")
    assert second.keys() == first.keys()
    assert all(torch.allclose(second[name], first[name], atol=1e-3) for name in first)


def test_qlora_trains_over_four_bit_weights(make_recipe, tmp_path: Path) -> None:
    recipe = Recipe.load(make_recipe(quantise=True, dtype="bfloat16", **LONG))
    model = load_model(recipe, template_of(recipe), CPU)
    kinds = {type(module.weight).__name__ for name, module in model.named_modules() if name.endswith(".base_layer")}
    assert kinds == {"Params4bit"}
    train(recipe, tmp_path / "out")
    losses = [entry["loss"] for entry in history(tmp_path / "out") if "loss" in entry]
    assert np.mean(losses[-6:]) < 0.8 * np.mean(losses[:6])


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been(make_recipe, tmp_path: Path) -> None:
    file = make_recipe(epochs=2, data={"drop_wrong": 0.3})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(*command(file, "--out", whole))
    process = subprocess.Popen(
        [sys.executable, *command(file, "--out", killed)], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("checkpoint 4 "):
            process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert not (killed / "training.json").exists()
    # A kill in the middle of writing leaves a checkpoint without its last file.
    (killed / "checkpoints/checkpoint-999").mkdir()
    run(*command(file, "--out", killed, "--resume"))
    assert [entry["step"] for entry in history(killed) if "loss" in entry] == list(range(1, 13))
    expected, resumed = (load_file(out / "adapter_model.safetensors") for out in (whole, killed))
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_two_processes_train_what_one_does(make_recipe, tmp_path: Path) -> None:
    file = make_recipe(max_steps=4)
    train(Recipe.load(file), tmp_path / "one")
    launch = ["--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    done = run("-m", "accelerate.commands.launch", *launch, *command(file, "--out", tmp_path / "two"))
    assert done.stdout.count("checkpoint 4 of 4 written") == 1
    one, two = ([entry["loss"] for entry in history(tmp_path / out) if "loss" in entry] for out in ("one", "two"))
    np.testing.assert_allclose(one, two, atol=2e-4)
    dev = ([entry["eval_loss"] for entry in history(tmp_path / out) if "eval_loss" in entry] for out in ("one", "two"))
    np.testing.assert_allclose(*dev, atol=2e-4)


def test_a_run_is_neither_overwritten_nor_resumed_from_nothing(make_recipe, tmp_path: Path) -> None:
    recipe = Recipe.load(make_recipe(max_steps=2))
    with pytest.raises(ValueError, match="no complete checkpoint"):
        train(recipe, tmp_path / "out", resume=True)
    train(recipe, tmp_path / "out")
    assert latest_checkpoint(tmp_path / "out/checkpoints").name == "checkpoint-2"
    with pytest.raises(ValueError, match="--resume"):
        train(recipe, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"readout": "generate"}, "pointwise or listwise"),
        ({"lora": {"layers": [1, 2]}}, "target_modules by name"),
        ({"epoch": 2}, "training.epoch"),
        ({"quantise": True, "compile": True}, "does not go with"),
    ],
)
def test_a_recipe_that_cannot_work_says_why(make_recipe, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.load(make_recipe(**changes))


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen3-8b"])
def test_the_shipped_recipes_load(name: str) -> None:
    recipe = Recipe.load(ROOT / f"adapters/recipes/{name}.yaml")
    assert recipe.model.name.startswith(name)


def test_qwen3_labels_have_a_head_row_each(qwen3_tokenizer: Path) -> None:
    template = Template(PromptTokenizer(qwen3_tokenizer), chat="qwen3", readout="listwise")
    assert len(set(label_ids(template))) == template.max_candidates + 1
    assert ADAPTER == "default"
