"""The whole data factory against a real HTTP server whose canned answers stand in for an LLM (factory.py)."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from functools import partial

import pytest
from typer import Typer
from typer.testing import CliRunner

from adapters.cases import build_cases
from adapters.commands_synthesise import synthesise
from adapters.datasets import file_sha256, read_dataset
from adapters.mixture import CasesRecipe
from adapters.synthesis_report import write_report
from serving.llm import Prices, Usage
from serving.types import EngineUnavailableError
from tests.adapters.conftest import toy_embed, write_lines
from tests.adapters.factory import CATALOGUE, SETTINGS, play_roles, run, written
from tests.conftest import MODELS, ROOT
from tests.serving.chat_server import Reply, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def chat():
    with serving() as server:
        server.respond = play_roles
        yield server


def lines(folder, name):
    return [json.loads(line) for line in (folder / "out" / name).read_text().splitlines()]


async def test_a_catalogue_becomes_a_data_set(chat, tmp_path):
    made, _ = await run(tmp_path, chat.url)
    dataset = read_dataset(tmp_path / "out")
    assert len(dataset.candidates) == 13 + SETTINGS.mutants
    assert dataset.candidates == made.dataset.candidates
    assert len(made.trajectories.kept) == SETTINGS.count
    golds = [case for case in dataset.cases if case.gold]
    assert len(golds) == sum(len(one.called) for one in made.trajectories.kept)
    # Each step is a case, and it shows everything that came before it and nothing that came after.
    for number, trajectory in enumerate(made.trajectories.kept):
        own = [case for case in dataset.cases if case.group == f"synthetic/{number}"]
        steps = [i for i, message in enumerate(trajectory.messages) if message.role == "assistant"]
        assert [case.messages for case in own] == [tuple(trajectory.messages[:i]) for i in steps]
        said = [tuple(call.name for call in trajectory.messages[i].tool_calls) for i in steps]
        assert [case.gold for case in own] == said
        assert set(trajectory.called) <= set(trajectory.subset)
        assert len({case.split for case in own}) == 1
    assert {case.split for case in dataset.cases} == {"train", "dev"}
    assert {"failure", "empty", "change"} == {twist for one in made.trajectories.kept for twist in one.twists}
    assert len(lines(tmp_path, "rejected.jsonl")) == len(made.trajectories.rejected) > 0


async def test_the_cases_train_an_adapter_with_the_recipe_of_all_others(chat, tmp_path):
    await run(tmp_path, chat.url)
    source = {"path": "out", "licence": "ours", "train": 40, "dev": 10}
    manifest = build_cases(CasesRecipe(sources={"synthetic": source}), tmp_path, tmp_path / "cases", toy_embed)
    assert manifest["sources"]["synthetic"]["train"] > 10


async def test_the_manifest_holds_what_every_stage_read_and_wrote(chat, tmp_path):
    await run(tmp_path, chat.url)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert list(manifest["stages"]) == ["graph", "mutation", "supervision", "trajectories"]
    known = {"given.jsonl": file_sha256(tmp_path / "given.jsonl")}
    known |= {name: file_sha256(tmp_path / "out" / name) for name in written(tmp_path)}
    for stage in manifest["stages"].values():
        assert stage["wrote"]
        assert (stage["read"] | stage["wrote"]).items() <= known.items()
    assert manifest["settings"]["count"] == SETTINGS.count


async def test_the_same_answers_and_seed_give_the_same_bytes(chat, tmp_path):
    await run(tmp_path, chat.url)
    first = written(tmp_path)
    asked = len(chat.bodies)
    # Nothing is asked again: the second run reads the journal, in another order of events.
    _, asker = await run(tmp_path, chat.url, concurrency=1)
    assert len(chat.bodies) == asked == len({json.dumps(body, sort_keys=True) for body in chat.bodies})
    assert asker.llm.spent.calls == 0
    assert written(tmp_path) == first


async def test_another_seed_makes_other_data(chat, tmp_path):
    import dataclasses

    await run(tmp_path, chat.url)
    first = written(tmp_path)
    await run(tmp_path, chat.url, dataclasses.replace(SETTINGS, seed=1))
    assert written(tmp_path)["cases.jsonl.gz"] != first["cases.jsonl.gz"]


async def test_an_endpoint_that_ends_is_said_and_the_next_run_goes_on(chat, tmp_path):
    def ending(body):
        return play_roles(body) if len(chat.bodies) < 40 else Reply(status=401, body={"error": {"message": "no money"}})

    chat.respond = ending
    with pytest.raises(EngineUnavailableError, match="no money"):
        await run(tmp_path, chat.url)
    answered = len((tmp_path / "journal.jsonl").read_text().splitlines())
    chat.respond = play_roles
    before = len(chat.bodies)
    _, asker = await run(tmp_path, chat.url)
    assert asker.llm.replayed.calls >= answered > 30
    assert len(chat.bodies) - before == asker.llm.spent.calls


async def test_an_answer_that_never_is_of_the_schema_is_counted_once_and_for_all(chat, tmp_path):
    def stubborn(body):
        schema = body["response_format"]["json_schema"]["schema"]["properties"]
        return Reply("I would rather not.") if "score" in schema else play_roles(body)

    chat.respond = stubborn
    made, asker = await run(tmp_path, chat.url, corrections=0)
    assert made.trajectories.kept == []
    assert made.trajectories.reasons["no answer of the schema"] > SETTINGS.count
    assert made.dataset.cases == ()
    before = len(chat.bodies)
    _, again = await run(tmp_path, chat.url, corrections=0)
    assert len(chat.bodies) == before
    assert again.failures == asker.failures


async def test_the_report_says_what_was_made_beside_the_papers_figures(chat, tmp_path):
    made, asker = await run(tmp_path, chat.url)
    report = write_report(made, tmp_path / "out", asker.llm, Prices(1.0, 2.0), lambda text: len(text.split()))
    text = report.read_text()
    assert f"| candidates | {13 + SETTINGS.mutants} | 2,005 |" in text
    assert f"| cases | {sum(bool(case.gold) for case in made.dataset.cases)} | 15,092 |" in text
    for reason, count in made.trajectories.reasons.items():
        assert f"| {reason} | {count} |" in text
    assert f"| this run | {asker.llm.spent.calls:,} |" in text
    for name in ("graph.png", "trajectories.png"):
        assert f"]({name})" in text
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def command(folder, *more):
    app = Typer()
    app.command()(synthesise)
    write_lines(folder / "given.jsonl", CATALOGUE)
    (folder / "profile.yaml").write_text(
        f"model: {{path: {MODELS / 'smollm2-135m-instruct'}}}\n"
        f"prefilter: {{embedder: {MODELS / 'all-minilm-l6-v2'}}}\n"
        "llm: {input_price: 1.0, output_price: 2.0}\n"
    )
    arguments = ["--catalogue", folder / "given.jsonl", "--count", 2, "--out", folder / "out", *more]
    result = CliRunner().invoke(app, list(map(str, [*arguments, "--config", folder / "profile.yaml"])))
    return result.exit_code, " ".join(result.output.split())


def test_the_command_makes_cases_and_a_report(chat, tmp_path):
    asked = ("--llm-url", chat.url, "--llm-model", "canned", "--mutations", 1, "--score", 1, "--dev", 0.5)
    code, said = command(tmp_path, *asked)
    assert code == 0, said
    assert "2 trajectories, " in said
    report = (tmp_path / "out/report.md").read_text()
    assert "| candidates made by mutation | 1 |" in report
    spent = Usage(len(chat.bodies), 100 * len(chat.bodies), 40 * len(chat.bodies), 10 * len(chat.bodies))
    assert f"| {spent.cost(Prices(1.0, 2.0)):.2f} |" in report
    assert len(read_dataset(tmp_path / "out").cases) > 4
    before = len(chat.bodies)
    assert command(tmp_path, *asked)[0] == 0
    assert len(chat.bodies) == before


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        ((), 2, "give --llm-model"),
        (("--llm-model", "canned", "--dev", 0.6, "--test", 0.4), 2, "leave nothing to train on"),
        (("--llm-model", "canned", "--llm-url", "http://127.0.0.1:9/v1", "--retries", 0), 1, "cannot be reached"),
    ],
)
def test_the_command_says_what_is_wrong(tmp_path, more, code, why):
    ended, said = command(tmp_path, *more)
    assert (ended, why in said) == (code, True), said


FATAL = ["mutants.jsonl", "edges.jsonl.gz", "synthetic.trajectories.jsonl", "cases.jsonl.gz"]


@pytest.mark.slow
async def test_a_run_killed_in_every_stage_loses_at_most_the_calls_in_flight(chat, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    await run(whole, chat.url)
    total = len(chat.bodies)
    chat.bodies.clear()
    while chat.arrived.acquire(blocking=False):
        pass
    rng = random.Random()  # any moment will do; which one it was is told on failure
    moments = sorted([rng.randrange(1, SETTINGS.mutants), *rng.sample(range(SETTINGS.mutants, total - 10), 3)])
    command = [sys.executable, "-m", "tests.adapters.factory", str(killed), chat.url]
    lost = 0
    for answers in moments:
        dead = threading.Event()
        finished = _finished(killed)
        chat.respond = partial(_answer_some, len(chat.bodies) + max(answers - finished, 1), chat, dead)
        process = subprocess.Popen(command, cwd=ROOT)  # noqa: ASYNC220
        for _ in range(max(answers - finished, 1) + 1):
            await asyncio.to_thread(chat.arrived.acquire)
        process.kill()
        process.wait()
        dead.set()
        while chat.arrived.acquire(blocking=False):
            pass
        lost = len(chat.bodies) - _finished(killed)
    chat.respond = play_roles
    for file in FATAL:
        done = await asyncio.to_thread(subprocess.run, [*command, file], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL, file
    await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True)
    repeated = Counter(json.dumps(body, sort_keys=True) for body in chat.bodies)
    # Only what was being answered when a run was killed may be asked again: at most four calls were under way.
    assert sum(count - 1 for count in repeated.values()) == lost <= 4 * len(moments), moments
    assert len(repeated) == total
    assert not list((killed / "out").glob("*.partial"))
    assert written(killed) == written(whole), moments


def _finished(folder):
    journal = folder / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _answer_some(last, chat, dead, body):
    """Answers until `last` requests have arrived; whoever asks then waits until the process is killed."""
    if len(chat.bodies) > last:
        dead.wait()
    return play_roles(body)
