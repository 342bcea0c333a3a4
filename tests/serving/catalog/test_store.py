from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.catalog.entry import Bearer, CatalogInfo, Chain, Entry, Server
from serving.catalog.store import IfMatch, Store
from serving.catalog.tables import KEY_BYTES
from serving.types import Candidate, ConflictError, InvalidRequestError, NotFoundError, StoreError

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"minimum": 1.5}}, "required": ["a"]}
FULL = Entry(
    Candidate(
        "weather/天气",
        "天气",
        "Прогноз погоды",
        type="agent",
        server="weather",
        input_schema=SCHEMA,
        output_schema={},
        annotations={"title": "\0"},
        tools=("x", "y"),
        tags=("one", 'a"b'),
    ),
    pinned=True,
    enabled=False,
    principals=("alice",),
    queries=("Will it rain?",),
    intentions=("know the weather",),
)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


def entry(id: str, description: str = "", server: str = "", tags: tuple[str, ...] = ()) -> Entry:
    return Entry(Candidate(id, id, description, server=server, tags=tags))


def ids(entries: object) -> list[str]:
    return [entry.candidate.id for entry in entries]  # type: ignore[attr-defined]


async def test_what_is_written_is_read(store: Store) -> None:
    assert await store.upsert("c", [FULL]) == 1
    assert await store.get("c", ["weather/天气"]) == [replace(FULL, version=1)]
    assert list((await store.get("c", ["weather/天气"]))[0].candidate.input_schema["properties"]) == ["b", "a"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5, unique_by=lambda pair: pair[0]))
async def test_any_id_is_kept_as_it_is(store: Store, texts: list[tuple[str, str]]) -> None:
    entries = [entry(id, description, server=description, tags=(description,)) for id, description in texts]
    await store.upsert("c", entries)
    keys = [id for id, _ in texts]
    assert [found.candidate for found in await store.get("c", keys)] == [known.candidate for known in entries]
    listed, after = [], None
    while True:
        page = await store.page("c", after=after, limit=2)
        listed += ids(page.entries)
        after = page.next
        if after is None:
            break
    assert listed == sorted(keys)
    for id, description in texts:
        assert id in ids((await store.page("c", tag=description, text=description, server=description)).entries)
    version = await store.remove("c", keys)
    assert (await store.changes("c", version - 1)).removed != ()
    assert (await store.changes("c")).entries == ()


@pytest.mark.parametrize(
    ("bad", "where"),
    [
        (entry("a\0b"), "candidates[1].id"),
        (entry("\ud800"), "candidates[1].id"),
        (entry(""), "candidates[1].id"),
        (entry("x" * (KEY_BYTES + 1)), "candidates[1].id"),
        (entry("x", "\0"), "candidates[1].description"),
        (entry("x", server="\udfff"), "candidates[1].server"),
        (entry("x", tags=("\ud800",)), "candidates[1].tags"),
        (Entry(Candidate("x", "x", input_schema={"a": "\ud800"})), "candidates[1]"),
        (Entry(Candidate("x", "x", input_schema={"a": print})), "candidates[1]"),
        (Entry(Candidate("x", "x", input_schema={"a": float("nan")})), "candidates[1]"),
        (Entry(Candidate("x", "x", input_schema={"a": float("-inf")})), "candidates[1]"),
    ],
    ids=range(11),
)
async def test_what_no_database_can_hold_is_refused_with_all_of_its_request(
    store: Store, bad: Entry, where: str
) -> None:
    await store.upsert("c", [entry("before")])
    with pytest.raises(InvalidRequestError) as fault:
        await store.upsert("c", [entry("good"), bad])
    assert fault.value.where == where
    assert ids((await store.changes("c")).entries) == ["before"]


async def test_json_that_could_not_be_read_again_is_refused(store: Store) -> None:
    deep: dict[str, object] = {}
    for _ in range(230):
        deep = {"a": deep}
    with pytest.raises(InvalidRequestError, match="no JSON that can be stored"):
        await store.upsert("c", [Entry(Candidate("x", "x", input_schema=deep))])


async def test_a_text_may_say_nan(store: Store) -> None:
    schema = {"description": "NaN or Infinity", "enum": [1e308]}
    await store.upsert("c", [Entry(Candidate("x", "x", input_schema=schema))])
    assert (await store.get("c", ["x"]))[0].candidate.input_schema == schema


async def test_the_longest_id_fits(store: Store) -> None:
    # Random, so that PostgreSQL cannot compress it into its index.
    random = np.random.default_rng(0)
    long = "".join(chr(code) for code in random.integers(0x4E00, 0x9FFF, KEY_BYTES // 3))
    await store.upsert("c" * 64, [entry(long, server=long)])
    assert ids(await store.get("c" * 64, [long])) == [long]


async def test_versions_rise_only_with_changes(store: Store) -> None:
    assert await store.create("c") == await store.create("c") == 1
    assert await store.upsert("c", [entry("a"), entry("b")]) == 2
    assert await store.upsert("c", [entry("a"), entry("b")]) == 2
    assert await store.upsert("c", [entry("a"), entry("b", "new")]) == 3
    assert await store.remove("c", ["nothing"]) == 3
    assert await store.remove("c", ["a", "nothing"]) == 4
    assert await store.version("c") == 4
    assert [(found.candidate.id, found.version) for found in (await store.changes("c")).entries] == [("b", 3)]


async def test_changes_are_what_came_after(store: Store) -> None:
    await store.upsert("c", [entry("a"), entry("b"), entry("c")])
    seen = await store.version("c")
    await store.upsert("c", [entry("d"), replace(entry("a"), enabled=False)])
    await store.remove("c", ["b", "d", "c"])
    await store.upsert("c", [entry("c")])
    changes = await store.changes("c", seen)
    assert changes.version == await store.version("c")
    assert ids(changes.entries) == ["a", "c"]
    assert not changes.entries[0].enabled
    assert sorted(changes.removed) == ["b", "d"]
    assert (await store.changes("c", changes.version)).entries == ()
    assert (await store.changes("c")).removed == ()


async def test_a_long_catalogue_comes_in_parts_of_one_read(store: Store, url: str) -> None:
    await store.upsert("c", [entry(f"{i:04}") for i in range(1_200)])
    async with contextlib.aclosing(store.stream_changes("c")) as parts:
        read = [await anext(parts), await anext(parts)]
        await store.remove("c", [f"{i:04}" for i in range(1_200)])
        read += [part async for part in parts]
    assert len(read) > 3
    assert {part.version for part in read} == {1}
    assert ids([found for part in read for found in part.entries]) == [f"{i:04}" for i in range(1_200)]


async def test_enrichment_is_kept_until_there_is_another(store: Store) -> None:
    await store.upsert("c", [FULL, entry("b")])
    plain = replace(FULL, queries=(), intentions=())
    await store.upsert("c", [plain])
    (kept,) = await store.get("c", [FULL.candidate.id])
    assert (kept.queries, kept.intentions) == (FULL.queries, FULL.intentions)
    made = {"b": (["q"], ["i"]), FULL.candidate.id: ([], ["j"]), "gone": (["x"], [])}
    version = await store.put_enrichment("c", made)
    found = await store.get("c", ["b", FULL.candidate.id, "gone"])
    assert [(one.queries, one.intentions, one.version) for one in found] == [
        (("q",), ("i",), version),
        ((), ("j",), version),
    ]
    assert await store.put_enrichment("c", {"b": (["q"], ["i"])}) == version


async def test_a_wrong_version_changes_nothing(store: Store) -> None:
    version = await store.upsert("c", [entry("a"), entry("b")])
    assert await store.upsert("c", [entry("c")], if_match=version) == version + 1
    with pytest.raises(ConflictError, match=r"catalogue 'c' has version 2 by now; read it again"):
        await store.upsert("c", [entry("d")], if_match=version)
    with pytest.raises(ConflictError):
        await store.remove("c", ["a"], if_match=version)
    with pytest.raises(ConflictError):
        await store.drop("c", if_match=version)
    assert ids((await store.changes("c")).entries) == ["a", "b", "c"]
    # One candidate's version is its own: others' changes do not count.
    await store.upsert("c", [entry("a", "new")], if_match=IfMatch({1}, "a"))
    with pytest.raises(ConflictError, match="candidate 'a' has version 3"):
        await store.upsert("c", [entry("a", "newer")], if_match=IfMatch({1}, "a"))
    with pytest.raises(ConflictError, match="candidate 'x' is not there"):
        await store.upsert("c", [entry("x")], if_match=IfMatch(range(100), "x"))


class TestPages:
    @pytest.fixture
    async def filled(self, store: Store) -> Store:
        await store.upsert(
            "c",
            [
                Entry(Candidate("1", "Search", "ПОГОДА 100%", server="x", tags=("red", "Blue"))),
                Entry(Candidate("2", "search", "погода 1000", server="y", tags=('x"red', "red,"), type="skill")),
                Entry(Candidate("3", "find_it", "", tags=("re",), type="skill")),
            ],
        )
        return store

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            ({}, ["1", "2", "3"]),
            ({"server": "x"}, ["1"]),
            ({"server": ""}, ["3"]),
            ({"type": "skill"}, ["2", "3"]),
            ({"type": "skill", "server": "y"}, ["2"]),
            ({"tag": "red"}, ["1"]),
            ({"tag": "Blue"}, ["1"]),
            ({"tag": "blue"}, []),
            ({"tag": 'x"red'}, ["2"]),
            ({"text": "погода"}, ["1", "2"]),
            ({"text": "100%"}, ["1"]),
            ({"text": "d_i"}, ["3"]),
            ({"text": "h_i"}, []),
            ({"text": "SEARCH", "after": "1"}, ["2"]),
        ],
    )
    async def test_filters(self, filled: Store, asked: dict[str, str], expected: list[str]) -> None:
        page = await filled.page("c", **asked)  # type: ignore[arg-type]
        assert (ids(page.entries), page.next) == (expected, None)

    async def test_the_last_full_page_is_the_last(self, filled: Store) -> None:
        assert (await filled.page("c", limit=2)).next == "2"
        assert (await filled.page("c", limit=3)).next is None


async def test_catalogues_are_apart_and_can_be_dropped(store: Store) -> None:
    await store.upsert("b", [entry("x")])
    await store.upsert("a", [entry("x"), entry("y")])
    await store.put_server("a", Server("s"))
    await store.put_chains("a", [Chain("q", ("x", "y"))])
    assert await store.catalogs() == [CatalogInfo("a", 3, 2), CatalogInfo("b", 1, 1)]
    await store.drop("a")
    assert await store.catalogs() == [CatalogInfo("b", 1, 1)]
    with pytest.raises(NotFoundError, match="'a' does not exist"):
        await store.changes("a")
    # Made again, it does not begin its versions anew: whoever knew the old one learns what is gone.
    await store.upsert("a", [entry("x")])
    changes = await store.changes("a", 3)
    assert (ids(changes.entries), changes.removed) == (["x"], ("y",))
    assert await store.servers("a") == []
    assert await store.chains("a") == []


@pytest.mark.parametrize("name", ["", "a/b/c", "/a", "a/", ".", "..", ".a", "ä", "x" * 65, "a\n", "a\0"])
async def test_other_names_are_no_catalogues(store: Store, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no name for a catalogue"):
        await store.upsert(name, [])
    for asking in (store.version(name), store.remove(name, ["x"]), store.page(name), store.drop(name)):
        with pytest.raises(NotFoundError):
            await asking
    assert await store.catalogs() == []


async def test_a_catalogue_need_not_be_made_by_writing(store: Store) -> None:
    with pytest.raises(NotFoundError):
        await store.upsert("c", [entry("a")], create=False)


class TestServers:
    SERVER = Server("s", "Weather", {"kind": "mcp", "url": "http://x"}, synced_at=1.5, ttl_ms=60_000)

    async def test_exactly_these_candidates(self, store: Store) -> None:
        await store.upsert("c", [entry("other"), entry("s/old", server="s"), entry("s/same", server="s")])
        mine = replace(entry("s/same", server="s"), pinned=True, principals=("bob",), queries=("q",))
        before = await store.upsert("c", [mine])
        listed = [entry("s/same", server="s"), entry("s/new", server="s")]
        result = await store.replace_server("c", self.SERVER, listed)
        assert (result.added, result.changed, result.removed) == (("s/new",), (), ("s/old",))
        assert result.version == before + 1
        assert await store.servers("c") == [self.SERVER]
        assert ids((await store.changes("c")).entries) == ["other", "s/new", "s/same"]
        # What the catalogue itself knows is kept, and the candidate that is the same was not touched.
        assert await store.get("c", ["s/same"]) == [replace(mine, version=before)]
        changed = [entry("s/same", "new", server="s"), entry("s/new", server="s")]
        result = await store.replace_server("c", self.SERVER, changed)
        assert (result.added, result.changed, result.removed) == ((), ("s/same",), ())
        (kept,) = await store.get("c", ["s/same"])
        assert (kept.pinned, kept.principals, kept.queries) == (True, ("bob",), ("q",))

    async def test_the_same_again_is_no_change(self, store: Store) -> None:
        listed = [entry("s/a", server="s")]
        first = await store.replace_server("c", self.SERVER, listed)
        again = await store.replace_server("c", replace(self.SERVER, synced_at=9.0), listed)
        assert again.version == first.version
        assert (await store.servers("c"))[0].synced_at == 9.0

    async def test_others_candidates_are_refused(self, store: Store) -> None:
        with pytest.raises(InvalidRequestError, match=r"entries\[0\]\.server is 'x', not 's'"):
            await store.replace_server("c", self.SERVER, [entry("a", server="x")])

    async def test_candidates_are_stale_while_their_server_fails(self, store: Store) -> None:
        await store.upsert("c", [entry("other")])
        up = await store.replace_server("c", self.SERVER, [entry("s/a", server="s")])
        down = await store.put_server("c", replace(self.SERVER, error="connection refused"))
        changes = await store.changes("c", up.version)
        assert [(found.candidate.id, found.stale) for found in changes.entries] == [("s/a", True)]
        still = await store.put_server("c", replace(self.SERVER, error="timed out"))
        assert still == down + 1  # the error is another
        assert (await store.changes("c", down)).entries == ()
        result = await store.replace_server("c", self.SERVER, [entry("s/a", server="s")])
        assert (result.added, result.changed, result.removed) == ((), (), ())
        assert [found.stale for found in (await store.changes("c", still)).entries] == [False]

    async def test_a_server_goes_with_its_candidates(self, store: Store) -> None:
        result = await store.replace_server("c", self.SERVER, [entry("s/a", server="s")])
        await store.upsert("c", [entry("other")])
        await store.remove_server("c", "s")
        assert await store.servers("c") == []
        assert (await store.changes("c", result.version)).removed == ("s/a",)
        version = await store.version("c")
        assert await store.remove_server("c", "s") == version


async def test_chains_are_kept_once(store: Store) -> None:
    await store.create("c")
    chains = [Chain("Погода?", ("a", "b")), Chain("", ("b",))]
    version = await store.put_chains("c", chains)
    assert await store.put_chains("c", chains[:1]) == version
    assert sorted(await store.chains("c"), key=lambda chain: chain.query) == [chains[1], chains[0]]


async def test_embeddings_belong_to_contents(store: Store) -> None:
    vectors = {f"{i:032x}": np.full(4, i, np.float32) for i in range(700)}
    await store.put_embeddings("minilm", vectors)
    await store.put_embeddings("minilm", vectors)
    found = await store.embeddings("minilm", [*vectors, "unknown"])
    assert found.keys() == vectors.keys()
    assert found[f"{3:032x}"].dtype == np.float16
    assert (found[f"{3:032x}"] == 3).all()
    assert await store.embeddings("other", list(vectors)) == {}


@pytest.fixture
async def replica(store: Store, url: str) -> AsyncIterator[Store]:
    replica = Store(url)
    await replica.start()
    yield replica
    await replica.close()


async def test_writers_take_turns_and_readers_miss_nothing(store: Store, replica: Store) -> None:
    await store.create("c")

    async def write(writer: Store, name: str) -> list[int]:
        return [await writer.upsert("c", [entry(f"{name}{i}")]) for i in range(10)]

    async def follow() -> list[str]:
        seen: list[str] = []
        version = 0
        while len(seen) < 40:
            changes = await replica.changes("c", version)
            version = changes.version
            seen += ids(changes.entries)
        return seen

    following = asyncio.create_task(follow())
    writers = [(store, "a"), (store, "b"), (replica, "c"), (replica, "d")]
    versions = await asyncio.gather(*(write(writer, name) for writer, name in writers))
    async with asyncio.timeout(60):
        seen = await following
    assert sorted(version for some in versions for version in some) == list(range(2, 42))
    assert len(set(seen)) == 40


async def test_of_two_who_read_the_same_version_one_wins(store: Store, replica: Store) -> None:
    version = await store.upsert("c", [entry("a")])
    outcomes = await asyncio.gather(
        store.upsert("c", [entry("a", "mine")], if_match=version),
        replica.upsert("c", [entry("a", "yours")], if_match=version),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError", "int"]


async def test_stores_may_start_together(url: str) -> None:
    stores = [Store(url) for _ in range(4)]
    await asyncio.gather(*(store.start() for store in stores))
    assert await stores[0].catalogs() == []
    for store in stores:
        await store.close()


async def test_a_store_that_starts_waits_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        other.rollback()

    monkeypatch.setattr(anyio, "sleep", sleep)
    store = Store(f"sqlite:///{tmp_path / 'catalog.db'}")
    await store.start()
    assert len(waits) == 1
    assert await store.catalogs() == []
    await store.close()
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


KILLED = """
import asyncio, os, signal, sys
from serving.catalog.entry import Entry
from serving.catalog.store import Store
from serving.types import Candidate

class Entries(list):
    def __getitem__(self, part):
        if part.start >= 5_000:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(part)

async def main():
    store = Store(sys.argv[1])
    for count in (700, 10_000):
        await store.upsert("c", Entries(Entry(Candidate(f"{count}/{i}", "x")) for i in range(count)))
        print(count, flush=True)

asyncio.run(main())
"""


async def test_a_killed_process_loses_nothing_that_was_acknowledged(store: Store, url: str) -> None:
    process = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED, url], stdout=subprocess.PIPE, env=os.environ, check=False
    )
    assert (process.returncode, process.stdout) == (-signal.SIGKILL, b"700\n")
    found = ids((await store.changes("c")).entries)
    assert sorted(found) == sorted(f"700/{i}" for i in range(700))
    assert await store.upsert("c", [entry("after")]) == 2  # nobody holds the lock any more


@pytest.mark.parametrize("url", ["mysql://x/y", "catalog.db", ""])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be a URL like sqlite:///light-router"):
        Store(url)


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are no tables. " * 100)
    store = Store(f"sqlite:///{path}")
    with pytest.raises(StoreError, match="file is not a database"):
        await store.start()
    await store.close()


@pytest.mark.parametrize(
    "url", ["postgresql://user:secret@127.0.0.1:1/x", "sqlite:////no/such/folder/x.db"], ids=["postgres", "sqlite"]
)
async def test_a_database_that_is_not_there(url: str) -> None:
    store = Store(url)
    with pytest.raises(StoreError, match="cannot be used: ") as fault:
        await store.start()
    assert "secret" not in str(fault.value)
    await store.close()


async def test_catalogues_of_tenants(store: Store) -> None:
    for name in ("c", "a_me/c", "acme/c", "acme/d"):
        await store.upsert(name, [Entry(Candidate("x", "search", server=name))])
    named = {tenant: [info.name for info in await store.catalogs(tenant)] for tenant in (None, "", "acme", "a_me", "a")}
    assert named == {
        None: ["a_me/c", "acme/c", "acme/d", "c"],
        "": ["c"],
        "acme": ["acme/c", "acme/d"],
        "a_me": ["a_me/c"],
        "a": [],
    }
    assert await store.bearers("acme/c") == [Bearer("x", "acme/c", "search")]
    with pytest.raises(NotFoundError, match="the catalogue 'e' does not exist"):
        await store.get("acme/e", ["x"])
    with pytest.raises(InvalidRequestError, match="no name for a catalogue"):
        await store.create("acme/d/e")
