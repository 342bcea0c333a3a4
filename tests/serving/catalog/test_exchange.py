from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from prompts import Candidate
from serving.catalog.entry import Chain, Entry
from serving.catalog.exchange import (
    Imported,
    chains_from_trajectories,
    import_chains,
    import_enrichment,
    read_chains,
    read_enrichment,
    write_chains,
    write_enrichment,
)
from serving.catalog.store import Store
from tests.serving.catalog.enrichment import CATALOG, candidates, filled

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await filled(tmp_path, candidates(4))
    yield store
    await store.close()


def write(path: Path, *lines: Any) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["enrichment.jsonl", "deep/enrichment.jsonl.gz"])
async def test_enrichment_is_taken_over_and_given_out_the_same(store: Store, tmp_path: Path, name: str) -> None:
    made = {"000": (("send a letter", "писать 信"), ("send letters",)), "002": (("only this",), ())}
    await store.put_enrichment(CATALOG, made)
    path = tmp_path / name
    assert write_enrichment(path, (await store.changes(CATALOG, 0)).entries) == 2
    assert [json.loads(line)["id"] for line in _lines(path)] == ["000", "002"]
    other = await filled(_made(tmp_path / "other"), candidates(4))
    assert await import_enrichment(other, CATALOG, path) == Imported(2, ())
    found = {entry.candidate.id: (entry.queries, entry.intentions) for entry in await other.get(CATALOG, list(made))}
    assert found == made
    assert [path.name for path in path.parent.iterdir() if "partial" in path.name] == []
    await other.close()


def _lines(path: Path) -> list[bytes]:
    return (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).splitlines()


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_the_same_content_is_the_same_bytes(tmp_path: Path) -> None:
    entries = [Entry(Candidate("a", "a"), queries=("q",))]
    for name in ("one.gz", "two.gz"):
        write_enrichment(tmp_path / name, entries)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


async def test_ids_that_the_catalogue_does_not_have_are_told(store: Store, tmp_path: Path) -> None:
    lines = [{"id": "000", "queries": ["q"], "more": 1}, "", {"id": "gone"}, {"id": "001", "intentions": ["i"]}]
    assert await import_enrichment(store, CATALOG, write(tmp_path / "e.jsonl", *lines)) == Imported(2, ("gone",))
    assert [(e.queries, e.intentions) for e in await store.get(CATALOG, ["000", "001"])] == [(("q",), ()), ((), ("i",))]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "EOF"),
        ("[]", "the line: .*object"),
        ({"queries": []}, "id: Field required"),
        ({"id": ""}, "id: "),
        ({"id": "a", "queries": "q"}, "queries: .*array"),
        ({"id": "a", "queries": [1]}, r"queries\.0: .*string"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: Any, fault: str) -> None:
    path = write(tmp_path / "e.jsonl", {"id": "x"}, line)
    with pytest.raises(ValueError, match=rf"e\.jsonl:2: .*{fault}"):
        list(read_enrichment(path))


def test_a_file_that_is_not_there_or_torn_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*none"):
        list(read_enrichment(tmp_path / "none.jsonl"))
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(b'{"id": "a"}\n' * 100)[:-12])
    with pytest.raises(ValueError, match=r"cannot read .*torn"):
        list(read_enrichment(torn))


@pytest.mark.parametrize("name", ["chains.jsonl", "chains.jsonl.gz"])
async def test_chains_are_taken_over_whole_or_not_and_given_out_the_same(
    store: Store, tmp_path: Path, name: str
) -> None:
    chains = [Chain("first one thing", ("000", "001")), Chain("then another", ("002", "gone", "003"))]
    path = tmp_path / name
    assert write_chains(path, chains) == 2
    assert read_chains(path) == chains
    assert await import_chains(store, CATALOG, read_chains(path)) == Imported(1, ("gone",))
    assert await import_chains(store, CATALOG, read_chains(path)) == Imported(1, ("gone",))
    assert await store.chains(CATALOG) == chains[:1]
    assert await import_chains(store, CATALOG, []) == Imported(0, ())


def said(*calls: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": "{}"} for name in calls]}


def test_a_trajectory_is_a_chain_of_its_tools_in_order(tmp_path: Path) -> None:
    user = {"role": "user", "content": "where is my parcel"}
    answered = {"role": "tool", "name": "track", "content": "lost"}
    lines = [
        {"task": "A parcel", "group": "g", "messages": [user, said("find", "track"), answered, said("track"),
                                                        answered, said("refund"), said("track")]},
        {"task": "Only one", "group": "g", "messages": [user, said("track"), said("track")]},
        {"task": "Nothing", "group": "g", "messages": [user]},
        {"task": "Nobody asks", "messages": [said("a"), said("b")]},
    ]  # fmt: skip
    assert chains_from_trajectories(write(tmp_path / "t.jsonl.gz", *lines)) == [
        Chain("where is my parcel", ("find", "track", "refund", "track")),
        Chain("Nobody asks", ("a", "b")),
    ]
