import json

import pytest

from adapters.datasets import read_dataset, read_trajectories
from adapters.supervision import CASES, Sides, candidate_line, case_line, counted, supervise
from tests.adapters.conftest import CATALOGUE, TRAJECTORIES, request, write_lines
from tests.adapters.factory import AGENT


@pytest.fixture
def files(world):
    return world / "runs/team.trajectories.jsonl", world / "sets/tasks/catalog.jsonl"


def test_a_trajectory_becomes_the_cases_that_are_read_of_it(files, tmp_path):
    made = supervise(*files, tmp_path / "out", Sides(dev=0.4))
    read = read_dataset(tmp_path / "out")
    fields = ("case_id", "messages", "gold", "gold_mode", "group", "servers", "repeats_last_call", "preface")
    expected = read_trajectories(*files).cases
    assert len(read.cases) == len(TRAJECTORIES) * 4
    for field in fields:
        assert [getattr(case, field) for case in read.cases] == [getattr(case, field) for case in expected], field
    assert read.candidates == made.candidates
    assert [case.split for case in read.cases] == [case.split for case in made.cases]


def test_query_observation_and_history_are_told_apart(files, tmp_path):
    first, second, *_ = map(case_line, supervise(*files, tmp_path).cases)
    assert (first["history"], first["query_pos"]) == ([], 0)
    assert first["query"] == TRAJECTORIES[0]["messages"][0]["content"]
    assert first["gold"] == ("garden/water_bed",)
    assert second["query"] == first["query"]
    assert second["query_pos"] == 0
    assert [message["role"] for message in second["history"]] == ["user", "assistant", "tool"]
    assert second["history"][1]["tool_calls"] == [{"name": "garden/water_bed", "arguments": '{"target": 0}'}]


def test_a_trajectory_stands_on_one_side(files, tmp_path):
    cases = supervise(*files, tmp_path, Sides(dev=0.3, test=0.3)).cases
    sides = {case.group: {other.split for other in cases if other.group == case.group} for case in cases}
    assert all(len(side) == 1 for side in sides.values())
    assert {case.split for case in cases} == {"train", "dev", "test"}
    assert counted(cases)["train"] == {
        "decisions": sum(case.split == "train" and bool(case.gold) for case in cases),
        "none": sum(case.split == "train" and not case.gold for case in cases),
    }
    assert {case.split for case in supervise(*files, tmp_path, Sides(dev=0)).cases} == {"train"}


def test_the_same_trajectories_and_seed_are_the_same_bytes(files, tmp_path):
    made = []
    for seed in (0, 0, 1):
        supervise(*files, tmp_path, Sides(dev=0.5), seed)
        made.append((tmp_path / CASES).read_bytes())
    assert made[0] == made[1] != made[2]


def test_agents_are_supervised_as_tools_are(tmp_path):
    call = {"role": "assistant", "tool_calls": [{"name": AGENT["id"], "arguments": json.dumps({"message": "Dock."})}]}
    said = [
        {"role": "user", "content": "Bring her in."},
        call,
        {"role": "tool", "name": AGENT["id"], "content": "Done."},
    ]
    line = {"group": "g", "messages": [*said, {"role": "assistant", "content": "She is in."}]}
    write_lines(tmp_path / "t.jsonl", [line])
    write_lines(tmp_path / "c.jsonl", [*CATALOGUE, AGENT])
    decision, answer = supervise(tmp_path / "t.jsonl", tmp_path / "c.jsonl", tmp_path / "out").cases
    assert (decision.gold, answer.gold, answer.gold_mode) == ((AGENT["id"],), (), "none")
    [agent] = [one for one in read_dataset(tmp_path / "out").candidates if one.type == "agent"]
    assert agent.tools == ("look_out", "steer")


def test_what_an_assistant_does_before_anybody_speaks_is_no_case(tmp_path):
    call = {"role": "assistant", "tool_calls": [{"name": CATALOGUE[0]["id"], "arguments": "{}"}]}
    line = {
        "group": "g",
        "messages": [{"role": "system", "content": "Be kind."}, call, {"role": "user", "content": "Hm"}, call],
    }
    write_lines(tmp_path / "t.jsonl", [line])
    write_lines(tmp_path / "c.jsonl", CATALOGUE)
    [case] = supervise(tmp_path / "t.jsonl", tmp_path / "c.jsonl", tmp_path / "out").cases
    assert case.messages[-1].content == "Hm"


def test_lines_of_other_sets_come_back_as_they_were(world):
    """`case_line` and `candidate_line` undo `read_dataset`, for every field that a case has."""
    extra = {"candidates": [CATALOGUE[0]["id"]], "excluded": [CATALOGUE[1]["id"]], "group": "a", "servers": ["garden"]}
    lines = [request("x", "Water!", [CATALOGUE[0]["id"]], **extra), request("y", "Sing!", [], group="b")]
    folder = world / "sets/more"
    write_lines(folder / "catalog.jsonl", [*CATALOGUE, AGENT | {"annotations": {"a": 1}, "tags": ["t"]}])
    write_lines(folder / "cases.jsonl", lines)
    dataset = read_dataset(folder)
    write_lines(world / "sets/again/cases.jsonl", map(case_line, dataset.cases))
    write_lines(world / "sets/again/catalog.jsonl", map(candidate_line, dataset.candidates))
    again = read_dataset(world / "sets/again")
    assert again.candidates == dataset.candidates
    assert [case_line(case) for case in again.cases] == [case_line(case) for case in dataset.cases]
    assert again.cases[0].servers == ("garden",)
