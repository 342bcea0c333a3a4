"""Tables of how well a catalogue is searched, over the small world."""

import json

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

from adapters.commands_tables import tables
from adapters.datasets import Case, read_trajectories
from adapters.questions import EvaluationSet, Pool, Question, read_set
from adapters.searching import Found, Searcher, metric, places
from adapters.tables import (
    field_table,
    history_table,
    main_table,
    popularity_table,
    query_table,
    sweep_table,
    verifier_table,
)
from adapters.tables_report import sections
from adapters.tables_servers import Tasks, exposure_table, growth_table, server_table
from adapters.verifying import LLMVerifier, SearchVerifier, verified
from prompts import Candidate, Message
from prompts.tokenizer import PromptTokenizer
from serving.config import PrefilterConfig
from serving.llm import LLM
from serving.prefilter.embedder import Embeddings
from serving.prefilter.lexical import BM25Ranker
from tests.adapters.conftest import CATALOGUE, toy_embed, write_lines
from tests.serving.chat_server import serving


class ToyEmbedder:
    """Bags of words."""

    async def start(self): ...

    async def close(self): ...

    async def embed(self, texts):
        return toy_embed(texts)


@pytest.fixture
def searcher(smollm2):
    return Searcher(PrefilterConfig(), Embeddings(ToyEmbedder(), 2**20), PromptTokenizer(smollm2))


QUERIES = {line["id"]: (f"kindly {line['name']} zebra{i}", f"umbrella{i}") for i, line in enumerate(CATALOGUE)}


def secret(i):
    """A case that only a generated query finds."""
    id_ = CATALOGUE[i]["id"]
    return Case(f"secret{i}", "secret", (Message("user", f"umbrella{i}"),), (id_,), "one", f"secret{i}", "all")


def sets_of(world, *names, limit=None):
    return [read_set(world / "sets", name, limit=limit) for name in names]


def secrets(world):
    [tasks] = sets_of(world, "tasks")
    return EvaluationSet("secrets", tuple(map(secret, range(12))), tasks.pool)


def by(rows, **fields):
    [row] = [row for row in rows if all(row[key] == value for key, value in fields.items())]
    return row


# Metrics


def test_places_are_those_at_which_each_need_is_first_met():
    needs = [frozenset("a"), frozenset("bc"), frozenset("z")]
    assert places(["x", "c", "b", "a"], needs).tolist() == [4.0, 2.0, np.inf]
    assert places(["a", "b"], [frozenset("ab"), frozenset("ab")]).tolist() == [1.0, 2.0]


def test_metrics_of_what_was_found():
    found = [np.array([1.0, 4.0]), np.array([np.inf, 6.0])]
    assert metric("recall@5", found).tolist() == [1.0, 0.0]
    assert metric("recall@1", found).tolist() == [0.5, 0.0]
    assert metric("full@1", found).tolist() == [0.0, 0.0]
    assert metric("full@4", found).tolist() == [1.0, 0.0]
    assert metric("hit@1", found).tolist() == [1.0, 0.0]
    assert metric("mrr", found) == pytest.approx([1.0, 1 / 6])
    with pytest.raises(ValueError, match="ndcg"):
        metric("ndcg@10", found)


# Sets


@pytest.mark.anyio
async def test_the_main_table_has_every_method_with_and_without_history(world, searcher):
    rows = await main_table(searcher, sets_of(world, "tasks"), 0)
    assert [(row["method"], row["shown"]) for row in rows] == [
        (method, shown) for method in ("bm25", "dense", "fused") for shown in ("query", "history")
    ]
    for row in rows:
        assert row["n"] == 60
        assert row["recall@10"] > 0.8
        assert row["recall@1"] <= row["recall@5"] <= row["recall@10"]
        low, high = row["intervals"]["recall@1"]
        assert low <= row["recall@1"] <= high


@pytest.mark.anyio
async def test_the_same_seed_gives_the_same_rows(world, searcher):
    def untimed(rows):
        return [{key: value for key, value in row.items() if key != "ms"} for row in rows]

    sets = sets_of(world, "tasks", limit=20)
    first = await main_table(searcher, sets, 3)
    again = Searcher(searcher.config, searcher.embeddings, searcher._tokenizer)
    assert untimed(await main_table(again, sets, 3)) == untimed(first)


@pytest.mark.anyio
async def test_history_is_compared_on_the_same_cases_and_averaged_over_sets(world, searcher):
    [tasks] = sets_of(world, "tasks")
    told = tuple(
        Case(f"told{i}", "told", (Message("user", f"umbrella {line['name']}"), Message("assistant", "Sure?"),
             Message("user", "yes")), (line["id"],), "one", f"told{i}", "all")
        for i, line in enumerate(CATALOGUE)
    )  # fmt: skip
    sets = [EvaluationSet(name, told, tasks.pool) for name in ("one", "two")]
    rows = await history_table(searcher, [*sets, tasks], 0)
    assert {row["set"] for row in rows} == {"one", "two", "average"}  # `tasks` has no history
    row = by(rows, set="average", method="bm25", metric="hit@1")
    assert row["history"] == 1.0
    assert row["query"] < 0.2
    assert row["difference"] == pytest.approx(row["history"] - row["query"])
    assert row["interval"][0] > 0.5


@pytest.mark.anyio
async def test_each_field_finds_what_it_holds(world, searcher):
    [tasks] = sets_of(world, "tasks")
    rows = await field_table(searcher, [secrets(world), tasks], QUERIES, 0)
    assert by(rows, set="secrets", field="specification", method="bm25")["hit@1"] < 0.2
    assert by(rows, set="secrets", field="manual", method="bm25")["hit@1"] == 1.0
    both = by(rows, set="secrets", field="both", method="bm25")
    assert both["hit@1"] == 1.0
    assert both["hit@1_gain"]["interval"][0] > 0.5
    assert by(rows, set="tasks", field="specification", method="bm25")["hit@1_gain"]["difference"] == 0.0
    assert await field_table(searcher, [tasks], {"elsewhere": ("x",)}, 0) == []


@pytest.mark.anyio
async def test_more_queries_are_nested_and_counted(world, searcher):
    rows = await query_table(searcher, [secrets(world)], QUERIES, 0)
    bm25 = {row["queries"]: row for row in rows if row["method"] == "bm25"}
    assert list(bm25) == ["0", "1", "2", "3", "all"]
    assert [bm25[number]["kept"] for number in bm25] == [0, 12, 24, 24, 24]
    assert bm25["0"]["query_tokens"] == 0 < bm25["1"]["query_tokens"] < bm25["2"]["query_tokens"]
    assert bm25["1"]["hit@1"] < bm25["2"]["hit@1"] == bm25["all"]["hit@1"] == 1.0


@pytest.mark.anyio
async def test_a_verifier_keeps_what_it_can_tell(world, searcher):
    rows = await verifier_table(searcher, [secrets(world)], QUERIES, SearchVerifier(BM25Ranker()), 0)
    bm25 = {row["filter"]: row for row in rows if row["method"] == "bm25"}
    assert [row["verifier"] for row in bm25.values()] == ["-", "search:bm25", "search:bm25"]
    assert bm25["none"]["kept"] == bm25["none"]["written"] == 24
    assert bm25["random"]["kept"] == bm25["hard"]["kept"] == 12  # an umbrella is in no specification
    assert bm25["random"]["hit@1"] < bm25["none"]["hit@1"]


@pytest.fixture
def chat():
    with serving() as server:
        yield server


@pytest.mark.anyio
async def test_a_chat_model_is_a_verifier(chat):
    candidates = {name: Candidate(name, name) for name in ("oak", "elm", "ash")}
    llm = LLM("m", chat.url)
    kept = await verified(
        LLMVerifier(llm),
        {"oak": ("climb the oak", "climb"), "elm": ("see the ash",)},
        candidates,
        lambda source, number: [one for one in candidates.values() if one is not source][:number],
        2,
    )
    await llm.close()
    assert kept == {"oak": ("climb the oak",), "elm": ()}


@pytest.mark.anyio
async def test_the_sweep_holds_more_and_costs_more_up_to_everything(world, searcher):
    rows = await sweep_table(searcher, sets_of(world, "tasks"), {})
    assert [row["K"] for row in rows] == ["1", "3", "5", "10", "20", "50", "all"]
    for name in ("recall", "full", "tokens"):
        values = [row[name] for row in rows]
        assert values == sorted(values)
    assert rows[-1]["tokens"] == rows[-2]["tokens"]  # there are twelve
    assert rows[0]["tokens"] < rows[-1]["tokens"] / 10


@pytest.mark.anyio
async def test_popularity_is_counted_on_other_groups_only(world, searcher):
    [tasks] = sets_of(world, "tasks")
    popular = [
        Case(f"p{i}", "p", (Message("user", "x"),), (CATALOGUE[0]["id"],), "one", f"g{i}", "a") for i in range(9)
    ]
    rare = [Case("r", "p", (Message("user", "tide"),), (CATALOGUE[11]["id"],), "one", "r", "a")]
    rows = await popularity_table(searcher, [EvaluationSet("p", (*popular, *rare), tasks.pool)], {}, 4, 0)
    assert [row["route"] for row in rows] == ["hot alone", "fused", "3 hot + fused"]
    assert by(rows, route="hot alone")["recall"] == 0.9  # the rare one is hot nowhere but in its own fold
    assert by(rows, route="3 hot + fused")["recall"] == 1.0
    assert by(rows, route="fused")["recall"] < 0.9


# Trajectories


@pytest.fixture
def trajectories(world):
    """Two groups of servers, whose tasks use the same two tools of their own."""
    lines = []
    for i in range(12):
        first, second = ("garden/harvest_row", "library/findAuthor") if i % 2 else ("harbour/weighCargo",) * 2
        said = [{"role": "user", "content": "harvest row, then find author" if i % 2 else "weigh cargo"}]
        for id_ in (first, second):
            said += [{"role": "assistant", "content": "", "tool_calls": [{"name": id_, "arguments": "{}"}]},
                     {"role": "tool", "name": id_, "content": "done"}]  # fmt: skip
        lines.append({"task": "t", "group": f"team_{i % 2}", "messages": said})
    write_lines(world / "runs/tasks.trajectories.jsonl", lines)
    return read_trajectories(world / "runs/tasks.trajectories.jsonl", world / "sets/tasks")


def test_a_task_needs_the_servers_of_all_its_calls_a_step_those_of_its_own(trajectories):
    asks = Tasks(trajectories, None, 0).asks
    task = next(ask for ask in asks if ask.kind == "task" and ask.split == "team_1")
    assert task.servers == {"garden", "library"} == task.offered
    assert [message.content for message in task.messages] == ["harvest row, then find author"]
    steps = [ask for ask in asks if ask.kind != "task" and ask.trajectory == task.trajectory]
    assert [(ask.kind, ask.servers, len(ask.messages)) for ask in steps] == [
        ("step, query", {"garden"}, 1),
        ("step, history", {"garden"}, 1),
        ("step, query", {"library"}, 1),
        ("step, history", {"library"}, 3),
    ]


def test_no_chain_of_the_same_trajectory_is_known(trajectories):
    tasks = Tasks(trajectories, None, 0)
    own = ("garden/harvest_row", "library/findAuthor")
    for ask in tasks.asks:
        if ask.split == "team_1":
            assert tasks.chains(ask, own=False) == ()  # the others call one tool twice, which is no chain
            known = tasks.chains(ask, own=True)
            same_fold = [name for name in tasks.by_trajectory if tasks.folds[name] == tasks.folds[ask.trajectory]]
            odd = [name for name in same_fold if name.startswith("team_1")]
            assert known == (own,) * (6 - len(odd))
            assert ask.trajectory in odd


@pytest.mark.anyio
async def test_servers_are_found_in_all_and_in_the_tasks_own(trajectories, searcher):
    rows = await server_table(searcher, Tasks(trajectories, None, 0))
    assert len(rows) == 2 * 5 * 3
    row = by(rows, pool="restricted", asked="task", method="bm25")
    assert row["n"] == 12
    assert row["recall@5"] == row["full@5"] == row["hit@5"] == row["mrr"] == 1.0
    everywhere = by(rows, pool="global", asked="step, history", method="graph, own servers")
    assert everywhere["n"] == 24
    assert everywhere["recall@5"] == 1.0  # there are three servers


@pytest.mark.anyio
async def test_what_is_shown_costs_tokens_and_everything_holds_everything(trajectories, searcher):
    rows = await exposure_table(searcher, Tasks(trajectories, 6, 0))
    for pool in ("global", "restricted"):
        tools = [row for row in rows if row["pool"] == pool and row["shown"] == "tools"]
        assert [row["k"] for row in tools] == [1, 3, 5, 10, 20, 50]
        assert [row["tokens"] for row in tools] == sorted(row["tokens"] for row in tools)
        everything = by(rows, pool=pool, shown="everything")
        assert everything["recall"] == 1.0
        assert everything["tokens"] > tools[0]["tokens"]
    assert by(rows, pool="global", shown="everything")["tools"] == 12
    assert by(rows, pool="global", shown="servers", k=1)["tools"] == 4


@pytest.mark.anyio
async def test_what_is_shown_stays_as_small_while_a_catalogue_grows(trajectories, searcher, monkeypatch):
    monkeypatch.setattr("adapters.tables_servers.GROWTH", (4, 8, 12))
    rows = await growth_table(searcher, Tasks(trajectories, None, 0), 2)
    # Six tasks offer one server, six two; a limit that all servers keep to is the whole catalogue.
    assert [row["pool_tools"] for row in rows] == [6.0, 8.0, 12.0]
    assert rows[0]["everything_tokens"] < rows[-1]["everything_tokens"]
    assert rows[0]["tokens"] == pytest.approx(rows[-1]["tokens"], rel=0.2)


# On the command line


def test_one_command_prints_and_writes_every_table(world, trajectories, tiny_embedder, tmp_path, smollm2):
    profile = tmp_path / "profile.yaml"
    profile.write_text(
        json.dumps({"model": {"path": str(smollm2)}, "prefilter": {"embedder": str(tiny_embedder)}}), encoding="utf-8"
    )
    enrichment = tmp_path / "made.jsonl"
    write_lines(enrichment, [{"id": id_, "queries": list(texts)} for id_, texts in QUERIES.items()])
    app = Typer()
    app.command()(tables)
    out, text, plots = tmp_path / "out.json", tmp_path / "out.md", tmp_path / "plots"
    arguments = ["--data", world, "--sets", "sets/tasks,runs/team.trajectories.jsonl=sets/tasks", "--limit", 8,
                 "--enrichment", enrichment, "--trajectories", "runs/tasks.trajectories.jsonl=sets/tasks",
                 "--json", out, "--markdown", text, "--plots", plots, "--config", profile]  # fmt: skip
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    names = {"main", "history", "sweep", "popularity", "fields", "queries", "verifier", "servers", "exposure", "growth"}
    assert {name for name, rows in report.items() if rows} == {*names, "settings"}
    assert len(sections(report)) == len(names)
    assert text.read_text().count("\n## ") == len(names)
    assert {file.name for file in plots.iterdir()} == {"exposure.png", "growth.png", "sweep.png"}
    wrong = CliRunner().invoke(app, ["--data", str(world), "--tables", "mian"])
    assert wrong.exit_code == 2
    assert "mian" in wrong.output


def test_groups_are_those_of_the_cases():
    cases = [secret(1), secret(2)]
    pool = Pool((Candidate("a", "a"),))
    found = Found(tuple(Question(case, pool, "main", 1) for case in cases), (("a",), ("a",)))
    assert found.groups == ["secret1", "secret2"]
