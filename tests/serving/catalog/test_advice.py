"""Advice with the shipped embedder: the thresholds belong to it."""

from __future__ import annotations

import json
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from prompts import Candidate, PromptTokenizer
from serving.catalog.advice import Advice, Criteria, advise, words
from serving.catalog.advice_report import advice_tables
from serving.catalog.embeddings import TextVectors
from serving.prefilter.embedder import LocalEmbedder
from tests.conftest import MODELS

pytestmark = pytest.mark.anyio


class Kept:
    """A store of vectors in memory, and how many were put there."""

    def __init__(self) -> None:
        self.vectors: dict[str, dict[str, np.ndarray]] = {}
        self.put = 0

    async def embeddings(self, embedder, hashes):
        held = self.vectors.get(embedder, {})
        return {key: held[key] for key in hashes if key in held}

    async def put_embeddings(self, embedder, vectors):
        self.vectors.setdefault(embedder, {}).update(vectors)
        self.put += len(vectors)


KEPT = Kept()


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer(MODELS / "qwen3-tokenizer")


@pytest.fixture
async def embedder():
    embedder = LocalEmbedder(str(MODELS / "all-minilm-l6-v2"), threads=1)
    await embedder.start()
    yield embedder
    await embedder.close()


def tool(name: str, description: str, server: str = "billing", *parameters: str) -> Candidate:
    schema = {"type": "object", "properties": {parameter: {"type": "string"} for parameter in parameters}}
    return Candidate(f"{server}/{name}", name, description, server=server, input_schema=schema)


BILLING = [
    tool("list_open", "Lists the open invoices of a customer.", "billing", "customer"),
    tool("list_closed", "Lists the closed invoices of a customer.", "billing", "customer"),
    tool("list_draft", "Lists the draft invoices of a customer.", "billing", "customer", "since"),
    tool("create_invoice", "Creates an invoice for a customer.", "billing", "customer"),
    tool("delete_invoice", "Deletes an invoice of a customer.", "billing", "customer"),
    tool("list_users", "Lists the people who work in this company.", "billing", "customer"),
]
GIT = [
    tool("searchRepositories", "Searches for repositories on the code host.", "git-a", "query"),
    tool("merge_pull_request", "Merges a pull request into its base branch.", "git-a", "number"),
    tool("get_file", "Reads the content of a file in a repository.", "git-a", "path"),
    tool("search_repositories", "Search for repositories on the code host", "git-b", "query"),
]


async def looked_at(embedder: LocalEmbedder, tokenizer: PromptTokenizer, *candidates: Candidate, k: int = 3) -> Advice:
    return await advise(candidates, TextVectors(KEPT, embedder, "minilm"), tokenizer, k)


async def test_tools_that_differ_in_one_word_are_one_with_a_parameter(embedder, tokenizer) -> None:
    advice = await looked_at(embedder, tokenizer, *BILLING, *GIT)
    [one] = advice.consolidations
    assert (one.server, one.name, one.values) == ("billing", "list", ("closed", "draft", "open"))
    assert one.ids == ("billing/list_closed", "billing/list_draft", "billing/list_open")


@pytest.mark.parametrize(
    "changed",
    [
        tool("list_closed", "Lists the closed invoices of a customer.", "other", "customer"),
        tool("list_closed_now", "Lists the closed invoices of a customer.", "billing", "customer"),
        tool("list_closed", "Lists the closed invoices of a customer.", "billing", "page", "size", "order"),
        tool("list_closed", "Sends a postcard to the moon.", "billing", "customer"),
        Candidate("billing/list_closed", "list_closed", "Lists the closed invoices of a customer.", "agent", "billing"),
    ],
    ids=["other server", "more words", "other parameters", "other description", "no tool"],
)
async def test_what_is_not_alike_stays_apart(embedder, tokenizer, changed) -> None:
    advice = await looked_at(embedder, tokenizer, BILLING[0], changed)
    assert advice.consolidations == ()


async def test_the_same_tool_of_two_servers_is_a_near_duplicate(embedder, tokenizer) -> None:
    advice = await looked_at(embedder, tokenizer, *BILLING, *GIT)
    [group] = [group for group in advice.near_duplicates if "git-b/search_repositories" in group.ids]
    assert group.ids == ("git-a/searchRepositories", "git-b/search_repositories")
    assert group.similarity > 0.95
    assert [group.similarity for group in advice.near_duplicates] == sorted(
        (group.similarity for group in advice.near_duplicates), reverse=True
    )


async def test_duplicates_of_duplicates_are_one_group_across_blocks(embedder, tokenizer, monkeypatch) -> None:
    from serving.catalog import advice as module

    many = [tool(f"tool_{i}", f"Thing {chr(97 + i) * 5} of its own kind, number {i * 37}.", "s") for i in range(9)]
    copies = [Candidate(f"copy{i}", "search_repositories", GIT[3].description, server=f"s{i}") for i in range(4)]
    whole = await looked_at(embedder, tokenizer, *copies[:2], *many, *copies[2:])
    monkeypatch.setattr(module, "_ROWS", 3)
    blocks = await looked_at(embedder, tokenizer, *copies[:2], *many, *copies[2:])
    assert [group.ids for group in whole.near_duplicates] == [group.ids for group in blocks.near_duplicates]
    assert whole.near_duplicates[0].ids == ("copy0", "copy1", "copy2", "copy3")


async def test_descriptions_that_tell_nothing_are_told_by_their_fault(embedder, tokenizer) -> None:
    wrong = [
        tool("refund", " \n", "billing"),
        tool("void", "Voids.", "billing"),
        *(tool(f"sync_{word}", "No description available", "billing") for word in ("a", "b", "c")),
        tool("send_reminder", "Turns a picture of a cat into a watercolour painting.", "billing"),
        tool("merge_branch", "Gets the weather forecast of a city.", "", "city"),
        tool("翻译", "把一段文字翻译成另一种语言", "translate"),
        tool("译", "翻译", "translate"),
    ]
    advice = await looked_at(embedder, tokenizer, *BILLING, *GIT, *wrong)
    faults = {fault.id: fault.fault for fault in advice.descriptions}
    assert faults == {
        "billing/refund": "empty",
        "billing/void": "short",
        **{f"billing/sync_{word}": "repeated" for word in "abc"},
        "billing/send_reminder": "misleading",
        "/merge_branch": "misleading",
        "translate/译": "short",
    }
    assert [fault.id for fault in advice.descriptions] == sorted(faults)
    why = {fault.id: fault.why for fault in advice.descriptions}
    assert why["billing/sync_a"] == "3 names have the same: 'No description available'"
    assert "its server's other descriptions" in why["billing/send_reminder"]
    # What says nothing makes no duplicates and merges nothing.
    assert not {id_ for group in (*advice.near_duplicates, *advice.consolidations) for id_ in group.ids} & faults.keys()


async def test_a_description_that_reads_like_another_name_is_misleading(embedder, tokenizer) -> None:
    swapped = tool("rotate_image", "Merges a pull request into its base branch, then deletes it.", "git-a")
    advice = await looked_at(embedder, tokenizer, *GIT, swapped)
    [fault] = advice.descriptions
    assert (fault.id, fault.fault) == ("git-a/rotate_image", "misleading")
    assert "to the name 'merge_pull_request'" in fault.why


async def test_names_that_meet_on_a_surface_are_told(embedder, tokenizer) -> None:
    advice = await looked_at(
        embedder, tokenizer, tool("a b", "Adds two numbers.", "s"), tool("a_b", "Draws a map.", "s")
    )
    assert advice.collisions == {"s__a_b": ("s/a b", "s/a_b")}


async def test_tokens_are_those_of_whole_schemas(embedder, tokenizer) -> None:
    advice = await looked_at(embedder, tokenizer, *BILLING, *GIT)
    lengths = sorted(
        len(tokenizer.text(json.dumps({"type": "function", "function": {
            "name": one.name, "description": one.description, "parameters": one.input_schema}})))
        for one in (*BILLING, *GIT)
    )  # fmt: skip
    assert advice.tokens.catalogue == sum(lengths)
    assert advice.tokens.exposed == round(3 * sum(lengths) / 10)
    assert advice.tokens.most == sum(lengths[-3:])
    assert (advice.candidates, advice.servers) == (10, 3)


async def test_a_catalogue_smaller_than_k_or_empty_is_no_fault(embedder, tokenizer) -> None:
    one = await looked_at(embedder, tokenizer, GIT[0], k=5)
    assert one.tokens.catalogue == one.tokens.exposed == one.tokens.most > 0
    none = await looked_at(embedder, tokenizer)
    assert (none.tokens.catalogue, none.candidates, none.descriptions) == (0, 0, ())


async def test_vectors_are_made_once(embedder, tokenizer) -> None:
    await looked_at(embedder, tokenizer, *GIT)
    before = KEPT.put
    told: list[int] = []
    vectors = TextVectors(KEPT, embedder, "minilm", told.append)
    await advise(GIT, vectors, tokenizer)
    assert (KEPT.put, sum(told)) == (before, 7)  # three names, four descriptions: one name stands twice


async def test_it_is_plain_json_and_a_table(embedder, tokenizer) -> None:
    many = [tool(f"[red]t{i}[/", f"{i}", f"s{i}") for i in range(30)]
    advice = await looked_at(embedder, tokenizer, *BILLING, *GIT, *many)
    read = json.loads(json.dumps(advice.as_json()))
    assert read["consolidations"][0]["values"] == ["closed", "draft", "open"]
    assert read["criteria"]["near_duplicate"] == Criteria().near_duplicate
    console = Console(width=160, file=StringIO())
    console.print(advice_tables(advice))
    text = console.file.getvalue()
    for part in ("Near-duplicates", "list(closed | draft | open)", "30, the first 20", "s0/[red]t0[/", "30 short"):
        assert part in text
    empty = Console(width=160, file=StringIO())
    empty.print(advice_tables(await looked_at(embedder, tokenizer)))
    assert "Near-duplicates" not in empty.file.getvalue()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("list_openIssues", ["list", "open", "issues"]),
        ("HTMLParser2-run", ["html", "parser", "2", "run"]),
        ("get.user/by id", ["get", "user", "by", "id"]),
        ("найти_рейс", ["найти", "рейс"]),
        ("___", []),
    ],
)
def test_words_of_a_name(name: str, expected: list[str]) -> None:
    assert words(name) == expected
