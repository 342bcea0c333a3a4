"""Recorded tasks done again: what is held out, replayed, asked by the oracle, and how failures are sorted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
import yaml
from typer.testing import CliRunner

from adapters.agent_evaluate import AgentSettings, Method, evaluate_agent
from adapters.agent_replay import Replay
from adapters.agent_tasks import found_sets, held_out_tasks
from adapters.commands_eval import evaluate as command
from adapters.failures import category, succeeded
from adapters.mixture import CasesRecipe
from adapters.oracle import Oracle
from serving.agent.arguments import Schemas
from serving.agent.loop import Discovery, Run, Step, run
from serving.llm import Journal, Usage
from serving.types import EngineUnavailableError, InvalidRequestError
from tests.adapters.conftest import CATALOGUE, call, write_lines
from tests.serving import chat_server
from tests.serving.chat_server import Reply

pytestmark = pytest.mark.anyio

WATER, SOW, LEND, TIDE = "garden/water_bed", "garden/plantSeeds", "library/lend_book", "harbour/readTide"


def result(id_, text):
    return {"role": "tool", "name": id_, "content": text}


def trajectory(group, number):
    """Two calls at once, a question back, and one more call that the assistant says nothing about."""
    return {
        "task": "tend",
        "group": group,
        "messages": [
            {"role": "user", "content": f"water bed {number}, sow it"},
            {
                "role": "assistant",
                "content": "First the watering.",
                "tool_calls": [*call(WATER, target=str(number))["tool_calls"], *call(SOW, target="x")["tool_calls"]],
            },
            result(SOW, "sown"),
            result(WATER, f"bed {number} is wet"),
            {"role": "assistant", "content": "And which book?"},
            {"role": "user", "content": "lend book 7"},
            call(LEND, target="7"),
            result(LEND, "lent"),
            {"role": "assistant", "content": "All done."},
        ],
    }


@pytest.fixture
def root(tmp_path):
    groups = ["held_1", "held_1", "held_12", "seen_0"]
    lines = [trajectory(group, number) for number, group in enumerate(groups)]
    lines += [
        {"task": "", "group": "held_1", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant"}]},
        {"task": "", "group": "held_1", "messages": [{"role": "assistant"}, call(TIDE, target="now")]},
    ]
    write_lines(tmp_path / "runs/team.trajectories.jsonl", lines)
    write_lines(tmp_path / "runs/team.catalog.jsonl", CATALOGUE)
    source = {"path": "elsewhere/team.trajectories.jsonl", "licence": "MIT", "train": 1, "dev": 1}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"sources": {"a": {**source, "dev_groups": ["held_1/"]}}}))
    return tmp_path


SPEC = "team.trajectories.jsonl=team.catalog.jsonl"


def tasks_of(root, **reading):
    return held_out_tasks(root / "runs", SPEC, CasesRecipe.load(root / "recipe.yaml"), **reading)


@pytest.fixture
def task(root):
    return tasks_of(root)[0]


def count(value):
    return len(json.dumps(value)) // 4


class Words:
    """Finds what it was told to for a need."""

    def __init__(self, found):
        self.settings = found
        self.asked = []

    async def find(self, messages, task):
        self.asked.append([message.content for message in messages])
        by_id = {candidate.id: candidate for candidate in task.pool.candidates}
        first, *others = [by_id[id_] for id_ in self.settings.get(messages[-1].content, ())] or [None]
        return Discovery(first, others, prompt_tokens=5)


ALL_FOUND = {"First the watering.": [WATER, SOW], "lend book 7": [LEND]}


# Tasks


def test_only_what_the_recipe_holds_out_is_a_task(root):
    assert [task.id for task in tasks_of(root)] == ["held_1/0", "held_1/1"]
    assert len(tasks_of(root, limit=1)) == 1
    with pytest.raises(ValueError, match=r"no trajectory that is held out.*held out are held_1/"):
        tasks_of(root, groups=["seen_0"])


def test_where_the_recipe_names_no_groups_the_hash_decides_as_for_training_cases(root):
    from adapters.cases import _chosen
    from adapters.datasets import read_trajectories

    lines = [trajectory("any", number) for number in range(100)]
    write_lines(root / "runs/team.trajectories.jsonl", lines)
    recipe = CasesRecipe.model_validate({"sources": {"a": {"path": "team.trajectories.jsonl", "licence": "MIT",
                                                           "train": 1000, "dev": 1000}}})  # fmt: skip
    held = {task.id for task in held_out_tasks(root / "runs", SPEC, recipe)}
    assert 2 <= len(held) <= 20
    dataset = read_trajectories(root / "runs/team.trajectories.jsonl", root / "runs/team.catalog.jsonl")
    trained = {case.group for case, _ in _chosen(dataset, recipe.sources["a"], recipe)["train"]}
    assert trained
    assert held.isdisjoint(trained)


def test_a_folder_says_which_catalogue_belongs_to_which_trajectories(root):
    assert found_sets(root / "runs") == [SPEC]
    write_lines(root / "runs/other.trajectories.jsonl", [])
    with pytest.raises(ValueError, match=r"no catalogue beside it \(other.catalog.jsonl\)"):
        found_sets(root / "runs")
    with pytest.raises(ValueError, match="has no"):
        found_sets(root)


def test_what_was_recorded_is_read_with_its_results_and_words(task):
    assert task.gold == (WATER, SOW, LEND)
    assert task.requests == ["water bed 0, sow it", "lend book 7"]
    assert [(call.candidate, call.result, call.need) for call in task.calls] == [
        (WATER, "bed 0 is wet", "First the watering."),
        (SOW, "sown", "First the watering."),
        (LEND, "lent", "lend book 7"),
    ]
    assert [message.role for message in task.calls[2].before] == [
        "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip


# Replay


async def test_a_call_gives_what_was_recorded_for_its_arguments_or_else_in_order(task):
    messages = list(task.messages)
    messages[6:8] = [*messages[6:8], replace(messages[6], tool_calls=(replace(messages[6].tool_calls[0],
                     arguments='{"target": "8"}'),)), replace(messages[7], content="lent 8")]  # fmt: skip
    toolbox = Replay(replace(task, messages=tuple(messages)), None, Schemas())
    book = next(candidate for candidate in task.pool.candidates if candidate.id == LEND)
    given = [(await toolbox.invoke(book, {"target": target})).text for target in ("8", "1", "2", "8")]
    assert given == ["lent 8", "lent", "lent 8", "lent 8"]


async def test_what_was_never_called_gives_nothing_and_arguments_are_checked(task):
    by_id = {candidate.id: candidate for candidate in task.pool.candidates}
    toolbox = Replay(task, None, Schemas())
    assert (await toolbox.invoke(by_id["garden/mow-lawn"], {"target": "x"})).failed
    with pytest.raises(InvalidRequestError, match="required"):
        await toolbox.invoke(by_id[WATER], {})
    assert (await toolbox.invoke(by_id[WATER], {"target": "3"})).text == "bed 0 is wet"


# The oracle


async def oracle_run(task, finder, given=None):
    further = iter(task.requests[1:])

    async def user(said):
        return next(further, None)

    toolbox = Replay(task, finder, Schemas())
    return await run(task.requests[0], Oracle(task, count), toolbox, user=user, given=given)


async def test_the_oracle_calls_what_it_can_and_asks_in_the_recorded_words(task):
    finder = Words(ALL_FOUND)
    done = await oracle_run(task, finder)
    assert [step.action for step in done.steps] == [
        "discover", "invoke", "invoke", "respond", "discover", "invoke", "respond",
    ]  # fmt: skip
    assert succeeded(done, task)
    assert await category(done, task, None) is None
    assert done.answer == "All done."
    # Announced by the assistant; and where it said nothing, the user's words once only.
    assert [asked[-2:] for asked in finder.asked] == [
        ["water bed 0, sow it", "First the watering."], ["And which book?", "lend book 7"],
    ]  # fmt: skip
    assert done.usage.prompt_tokens > sum(step.usage.completion_tokens for step in done.steps) > 0
    assert done.router_tokens == 10


async def test_what_is_found_late_is_called_late_and_what_never_is_is_a_failure_of_discovery(task):
    done = await oracle_run(task, Words({"First the watering.": [SOW], "lend book 7": [WATER]}))
    assert [step.candidate for step in done.steps if step.action == "invoke"] == [SOW, WATER]
    assert not succeeded(done, task)
    assert await category(done, task, never_asked) == "discovery"


async def never_asked(call):
    raise AssertionError("the recorded words were asked already")


async def test_with_all_tools_the_oracle_needs_no_discovery(task):
    done = await oracle_run(task, None, task.pool.candidates)
    assert succeeded(done, task)
    assert [step.action for step in done.steps].count("discover") == 0


# Failures


def did(*steps, outcome="responded", accessible=()):
    return Run(outcome, "said", steps, tuple(accessible), Usage(), 0)


def asks(text, *found):
    return Step("discover", text, found=found)


def calls(id_, failed=False):
    return Step("invoke", "{}", id_, failed=failed)


FIRST_TWO = (asks("w", WATER, SOW), calls(WATER), calls(SOW))


@pytest.mark.parametrize(
    ("done", "found", "expected"),
    [
        (did(Step("respond", "No.")), True, "query_formulation"),
        (did(asks("w", WATER), calls(WATER), Step("respond", "Done.")), False, "query_formulation"),
        (did(*FIRST_TWO, asks("a book, somehow")), True, "query_formulation"),
        (did(*FIRST_TWO, asks("a book, somehow")), False, "discovery"),
        (did(*FIRST_TWO, asks("lend book 7")), True, "discovery"),
        (did(*FIRST_TWO, asks("b", LEND), calls(LEND, failed=True), accessible=[LEND]), True, "tool_use"),
        (did(*FIRST_TWO, asks("b", LEND), calls(TIDE), accessible=[LEND]), True, "tool_use"),
        (did(calls(TIDE), *FIRST_TWO, asks("b", LEND), accessible=[LEND]), True, "other"),
        (did(*FIRST_TWO, asks("b", LEND), outcome="steps", accessible=[LEND]), True, "other"),
        (did(*FIRST_TWO, asks("b", LEND), calls(LEND), outcome="deadline"), True, "other"),
        (did(*FIRST_TWO, asks("b", LEND), calls(LEND)), True, None),
    ],
)
async def test_a_failure_has_its_earliest_cause(task, done, found, expected):
    async def finds(call):
        return found

    assert await category(done, task, finds) == expected
    assert succeeded(done, task) == (expected is None)


async def test_with_all_tools_only_what_is_done_with_them_can_fail(task):
    assert await category(did(calls(WATER), calls(SOW)), task, None) == "other"
    assert await category(did(calls(WATER), calls(TIDE), accessible=task.gold), task, None) == "tool_use"


# The evaluation


SETTINGS = AgentSettings(llm="oracle", context=1024)


async def evaluated(tasks, methods, journal, executor=None):
    made = executor or (lambda task: Oracle(task, count))
    return await evaluate_agent({"team": tasks}, methods, made, SETTINGS, journal, count)


async def test_methods_stand_beside_each_other_on_the_same_tasks(root):
    methods = [Method("router", Words(ALL_FOUND)), Method("dense", Words({})), Method("all", None)]
    report = await evaluated(tasks_of(root), methods, Journal())
    rows = {row["method"]: row for row in report["agent"]}
    assert [rows[name]["success"] for name in ("router", "dense")] == [1.0, 0.0]
    assert rows["router"]["interval"] == (1.0, 1.0)
    assert (rows["router"]["steps"], rows["router"]["calls"], rows["router"]["accessible"]) == (7, 3, 3)
    assert rows["dense"]["discovery"] == 2
    assert rows["dense"]["gold_called"] == 0
    # Twelve tools do not fit 1,024 tokens; as many as fit are given.
    [context] = report["agent_context"]
    assert 0 < context["given"] < context["tools"] == 12
    assert context["tokens_of_all"] > 768
    assert rows["all"]["accessible"] == context["given"]
    against = {row["baseline"]: row["difference"] for row in report["agent_comparisons"]}
    assert list(against) == ["dense", "all"]
    assert against["dense"] == 1.0
    assert [episode["task"] for episode in report["episodes"]] == ["held_1/0", "held_1/1"] * 3


async def test_an_interrupted_evaluation_goes_on_and_says_the_same(root, tmp_path):
    tasks, path = tasks_of(root), tmp_path / "runs.jsonl"
    methods = [Method("router", Words(ALL_FOUND)), Method("all", None)]
    whole = await evaluated(tasks, methods, Journal())
    made = []

    def failing(task):
        made.append(task.id)
        if len(made) == 2:
            raise EngineUnavailableError("gone")
        return Oracle(task, count)

    journal = Journal(path)
    with pytest.raises(EngineUnavailableError):
        await evaluated(tasks, methods, journal, failing)
    journal.close()
    journal = Journal(path)
    assert await evaluated(tasks, methods, journal, failing) == whole
    assert made == ["held_1/0", "held_1/1", "held_1/1", "held_1/0", "held_1/1"]
    assert await evaluated(tasks, methods, journal, None) == whole
    journal.close()


@pytest.fixture
def command_line(root, tiny_llama, tiny_embedder):
    file = root / "profile.yaml"
    profile = {
        "model": {"path": str(tiny_llama), "name": "tiny"},
        "engine": {"dtype": "float32", "threads": 1},
        "prefilter": {"embedder": str(tiny_embedder), "k": 4},
    }
    file.write_text(yaml.safe_dump(profile))
    app = typer.Typer()
    app.command()(command)
    fixed = ["--agent", "--data", root / "runs", "--recipe", root / "recipe.yaml", "--config", file]
    return lambda *words: CliRunner().invoke(app, [*map(str, [*fixed, *words])])


def test_the_command_compares_methods_with_the_oracle(command_line, root):
    out, page = root / "report.json", root / "report.md"
    words = ["--methods", "router,bm25,dense-query,all", "--llm", "oracle", "--json", out, "--markdown", page]
    done = command_line(*words)
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert [(row["method"], row["n"]) for row in report["agent"]] == [
        ("router", 2), ("bm25", 2), ("dense-query", 2), ("all", 2),
    ]  # fmt: skip
    assert report["agent"][3]["success"] == 1.0  # twelve tools fit the context
    assert report["settings"]["llm"] == "oracle"
    assert "| team_trajectories | all | 2 | 1.000 |" in page.read_text()
    assert "query formulation | discovery | tool use | reasoning / other" in page.read_text()
    runs = out.with_suffix(".runs.jsonl").read_text()
    assert command_line(*words).exit_code == 0
    assert json.loads(out.read_text()) == report
    assert out.with_suffix(".runs.jsonl").read_text() == runs


def test_the_command_runs_any_chat_model(command_line, root):
    with chat_server.serving() as chat:
        chat.respond = lambda body: Reply("I will not.")
        out = root / "report.json"
        words = ["--methods", "bm25", "--llm-url", chat.url, "--llm-model", "idle", "--json", out]
        done = command_line(*words)
    assert done.exit_code == 0, done.output
    [row] = json.loads(out.read_text())["agent"]
    assert (row["success"], row["query_formulation"], row["prompt_tokens"]) == (0.0, 2, 200)
    assert chat.bodies[0]["temperature"] == 0
    assert chat.bodies[0]["tools"][0]["function"]["name"] == "discover"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--agent needs the model that executes"),
        (["--llm", "gpt"], "--agent needs the model that executes"),
        (["--llm-url", "http://x/v1"], "--agent needs the model that executes"),
        (["--llm", "oracle", "--methods", "guess"], "unknown method 'guess' for an agent"),
        (["--llm", "oracle", "--sets", "team"], "should be TRAJECTORIES=CATALOGUE"),
        (["--llm", "oracle", "--repeat", "2"], "--agent goes without"),
    ],
)
def test_the_command_says_what_is_wrong(command_line, words, message):
    done = command_line(*words)
    assert done.exit_code != 0
    assert message in done.output.replace("\n", "")
    assert "Traceback" not in done.output
