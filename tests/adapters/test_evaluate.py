"""Whole evaluations of the small world, through real routers and prefilters with tiny models."""

import asyncio
import dataclasses
import json
from collections import Counter

import pytest
import typer
import yaml
from typer.testing import CliRunner

from adapters.answers import AnswerStore
from adapters.commands_eval import evaluate as command
from adapters.evaluate import Settings, evaluate
from adapters.methods import METHODS, Parts
from adapters.package import make_manifest
from adapters.questions import read_set
from adapters.report import markdown, sections
from serving.config import Config
from serving.types import EngineError, RouteRequest
from tests.adapters.conftest import CATALOGUE, call, request, write_lines

pytestmark = pytest.mark.anyio

CONVERSATION = [
    {"role": "user", "content": "tend the garden"},
    call("garden/water_bed", target=1),
    {"role": "tool", "name": "garden/water_bed", "content": "wet"},
    {"role": "user", "content": "and the other bed"},
]


@pytest.fixture
def profile(tiny_llama, tiny_embedder):
    return {
        "model": {"path": str(tiny_llama), "name": "tiny"},
        "engine": {"dtype": "float32", "threads": 1},
        "prefilter": {"embedder": str(tiny_embedder), "k": 4},
    }


@pytest.fixture
async def start(profile):
    """Makes methods with all their parts running."""
    made = []

    async def started(*names, queries=None, **model):
        config = Config.model_validate({**profile, "model": {**profile["model"], **model}})
        parts = Parts(config, queries=queries, make_chat=lambda name, retriever: None)
        methods = [parts.method(name) for name in names]
        made.append(parts)
        await parts.start()
        return methods

    yield started
    for parts in made:
        await parts.close()


@pytest.fixture
def small(world):
    """A set with and without history, of which one case repeats its last call, and one where nothing fits."""
    write_lines(world / "sets/small/catalog.jsonl", CATALOGUE)
    lines = [
        request("plain", "Please mow lawn", ["garden/mow-lawn"]),
        request("repeat", "and the other bed", ["garden/water_bed"], query_pos=3, history=CONVERSATION[:3],
                repeats_last_call=True),
        request("next", "and the other bed", ["library/lend_book"], query_pos=3, history=CONVERSATION[:3]),
        request("none", "sing", [], candidates=["harbour/readTide"]),
    ]  # fmt: skip
    write_lines(world / "sets/small/cases.jsonl", lines)
    return read_set(world / "sets", "small")


async def answers(method, set_, k=4):
    return {case.case_id: await method.answer(set_.main(case, k), case.case_id) for case in set_.cases}


async def test_retrieval_ranks_the_whole_pool_whatever_k(start, small):
    for method in await start("bm25", "dense", "fused"):
        answer = (await answers(method, small))["plain"]
        assert sorted(answer.ranking) == sorted(line["id"] for line in CATALOGUE)
        assert (answer.kept, answer.none_probability, answer.prompt_tokens) == (0, None, 0)
        assert answer.chosen == answer.ranking[0]
        assert answer.ms > 0
    assert answer.ranking[0] == "garden/mow-lawn"


async def test_bm25_reads_the_history_and_its_query_variant_does_not(start, small):
    whole, query = await start("bm25", "bm25-query")
    assert (await answers(whole, small))["repeat"].ranking[0] == "garden/water_bed"
    assert (await answers(query, small))["repeat"].score < (await answers(whole, small))["repeat"].score


async def test_generated_queries_help_the_search_and_reach_no_model(start, small):
    queries = {"library/returnBook": ["sing and hum a song"]}
    [plain] = await start("bm25")
    [enriched, router] = await start("bm25", "router", queries=queries)
    case = small.cases[-1]
    everywhere = read_question(small, case)
    assert (await enriched.answer(everywhere, "k")).ranking[0] == "library/returnBook"
    assert (await plain.answer(everywhere, "k")).score < (await enriched.answer(everywhere, "k")).score
    answer = await router.answer(everywhere, "k")
    assert "library/returnBook" in answer.ranking[: answer.kept]
    [without] = await start("router")
    only = small.main(case, 4)
    assert (await router.answer(only, "k")).prompt_tokens == (await without.answer(only, "k")).prompt_tokens


def read_question(set_, case):
    """The case over the whole catalogue."""
    return dataclasses.replace(set_.main(case, 4), pool=set_.pool(set_.cases[0]))


async def test_a_router_answers_as_route_does_and_the_prefilters_rest_stands_behind(start, small):
    router, fused = await start("router", "fused")
    case = small.cases[0]
    question = small.main(case, 4)
    answer = await router.answer(question, "k")
    decision = await router.router.route(RouteRequest(case.messages, question.pool.candidates, k=4, coverage=0.9))
    kept = [ranked.candidate.id for ranked in decision.ranking]
    assert answer.kept == 4
    assert list(answer.ranking[:4]) == kept
    assert answer.probabilities == pytest.approx([ranked.probability for ranked in decision.ranking], abs=1e-5)
    assert sum(answer.probabilities) + answer.none_probability == pytest.approx(1)
    assert answer.chosen == (decision.chosen.candidate.id if decision.chosen else None)
    assert list(answer.prediction_set) == list(decision.prediction_set)
    assert answer.prompt_tokens == decision.prompt_tokens
    ranking = (await fused.answer(question, "k")).ranking
    assert set(answer.ranking[:4]) == set(ranking[:4])
    assert answer.ranking[4:] == ranking[4:]


async def test_none_is_in_the_set_exactly_when_the_candidates_do_not_reach_the_coverage(start, small):
    [router] = await start("router")
    answer = await router.answer(small.main(small.cases[0], 4), "k")
    mass = sum(p for id_, p in zip(answer.ranking, answer.probabilities, strict=False) if id_ in answer.prediction_set)
    assert answer.set_has_none == (mass < 0.9)


async def test_no_history_asks_less_of_the_same(start, small):
    router, bare = await start("router", "router-no-history")
    whole, without = await answers(router, small), await answers(bare, small)
    assert without["next"].prompt_tokens < whole["next"].prompt_tokens
    assert without["plain"].prompt_tokens == whole["plain"].prompt_tokens
    # Two cases that differ in their history only: the same question without it.
    assert without["next"].probabilities == pytest.approx(without["repeat"].probabilities, abs=1e-5)


async def test_the_base_model_is_asked_as_the_adapter_is(start, small, tiny_adapter):
    router, base = await start("router", "base", adapter=str(tiny_adapter))
    [bare] = await start("router")
    case = small.main(small.cases[0], 4)
    adapted, based, plain = [await method.answer(case, "k") for method in (router, base, bare)]
    assert based.probabilities == pytest.approx(plain.probabilities, abs=1e-5)
    assert adapted.probabilities != pytest.approx(based.probabilities, abs=1e-3)
    assert adapted.prompt_tokens == based.prompt_tokens
    assert router.fingerprint != bare.fingerprint


@pytest.fixture(scope="module")
def tiny_adapter(tiny_llama, tmp_path_factory):
    """The tiny model and a LoRA adapter for it whose matrices are filled: it changes what the model says."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_llama), LoraConfig(r=2, target_modules=["q_proj", "down_proj"])
    )
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    folder = tmp_path_factory.mktemp("adapter") / "tiny-router"
    model.save_pretrained(folder)
    profile = Config.model_validate(
        {
            "model": {"name": "tiny", "path": str(tiny_llama), "adapter": str(folder)},
            "engine": {"dtype": "float32", "threads": 1},
        }
    )
    asyncio.run(make_manifest(profile)).save(folder)
    return folder


async def test_repeating_the_last_tool(start, small):
    [method] = await start("repeat-last")
    chosen = {case_id: (answer.ranking, answer.chosen) for case_id, answer in (await answers(method, small)).items()}
    last = (("garden/water_bed",), "garden/water_bed")
    assert chosen == {"plain": ((), None), "repeat": last, "next": last, "none": ((), None)}


def test_an_unknown_method_is_named(profile):
    parts = Parts(Config.model_validate(profile), make_chat=lambda name, retriever: None)
    with pytest.raises(ValueError, match="unknown method 'bm52'; known are router, "):
        parts.method("bm52")


ALL = Settings(k=3, repeat=2, abstention=True, shuffles=2, poison=2, sweep=(2, 5, None), concurrency=3)


async def test_every_experiment_of_every_method(start, small):
    methods = await start(*METHODS)
    report = await evaluate([small], methods, ALL, AnswerStore())
    assert [row["method"] for row in report["results"]] == list(METHODS)
    for row in report["results"]:
        assert row["n"] == 3
        assert {"hit@1", "recall@5", "recall@10", "recall@50", "mrr@10", "ndcg@10", "full@10", "ms_per_query"} <= set(
            row
        )
        assert row["recall@50"] == (1.0 if row["method"] != "repeat-last" else pytest.approx(1 / 3))
    routers = {"router", "router-no-history", "router-no-blend", "base"}
    for name in ("calibration", "order", "repeats"):
        assert {row["method"] for row in report[name]} == routers
    for name in ("abstention", "poisoning"):
        assert {row["method"] for row in report[name]} == set(METHODS) - {"repeat-last"}
    assert {(row["K"], row["read"]) for row in report["sweep"] if row["method"] == "router"} == {
        ("2", "all"), ("5", "all"), ("5", "3"), ("all", "all"), ("all", "3"),
    }  # fmt: skip
    assert {row["against"] for row in report["comparisons"]} == {"best retrieval", "router-no-history", "base"}
    # Pointwise: the order of candidates changes nothing but rounding.
    assert all(row["flips"] == 0 and row["moved"] < 1e-4 for row in report["order"])
    tables = sections(report)
    text = markdown("Evaluation", tables)
    assert {table.title for table in tables} == {line[3:] for line in text.splitlines() if line.startswith("## ")}
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)


async def test_a_listwise_router_is_not_asked_more_than_its_labels(start, world):
    crowd = [{"id": f"x{i}", "name": f"x{i}", "description": f"number {i}"} for i in range(60)]
    write_lines(world / "sets/crowd/catalog.jsonl", crowd)
    write_lines(world / "sets/crowd/cases.jsonl", [request("one", "number 7", ["x7"])])
    methods = await start("router", readout="listwise")
    set_ = read_set(world / "sets", "crowd")
    report = await evaluate([set_], methods, Settings(k=5, sweep=(50, None)), AnswerStore())
    assert {(row["K"], row["read"]) for row in report["sweep"]} == {("50", "all"), ("50", "5"), ("all", "5")}


async def test_a_report_depends_on_nothing_but_seed_and_cases(start, small):
    def without_times(report):
        return json.loads(json.dumps(report), object_hook=lambda row: {k: v for k, v in row.items() if "ms" not in k})

    methods = await start("router", "fused")
    settings = Settings(k=3, repeat=3, abstention=True, shuffles=2, sweep=(5,))
    first, again = [await evaluate([small], methods, settings, AnswerStore()) for _ in range(2)]
    assert without_times(first) == without_times(again)


class Interrupted:
    """A method that fails at one question, and counts what it is asked."""

    def __init__(self, method, failing=None):
        self.name, self.kind, self.fingerprint = method.name, method.kind, method.fingerprint
        self._method, self._failing = method, failing
        self.asked = Counter()

    async def answer(self, question, key):
        if question.case.case_id == self._failing:
            raise EngineError("the engine went away")
        self.asked[question.case.case_id, question.condition] += 1
        return await self._method.answer(question, key)


async def test_an_interrupted_evaluation_goes_on_where_it_stopped(start, small, tmp_path):
    [method] = await start("bm25")
    settings = Settings(k=3, abstention=True)
    whole = Interrupted(method)
    expected = await evaluate([small], [whole], settings, AnswerStore())

    failing = Interrupted(method, "next")
    store = AnswerStore(tmp_path / "answers.jsonl")
    with pytest.raises(EngineError, match="went away"):
        await evaluate([small], [failing], settings, store)
    store.close()
    assert failing.asked

    rest = Interrupted(method)
    store = AnswerStore(tmp_path / "answers.jsonl")
    report = await evaluate([small], [rest], settings, store)
    assert failing.asked + rest.asked == whole.asked
    assert [row["hit@1"] for row in report["results"]] == [row["hit@1"] for row in expected["results"]]

    nothing = Interrupted(method)
    assert await evaluate([small], [nothing], settings, store) == report
    store.close()
    assert not nothing.asked


@pytest.fixture
def run(profile, tmp_path):
    """The command line, with the tiny profile."""
    file = tmp_path / "profile.yaml"
    file.write_text(yaml.safe_dump(profile))
    app = typer.Typer()
    app.command()(command)
    return lambda *words: CliRunner().invoke(app, [*map(str, words), "--config", str(file)])


def test_the_command_writes_what_others_read(run, small, world, tmp_path):
    report = tmp_path / "out/report.json"
    report.parent.mkdir()
    words = ["--data", world / "sets", "--sets", "small,tasks", "--methods", "bm25,repeat-last", "--k", 5, "--limit", 4]
    result = run(*words, "--json", report, "--markdown", tmp_path / "report.md", "--plots", tmp_path / "plots")
    assert result.exit_code == 0, result.output
    rows = json.loads(report.read_text())["results"]
    assert [(row["set"], row["method"]) for row in rows] == [
        ("small", "bm25"), ("small", "repeat-last"), ("tasks", "bm25"), ("tasks", "repeat-last"),
    ]  # fmt: skip
    assert rows[2]["n"] == 4
    assert "| small | bm25 | 3 |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "plots/results.png").read_bytes().startswith(b"\x89PNG")
    answers = report.with_suffix(".answers.jsonl").read_text()
    assert run(*words, "--json", report).exit_code == 0
    assert report.with_suffix(".answers.jsonl").read_text() == answers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sets", "missing"], "missing/catalog.jsonl"),
        (["--sets", "tasks", "--methods", "guess"], "unknown method 'guess'"),
        (["--sets", "tasks", "--pool", "external"], "--add names the candidates of"),
        (["--sets", "tasks", "--splits", "test"], "its splits: all"),
        (["--sets", "tasks", "--methods", "openai:model"], "must be openai:MODEL@URL"),
    ],
)
def test_the_command_says_what_is_wrong(run, world, words, message):
    result = run("--data", world / "sets", *words)
    assert result.exit_code != 0
    assert message in result.output.replace("\n", "")
    assert "Traceback" not in result.output
