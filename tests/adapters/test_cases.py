"""Building, storing and streaming training cases."""

import dataclasses
import json

import pytest

from adapters.cases import TrainingCase, build_cases, read_cases, token_budget, write_cases
from adapters.mixture import CasesRecipe
from prompts import Candidate, Message, PromptTokenizer, Template, ToolCall
from tests.adapters.conftest import toy_embed

LISTS = {"near_same_server": 0.999, "near_elsewhere": 0.999, "foreign_far": 0.9}
SOURCES = {
    "tasks": {"path": "sets/tasks", "foreign": "sets/foreign", "licence": "MIT", "train": 60, "dev": 8, "variants": 2},
    "team": {
        "path": "runs/team.trajectories.jsonl",
        "catalogue": "sets/tasks",
        "licence": "MIT",
        "train": 12,
        "dev": 4,
        "answers": 4,
        "dev_groups": ["team_3/"],
    },
}


def built(world, out="out", **fields):
    recipe = CasesRecipe.model_validate({"sources": SOURCES, "lists": LISTS, "dev_share": 0.2, **fields})
    manifest = build_cases(recipe, world, world / out, toy_embed)
    return manifest, *(list(read_cases(world / out / f"{side}.jsonl.gz")) for side in ("train", "dev"))


def test_a_training_case_survives_its_file(tmp_path):
    case = TrainingCase(
        "id",
        "set",
        (
            Message("user", "grüß <|im_end|>\n"),
            Message("assistant", "", (ToolCall("a.b", '{"x": 1}'),)),
            Message("tool", "", name="a.b"),
        ),
        (
            Candidate("1", "a", "d", "agent", "s", {"properties": {"p": {}, "q": {}}, "required": ["p"]}, tools=("t",)),
            Candidate("2", "b"),
        ),
        (0.0, 1.0),
        0.0,
    )
    assert write_cases(tmp_path / "c.jsonl.gz", [case]) == 1
    assert list(read_cases(tmp_path / "c.jsonl.gz")) == [case]


def test_a_broken_line_is_told_with_its_place(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"case_id": "x"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"c.jsonl:1: .*source"):
        list(read_cases(tmp_path / "c.jsonl"))


def test_a_recipe_gives_the_counts_it_asks_for(world):
    manifest, train, dev = built(world)
    assert {name: (source["train"], source["dev"]) for name, source in manifest["sources"].items()} == {
        "tasks": (60, 8),
        "team": (16, 5),
    }
    assert (len(train), len(dev)) == (76, 13)
    assert manifest["sources"]["tasks"]["licence"] == "MIT"
    assert set(manifest["sources"]["tasks"]["sha256"]) == {"catalog.jsonl", "cases.jsonl"}
    assert json.loads((world / "out/manifest.json").read_text(encoding="utf-8")) == manifest


def test_cases_for_calibration_are_what_the_prefilter_keeps(world):
    manifest, _, dev = built(world, k=3)
    served = list(read_cases(world / "out/calibration.jsonl.gz"))
    assert manifest["sources"]["tasks"]["calibration"] == sum(case.source == "tasks" for case in served)
    assert {case.case_id for case in served} == {case.case_id for case in dev}
    for case in served:
        assert len(case.candidates) == len(case.prefilter) == 3
        assert list(case.prefilter) == sorted(case.prefilter, reverse=True)
        assert sum(case.targets) + case.none_weight == pytest.approx(1)
        assert case.group
    lost = [case for case in served if case.none_weight and case.source == "tasks"]
    assert len(lost) < len(served)  # gold is found by its words here, and where it is not it is not forced in


def test_the_same_recipe_gives_the_same_bytes_and_another_seed_others(world):
    first, second, other = (built(world, out, seed=seed)[0]["files"] for out, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first == second
    assert first["train.jsonl.gz"] != other["train.jsonl.gz"]
    assert (world / "a/dev.jsonl.gz").read_bytes() == (world / "b/dev.jsonl.gz").read_bytes()


def test_no_group_stands_on_both_sides(world):
    _, train, dev = built(world)
    groups = [{case.messages[0].content for case in side if case.source == "tasks"} for side in (train, dev)]
    assert not groups[0] & groups[1]
    assert {case.case_id.split("/")[0] for case in dev if case.source == "team_trajectories"} == {"team_3"}
    assert not any(case.case_id.startswith("team_3/") for case in train)


def test_a_set_of_the_report_is_refused_before_anything_is_read(world):
    (world / "sets/tasks").rename(world / "sets/apibank")
    for field in ("path", "foreign"):
        source = {**SOURCES["tasks"], "path": "sets/foreign", field: "sets/apibank"}
        with pytest.raises(ValueError, match="apibank is one of the report's sets"):
            built(world, sources={"tasks": source})
    assert not (world / "out").exists()


def test_without_history_only_query_and_observation_are_left(world):
    _, train, _ = built(world, history="none")
    assert {len(case.messages) for case in train if case.source == "team_trajectories"} == {1, 2}
    assert all(case.messages[0].role == "user" for case in train)


def test_the_assistants_announcement_can_stand_before_the_decision(world):
    _, train, _ = built(world, prefaced=1, shortened=0)
    announced = [case for case in train if case.messages[-1] == Message("assistant", "Water first.")]
    assert announced
    assert all(len(case.messages) == 2 for case in announced)
    _, train, _ = built(world, prefaced=0, shortened=0)
    assert not any(case.messages[-1].content == "Water first." for case in train)


def test_what_a_template_reads_is_kept_and_the_rest_of_a_schema_left_out(world):
    _, train, _ = built(world, varied=0)
    candidate = next(c for case in train for c in case.candidates if c.id == "garden/water_bed")
    assert candidate.parameters == [("target", True), ("day", False)]
    assert candidate.input_schema["properties"]["target"] == {}


def test_the_token_budget_is_told_for_each_source(world, smollm2):
    template = Template(PromptTokenizer(smollm2))
    _, train, _ = built(world)
    budget = token_budget(train, template)
    assert set(budget) == {"tasks", "team_trajectories", "all"}
    assert budget["all"]["cases"] == len(train)
    prompts = [template.render(case.messages, case.candidates) for case in train]
    assert budget["all"]["tokens"] == pytest.approx(sum(prompt.tokens for prompt in prompts) / len(prompts), abs=0.01)
    one = token_budget([dataclasses.replace(train[0], none_weight=1.0)], template)
    assert one["all"]["none"] == 1
