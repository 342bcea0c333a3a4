"""Enrichment over a real store and a real HTTP server that stands in for an LLM (chat_server.py)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prompts import Candidate
from serving.catalog import enrich as module
from serving.catalog.enrich import Options
from serving.catalog.enrich_report import Report, progress_bar, report_tables
from serving.catalog.entry import Entry, Server
from serving.catalog.store import Store
from serving.llm import LLM, Prices, Usage
from serving.types import NotFoundError
from tests.serving.catalog.enrichment import CATALOG, WordEmbedder, candidates, enriched, filled
from tests.serving.chat_server import ChatServer, Reply, answer, document, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    with serving() as server:
        yield server


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await filled(tmp_path, candidates())
    yield store
    await store.close()


def asked(chat: ChatServer) -> Counter[str]:
    """How many questions of each kind arrived, by the first property of their answers."""
    return Counter(next(iter(properties(body))) for body in chat.bodies)


def properties(body: dict[str, Any]) -> dict[str, Any]:
    return body["response_format"]["json_schema"]["schema"]["properties"]


async def entries(store: Store) -> dict[str, Entry]:
    return {entry.candidate.id: entry for entry in (await store.changes(CATALOG, 0)).entries}


async def test_every_candidate_gets_queries_that_the_verifier_traces_back_and_intentions(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    await store.put_server(CATALOG, Server("server0", "About the first."))
    report = await enriched(store, chat.url, tmp_path / "journal")
    found = await entries(store)
    assert {len(entry.queries) for entry in found.values()} == {3}
    assert {len(entry.intentions) for entry in found.values()} == {3}
    assert found["000"].queries[0] == "query tool aacarol aafrank aaaa"
    assert asked(chat) == {"query_1": 12, "choice": 36, "intention_1": 12}
    assert {len(document(body)["list"]) for body in chat.bodies if "choice" in properties(body)} == {9}
    shown = [document(body)["candidate"] for body in chat.bodies if "query_1" in properties(body)]
    about = {candidate["server"]: candidate.get("about_the_server") for candidate in shown}
    assert about == {"server0": "About the first.", "server1": None, "server2": None}
    assert dataclasses.replace(report, spent=Usage()) == Report(
        considered=12, enriched=12, queries_written=36, queries_kept=36, intentions=36
    )
    assert report.spent.calls == 60


async def test_what_is_enriched_is_left_alone_and_what_has_changed_is_made_again(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    await enriched(store, chat.url, tmp_path / "journal")
    before = await entries(store)
    chat.bodies.clear()
    report = await enriched(store, chat.url, tmp_path / "journal")
    assert (report.current, report.enriched, chat.bodies) == (12, 0, [])
    changed = dataclasses.replace(before["003"].candidate, description="Something else entirely, now quite different")
    await store.upsert(CATALOG, [Entry(changed)])
    report = await enriched(store, chat.url, tmp_path / "journal")
    after = await entries(store)
    assert (report.current, report.enriched) == (11, 1)
    assert asked(chat) == {"query_1": 1, "choice": 3, "intention_1": 1}
    assert after.pop("003").queries != before.pop("003").queries
    assert after == before


async def test_what_was_imported_is_left_alone_unless_everything_is_asked_for(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    await store.put_enrichment(CATALOG, {"004": (("mine",), ())})
    report = await enriched(store, chat.url, tmp_path / "journal")
    assert (report.current, (await entries(store))["004"].queries) == (1, ("mine",))
    report = await enriched(store, chat.url, tmp_path / "journal", Options(everything=True))
    assert (report.enriched, report.spent.calls) == (12, 5)
    assert len((await entries(store))["004"].queries) == 3


async def test_a_new_database_is_filled_from_the_journal_without_a_call(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    await enriched(store, chat.url, tmp_path / "journal")
    chat.bodies.clear()
    (tmp_path / "other").mkdir()
    other = await filled(tmp_path / "other", candidates())
    report = await enriched(other, chat.url, tmp_path / "journal")
    assert (report.enriched, chat.bodies, report.spent, report.replayed.calls) == (12, [], Usage(), 60)
    assert [e.queries for e in (await entries(other)).values()] == [e.queries for e in (await entries(store)).values()]
    await other.close()


async def test_a_query_that_the_verifier_does_not_trace_back_is_refused(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    def verify(body: dict[str, Any]) -> Reply:
        if "choice" in properties(body) and "aabravo" in document(body)["message"]:
            return Reply('{"choice": 0}')
        if "choice" in properties(body) and "babravo" in document(body)["message"]:
            wrong = next(item for item in document(body)["list"] if item["name"] != "tool ba")
            return Reply(json.dumps({"choice": wrong["number"]}))
        return Reply(answer(body))

    chat.respond = verify
    report = await enriched(store, chat.url, tmp_path / "journal")
    found = await entries(store)
    assert (report.queries_refused, report.queries_kept) == (2, 34)
    assert [len(found[id_].queries) for id_ in ("000", "001", "002")] == [2, 2, 3]


async def test_one_whose_every_query_was_refused_is_not_tried_on_each_run(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    chat.respond = lambda body: Reply('{"choice": 0}' if "choice" in properties(body) else answer(body))
    await enriched(store, chat.url, tmp_path / "journal", Options(intentions=0))
    report = await enriched(store, chat.url, tmp_path / "journal", Options(intentions=0))
    assert (report.current, {entry.queries for entry in (await entries(store)).values()}) == (12, {()})


async def test_near_duplicates_and_senseless_texts_are_dropped(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    written = {
        "query_1": "please send  a\nletter to my mother today\0",
        "query_2": "please send a letter to my mother today now",
        "query_3": "x" * 500,
        "query_4": " ",
        "query_5": "what of the bird",
    }
    chat.respond = lambda body: Reply(json.dumps(written) if "query_1" in properties(body) else answer(body))
    report = await enriched(store, chat.url, tmp_path / "journal", Options(queries=5, distractors=0, intentions=0))
    kept = {entry.queries for entry in (await entries(store)).values()}
    assert kept == {("please send a letter to my mother today", "what of the bird")}
    assert (report.queries_written, report.queries_near_duplicate, asked(chat)["choice"]) == (60, 36, 0)


async def test_a_query_that_repeats_the_description_is_dropped(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    chat.respond = lambda body: Reply(json.dumps({"query_1": document(body)["candidate"]["description"] + "!"}))
    report = await enriched(store, chat.url, tmp_path / "journal", Options(queries=1, distractors=0, intentions=0))
    assert (report.queries_written, report.queries_near_duplicate) == (12, 12)


async def test_hard_distractors_are_the_most_similar_and_twins_are_none(chat: ChatServer, tmp_path: Path) -> None:
    def tool(id_: str, name: str, description: str) -> Candidate:
        return Candidate(id_, name, description, server="s")

    near = [tool(f"near{i}", f"mail {i}", "sends a letter by mail to people") for i in range(3)]
    twins = [tool(f"twin{i}", "mail", "sends a letter by mail to people") for i in range(2)]
    far = [tool(f"far{i}", f"bird{i}", f"counts feathers{i} of wings{i}") for i in range(30)]
    store = await filled(tmp_path, [*near, *twins, *far])
    await enriched(store, chat.url, tmp_path / "journal", Options(queries=1, distractors=3, hard=True, intentions=0))
    lists = [document(body)["list"] for body in chat.bodies if "choice" in properties(body)]
    near_by = {tuple(sorted(other["name"] for other in item)) for item in lists if item[0]["name"].startswith("mail")}
    assert near_by == {("mail", "mail 0", "mail 1", "mail 2")}
    assert {len(item) for item in lists} == {4}
    assert len(await store.embeddings("words", [near[0].content_hash])) == 1
    await store.close()


async def test_the_place_of_the_source_in_the_list_varies(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    await enriched(store, chat.url, tmp_path / "journal", Options(intentions=0))
    places = Counter(json.loads(answer(body))["choice"] for body in chat.bodies if "choice" in properties(body))
    assert len(places) >= 6  # of nine


async def test_missing_descriptions_are_written_first_and_others_kept(chat: ChatServer, tmp_path: Path) -> None:
    pool = [*candidates(4), Candidate("bare", "list invoices", "  ", server="server0")]
    store = await filled(tmp_path, pool)
    report = await enriched(store, chat.url, tmp_path / "journal")
    found = await entries(store)
    assert found["bare"].candidate.description == "description list invoices aaaa"
    assert [found[candidate.id].candidate for candidate in pool[:4]] == pool[:4]
    assert report.descriptions == 1
    assert document(chat.bodies[0])["others_of_the_server"] == ["tool aa", "tool da"]
    assert all(not entry.queries or "invoices" in " ".join(entry.queries) for entry in [found["bare"]])
    assert (await enriched(store, chat.url, tmp_path / "journal")).current == 5
    await store.close()


async def test_a_description_that_came_in_between_is_not_written_over(chat: ChatServer, tmp_path: Path) -> None:
    bare = Candidate("bare", "list invoices")
    store = await filled(tmp_path, [bare])
    chat.open.clear()
    run = asyncio.create_task(enriched(store, chat.url, tmp_path / "journal", Options(queries=0, intentions=0)))
    await asyncio.to_thread(chat.arrived.acquire)
    await store.upsert(CATALOG, [Entry(dataclasses.replace(bare, description="Mine."), pinned=True)])
    chat.open.set()
    report = await run
    assert (report.descriptions, (await entries(store))["bare"].candidate.description) == (0, "Mine.")
    await store.close()


async def test_a_candidate_that_is_gone_by_then_is_passed_over(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    chat.open.clear()
    run = asyncio.create_task(enriched(store, chat.url, tmp_path / "journal"))
    await asyncio.to_thread(chat.arrived.acquire)
    await store.remove(CATALOG, ["000", "001"])
    chat.open.set()
    await run
    assert set(await entries(store)) == {f"{i:03}" for i in range(2, 12)}


async def test_what_fails_is_told_and_tried_by_the_next_run(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    refused = Reply(status=400, body={"error": {"message": "too long"}})

    def respond(body: dict[str, Any]) -> Reply:
        return refused if "aabravo" in json.dumps(document(body).get("candidate", "")) else Reply(answer(body))

    chat.respond = respond
    report = await enriched(store, chat.url, tmp_path / "journal")
    assert (report.enriched, list(report.failed), report.stopped) == (11, ["000"], "")
    assert "too long" in report.failed["000"]
    chat.respond = lambda body: Reply(answer(body))
    report = await enriched(store, chat.url, tmp_path / "journal")
    assert (report.current, report.enriched, report.failed) == (11, 1, {})


async def test_an_endpoint_that_refuses_everybody_ends_the_run_with_what_is_done_kept(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    def respond(body: dict[str, Any]) -> Reply:
        if len(chat.bodies) > 25:
            return Reply(status=401, body={"error": {"message": "key expired"}})
        return Reply(answer(body))

    chat.respond = respond
    report = await enriched(store, chat.url, tmp_path / "journal", Options(chains=True))
    assert "key expired" in report.stopped
    assert 0 < report.enriched < 12
    assert sum(bool(entry.queries) for entry in (await entries(store)).values()) == report.enriched
    assert len(chat.bodies) < 25 + 5


async def test_when_all_fail_it_is_not_tried_on_every_candidate(chat: ChatServer, tmp_path: Path) -> None:
    store = await filled(tmp_path, candidates(60))
    chat.respond = lambda body: Reply(status=400, body={"error": {"message": "no such parameter"}})
    report = await enriched(store, chat.url, tmp_path / "journal")
    assert "20 candidates in a row failed" in report.stopped
    assert len(chat.bodies) < 20 + 5
    await store.close()


async def test_an_unknown_catalogue_is_said(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    await store.drop(CATALOG)
    with pytest.raises(NotFoundError, match="tools"):
        await enriched(store, chat.url, tmp_path / "journal")


async def test_a_catalogue_dropped_meanwhile_is_said_as_itself(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    chat.open.clear()
    run = asyncio.create_task(enriched(store, chat.url, tmp_path / "journal"))
    await asyncio.to_thread(chat.arrived.acquire)
    await store.drop(CATALOG)
    chat.open.set()
    with pytest.raises(NotFoundError, match="tools"):
        await run


async def test_writes_are_gathered_into_few_versions(
    store: Store, chat: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITTEN_TOGETHER", 4)
    before = await store.version(CATALOG)
    await enriched(store, chat.url, tmp_path / "journal")
    assert await store.version(CATALOG) - before == 3


async def test_chains_grow_from_queries_over_the_own_server_once(
    store: Store, chat: ChatServer, tmp_path: Path
) -> None:
    options = Options(chains=True)
    report = await enriched(store, chat.url, tmp_path / "journal", options)
    chains = await store.chains(CATALOG)
    found = await entries(store)
    assert (report.chains, len(chains)) == (12, 12)
    servers = {id_: entry.candidate.server for id_, entry in found.items()}
    for chain in chains:
        first, second = chain.tools
        assert servers[first] == servers[second]
        assert chain.query == f"{found[first].queries[0]} and then the next thing"
    chat.bodies.clear()
    assert (await enriched(store, chat.url, tmp_path / "journal", options)).chains == 0
    assert chat.bodies == []


@pytest.mark.parametrize(
    "steps",
    [(0, 0, 0, 0), (1, 0, 2, 3), (1, 1, 1, 1), (2, 3, 0, 0)],
    ids=["none", "one", "itself", "without the first"],
)
async def test_what_is_no_chain_is_not_kept(
    store: Store, chat: ChatServer, tmp_path: Path, steps: tuple[int, ...]
) -> None:
    wrong = json.dumps({"query": "all of it", **{f"step_{i}": step for i, step in enumerate(steps, start=1)}})
    chat.respond = lambda body: Reply(wrong if "step_1" in properties(body) else answer(body))
    report = await enriched(store, chat.url, tmp_path / "journal", Options(chains=True))
    assert (report.chains, await store.chains(CATALOG), report.failed) == (0, [], {})


async def test_a_chain_keeps_the_order_of_its_steps(store: Store, chat: ChatServer, tmp_path: Path) -> None:
    steps = json.dumps({"query": "all of it", "step_1": 3, "step_2": 1, "step_3": 2, "step_4": 0})
    chat.respond = lambda body: Reply(steps if "step_1" in properties(body) else answer(body))
    await enriched(store, chat.url, tmp_path / "journal", Options(chains=True))
    offered = {tuple(t["name"] for t in document(b)["tools"][:3]) for b in chat.bodies if "step_1" in properties(b)}
    names = {id_: entry.candidate.name for id_, entry in (await entries(store)).items()}
    for chain in await store.chains(CATALOG):
        third, first, second = (names[step] for step in chain.tools)
        assert (first, second, third) in offered


async def test_progress_and_cost_are_shown(store: Store, chat: ChatServer) -> None:
    bar = progress_bar()
    llm = LLM("canned", chat.url)
    prices = Prices(input=100, output=1000)
    options = Options(hard=True)
    report = await module.enrich(store, CATALOG, llm, WordEmbedder(), "words", options, prices=prices, progress=bar)
    await llm.close()
    assert [(task.description, task.completed, task.total) for task in bar.tasks] == [
        ("descriptions", 0, 0),
        ("embeddings", 12, 12),
        ("queries and intentions", 12, 12),
    ]
    assert bar.tasks[2].fields["spent"] == "60 calls, $1.20"
    report.failed["[/red]"] = "an id that rich would read as markup"
    console = Console(width=120, file=StringIO())
    console.print(report_tables(report, prices))
    text = console.file.getvalue()
    assert "[/red]: an id" in text
    assert ["this", "run", "60", "6,000", "2,400", "600", "1.20"] in [line.split() for line in text.splitlines()]
