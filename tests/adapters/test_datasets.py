"""Reading catalogues, cases and trajectories: what is understood, and what each fault's message says."""

import gzip
import json

import pytest

from adapters.datasets import read_candidates, read_dataset, read_trajectories, without_history
from prompts import Message
from tests.adapters.conftest import CASES, CATALOGUE, call, request, write_lines


def test_a_set_is_read_plain_and_gzipped_alike(world):
    plain = read_dataset(world / "sets/tasks")
    zipped = world / "zipped/tasks"
    zipped.mkdir(parents=True)
    for name in ("catalog.jsonl", "cases.jsonl"):
        (zipped / f"{name}.gz").write_bytes(gzip.compress((world / "sets/tasks" / name).read_bytes()))
    again = read_dataset(zipped)
    assert again == plain or (again.cases, again.candidates) == (plain.cases, plain.candidates)
    assert len(plain.cases) == len(CASES)
    assert plain.cases[0].messages == (Message("user", CASES[0]["query"]),)
    assert plain.by_id["garden/water_bed"].parameters == [("target", True), ("day", False)]


def test_a_set_without_cases_lends_its_catalogue(world):
    dataset = read_dataset(world / "sets/foreign")
    assert dataset.cases == ()
    assert len(dataset.candidates) == 30


def test_the_query_is_not_repeated_when_the_agent_has_acted_since(world):
    history = [
        {"role": "user", "content": "hello"},
        {"role": "user", "content": "water it"},
        call("garden/water_bed"),
        {"role": "tool", "name": "garden/water_bed", "content": "wet"},
    ]
    acted = request("a", "water it", ["garden/harvest_row"], history=history, query_pos=1)
    fresh = request("b", "and now?", ["garden/harvest_row"], history=history[:2], query_pos=2)
    write_lines(world / "sets/tasks/cases.jsonl", [acted, fresh])
    first, second = read_dataset(world / "sets/tasks").cases
    assert [message.content for message in first.messages] == ["hello", "water it", "", "wet"]
    assert first.messages[2].tool_calls[0].name == "garden/water_bed"
    assert [message.content for message in second.messages] == ["hello", "water it", "and now?"]
    assert [message.content for message in without_history(first).messages] == ["water it", "wet"]
    assert [message.content for message in without_history(second).messages] == ["and now?"]


def test_cases_without_a_group_are_grouped_by_their_first_request(world):
    twins = [request("a", "Water  the bed", ["garden/water_bed"]), request("b", "water the BED", [], candidates=[])]
    write_lines(world / "sets/tasks/cases.jsonl", [*twins, request("c", "x", ["garden/water_bed"], group="g")])
    groups = [case.group for case in read_dataset(world / "sets/tasks").cases]
    assert groups[0] == groups[1]
    assert groups[2] == "g"


def test_agents_may_list_their_tools_as_objects(world):
    agent = {"id": "a", "type": "agent", "name": "a", "tools": [{"name": "dig", "description": "d"}, "rake"]}
    server = {"id": "s", "type": "server", "name": "s", "description": "lends a"}
    write_lines(world / "agents.jsonl", [agent, server])
    (candidate,) = read_candidates(world / "agents.jsonl")
    assert candidate.tools == ("dig", "rake")


@pytest.mark.parametrize(
    ("file", "line", "says"),
    [
        ("cases", "{", "cases.jsonl:2: not JSON"),
        ("cases", "[]", "cases.jsonl:2"),
        ("cases", json.dumps({"case_id": "x"}), "cases.jsonl:2: query: Field required"),
        ("cases", json.dumps(request("x", "q", ["garden/fly"])), r"cases.jsonl:2: not in the catalogue .*garden/fly"),
        ("cases", json.dumps(request("x", "q", ["garden/water_bed"], query_pos=3)), "cases.jsonl:2: query_pos is 3"),
        ("cases", json.dumps(request("x", "q", [], gold_mode="one")), "cases.jsonl:2: gold_mode 'one' with 0 gold"),
        (
            "cases",
            json.dumps(request("x", "q", [], history=[{"role": "robot", "content": ""}])),
            "cases.jsonl:2: history.0.role",
        ),
        ("catalog", json.dumps(CATALOGUE[0]), "catalog.jsonl:2: the id 'garden/water_bed' stands"),
        ("catalog", json.dumps({"id": "x"}), "catalog.jsonl:2.*name"),
    ],
)
def test_a_fault_is_told_with_file_and_line(world, file, line, says):
    first = CASES[0] if file == "cases" else CATALOGUE[0]
    (world / f"sets/tasks/{file}.jsonl").write_text(f"{json.dumps(first)}\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        read_dataset(world / "sets/tasks")


def test_a_missing_catalogue_is_told_with_its_path(world):
    with pytest.raises(ValueError, match=r"cannot read .*nowhere"):
        read_dataset(world / "sets/nowhere")


def test_every_decision_of_a_trajectory_is_a_case(world):
    dataset = read_trajectories(world / "runs/team.trajectories.jsonl", world / "sets/tasks")
    steps = [case for case in dataset.cases if case.group == "team_0/0"]
    assert dataset.name == "team_trajectories"
    assert [case.gold for case in steps] == [
        ("garden/water_bed",),
        ("library/lend_book",),
        ("library/lend_book",),
        (),
    ]
    assert [case.repeats_last_call for case in steps] == [False, False, True, False]
    assert [len(case.messages) for case in steps] == [1, 3, 5, 7]
    assert steps[0].preface == "Water first."
    assert steps[3].gold_mode == "none"
    assert steps[0].servers == ("garden", "library")


def test_calls_of_one_message_are_one_case_and_each_is_right(world):
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [*call("a/x")["tool_calls"], *call("a/y")["tool_calls"]],
    }
    line = {"task": "", "group": "g", "messages": [{"role": "user", "content": "both"}, message]}
    write_lines(world / "t.jsonl", [line])
    write_lines(world / "c.jsonl", [{"id": "a/x", "name": "x"}, {"id": "a/y", "name": "y"}])
    (case,) = read_trajectories(world / "t.jsonl", world / "c.jsonl").cases
    assert case.gold == ("a/x", "a/y")
    assert case.gold_mode == "one"


def test_a_call_of_an_unknown_candidate_is_told_with_its_line(world):
    write_lines(world / "t.jsonl", [{"group": "g", "messages": [{"role": "user", "content": "x"}, call("no/such")]}])
    with pytest.raises(ValueError, match=r"t.jsonl:1: the call of 'no/such'"):
        read_trajectories(world / "t.jsonl", world / "sets/tasks")
