"""An adapter's life on the command line: trained, packaged, calibrated, verified; and one from elsewhere imported."""

import dataclasses
import json
import shutil

import pytest
import yaml
from typer.testing import CliRunner

from adapters.cases import write_cases
from adapters.cli import app
from adapters.recipe import Recipe
from adapters.train import train
from serving.manifest import FILE, Manifest
from tests.adapters.test_train import case


def run(*arguments):
    result = CliRunner().invoke(app, ["adapter", *map(str, arguments)])
    return result.exit_code, "".join(result.output.split())  # the console breaks lines anywhere


@pytest.fixture(scope="module")
def life(tmp_path_factory, tiny_llama, tiny_embedder):
    """A folder with cases, a profile, and an adapter just trained on them."""
    folder = tmp_path_factory.mktemp("life")
    write_cases(folder / "train.jsonl.gz", map(case, range(48)))
    write_cases(folder / "dev.jsonl.gz", map(case, range(100, 340)))
    kept = (
        dataclasses.replace(one, prefilter=tuple(0.1 for _ in one.candidates)) for one in map(case, range(400, 640))
    )
    write_cases(folder / "calibration.jsonl.gz", kept)
    manifest = {"recipe": {"sources": {"toys": {"licence": "Apache-2.0"}}}, "sources": {"toys": {"train": 48}}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    recipe = {
        "model": {"name": "tiny", "path": str(tiny_llama)},
        "lora": {"rank": 4, "alpha": 16},
        "data": {side: str(folder / f"{side}.jsonl.gz") for side in ("train", "dev")} | {"dev_limit": 8},
        "training": {"dtype": "float32", "threads": 1, "batch": 4, "epochs": 6, "learning_rate": 0.003,
                     "eval_every": 100, "save_every": 100},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    profile = {
        "model": {"name": "tiny", "path": str(tiny_llama)},
        "engine": {"dtype": "float32", "threads": 1},
        "prefilter": {"embedder": str(tiny_embedder)},
    }
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    train(Recipe.load(folder / "recipe.yaml"), folder / "toy-router")
    return folder


def test_a_trained_adapter_is_packaged_calibrated_and_verified(life):
    adapter, profile = life / "toy-router", ("--config", life / "profile.yaml")
    code, said = run("verify", adapter, *profile)
    assert code != 0
    assert FILE in said
    assert run("package", adapter, *profile)[0] == 0
    manifest = Manifest.load(adapter)
    assert [(part.name, part.licence, part.cases) for part in manifest.trained_on] == [("toys", "Apache-2.0", 48)]
    assert manifest.hyperparameters["lora"]["rank"] == 4
    code, said = run("calibrate", adapter, "--cases", life, *profile)
    assert code == 0, said
    assert "240cases" in said
    calibrated = Manifest.load(adapter)
    assert calibrated.calibration.plain.conformal
    assert calibrated.calibration.blended
    assert "calibration.jsonl.gz" in calibrated.calibrated_on
    code, said = run("verify", adapter, *profile)
    assert (code, "fitsitsbasemodel" in said) == (0, True)


def test_the_card_says_what_was_measured(life, tmp_path):
    adapter = life / "toy-router"
    if not (adapter / FILE).exists():
        run("package", adapter, "--config", life / "profile.yaml")
    row = {"set": "toys", "split": "test", "n": 9, "hit@1": 0.5, "recall@10": 1.0, "mrr@10": 0.75}
    row["intervals"] = {metric: [row[metric] - 0.1, row[metric] + 0.1] for metric in ("hit@1", "recall@10", "mrr@10")}
    rows = [{**row, "method": "router"}, {**row, "method": "bm25", "hit@1": 0.25}, {**row, "method": "repeat-last"}]
    report = {"results": rows, "settings": {"k": 10, "seed": 0, "limit": None}}
    (tmp_path / "report.json").write_text(json.dumps(report), encoding="utf-8")
    (tmp_path / "notes.md").write_text("It is a toy.\n", encoding="utf-8")
    files = ("--report", tmp_path / "report.json", "--notes", tmp_path / "notes.md")
    assert run("card", adapter, *files)[0] == 0
    [first, *_] = Manifest.load(adapter).evaluation
    assert (first.metric, first.value, first.baseline, first.baseline_value) == ("hit@1", 0.5, "bm25", 0.25)
    text = (adapter / "README.md").read_text(encoding="utf-8")
    for part in ("base_model: tiny", "It is a toy.", "| toys | Apache-2.0 | 48 |", "| toys | router | 9 | .500 |"):
        assert part in text
    (tmp_path / "report.json").write_text("{}", encoding="utf-8")
    assert run("card", adapter, *files)[0] == 2


def test_an_adapter_from_elsewhere_is_imported_and_its_manifest_not_overwritten(life, tmp_path):
    adapter, profile = tmp_path / "theirs", ("--config", life / "profile.yaml")
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(life / "toy-router" / name, adapter)
    code, said = run("package", adapter, *profile)
    assert (code, "training.json" in said) == (2, True)
    assert run("import", adapter, "--readout", "pointwise", *profile)[0] == 0
    assert Manifest.load(adapter).template.readout == "pointwise"
    code, said = run("import", adapter, *profile)
    assert (code, "--force" in said) == (2, True)
    assert run("verify", adapter, *profile)[0] == 0


def test_what_is_no_adapter_is_refused(life, tmp_path):
    code, said = run("import", tmp_path, "--config", life / "profile.yaml")
    assert (code, "adapter_config.json" in said) == (2, True)
