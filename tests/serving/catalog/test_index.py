"""Catalogues in memory: what is written is found, what is not allowed is not, and a restart embeds nothing."""

import asyncio
import hashlib
import re

import numpy as np
import pytest

from prompts import Candidate, Message
from serving.catalog import catalogs as catalogs_module
from serving.catalog.catalogs import Catalogs
from serving.catalog.entry import Entry
from serving.catalog.store import Store
from serving.config import PrefilterConfig
from serving.prefilter import make_rankers
from serving.prefilter.base import SearchText
from serving.prefilter.embedder import BATCH, Embeddings
from serving.prefilter.selection import RankingPrefilter
from serving.types import Filter, InvalidRequestError, NotFoundError, RouteRequest

pytestmark = pytest.mark.anyio

NOUNS = ("invoice", "parcel", "ticket", "recipe", "sensor", "playlist", "contract", "patient", "branch", "survey")
VERBS = ("create", "delete", "archive", "share")


class WordEmbedder:
    """Bags of words in 256 dimensions, deterministic; remembers what it was given."""

    def __init__(self):
        self.texts = []

    async def start(self): ...
    async def close(self): ...

    async def embed(self, texts):
        self.texts += texts
        await asyncio.sleep(0)
        vectors = np.full((len(texts), 256), 1e-3, dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in re.findall(r"[a-z0-9]+", text.lower().replace("_", " ")):
                row[hashlib.blake2b(word.encode(), digest_size=1).digest()[0]] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def entry(verb, noun, server="shop", **settings):
    candidate = Candidate(f"{server}/{verb}_{noun}", f"{verb}_{noun}", f"{verb} one {noun}", server=server)
    return Entry(candidate, **settings)


ENTRIES = [entry(verb, noun, "office" if noun == "invoice" else "shop") for noun in NOUNS for verb in VERBS]


class World:
    """One replica: its own store object, catalogues and prefilter over one database."""

    def __init__(self, url, embedder, poll_s=60.0):
        embeddings = Embeddings(embedder, 10**6)
        self.store = Store(url)
        self.catalogs = Catalogs(self.store, embeddings, "words", poll_s)
        config = PrefilterConfig(k=5)
        self.prefilter = RankingPrefilter(make_rankers(config, embeddings), config, self.catalogs)

    async def __aenter__(self):
        await self.prefilter.start()
        return self

    async def __aexit__(self, *_):
        await self.prefilter.close()

    async def found(self, query, **request):
        asked = RouteRequest((Message("user", query),), catalog="tools", **request)
        return [candidate.id for candidate in (await self.prefilter.select(asked)).candidates]


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture
async def world(database):
    async with World(database, WordEmbedder()) as made:
        await made.store.upsert("tools", ENTRIES)
        await made.catalogs.embedded()
        yield made


@pytest.mark.parametrize("methods", [(), ("bm25",), ("dense",), ("fused",), ("bm25", "dense")])
async def test_every_method_finds_what_was_written(world, methods):
    found = await world.found("archive the ticket", methods=methods)
    assert found[0] == "shop/archive_ticket"
    assert len(found) == 5


async def test_a_pattern_finds_names_first(world):
    await world.store.upsert("tools", [Entry(Candidate("x", "rename", "like create_patient, but renames"))])
    found = await world.found("create_(patient|survey)", methods=("regex",), k=3)
    assert set(found[:2]) == {"shop/create_patient", "shop/create_survey"}
    assert found[2] == "x"


async def test_an_unknown_method_and_an_unknown_catalogue_are_told(world):
    with pytest.raises(InvalidRequestError, match=r"'magic' is not one of .*bm25"):
        await world.found("x", methods=("magic",))
    with pytest.raises(NotFoundError):
        await world.prefilter.select(RouteRequest((Message("user", "x"),), catalog="other"))


async def test_one_more_is_found_at_once(world):
    await world.store.upsert("tools", [entry("calibrate", "telescope")])
    assert (await world.found("calibrate my telescope"))[0] == "shop/calibrate_telescope"
    assert (await world.found("calibrate my telescope", methods=("dense",)))[0] == "shop/calibrate_telescope"


async def test_a_change_replaces_what_was_found_before(world):
    changed = Candidate("shop/share_recipe", "share_recipe", "moves a submarine", server="shop")
    await world.store.upsert("tools", [Entry(changed)])
    index = await world.catalogs.get("tools")
    assert (await world.found("a submarine"))[0] == changed.id
    kept = await world.prefilter.select(RouteRequest((Message("user", "submarine"),), catalog="tools"))
    assert kept.candidates[0] == changed
    assert (index.dead, len(index), len(index.position)) == (1, 41, 40)
    assert kept.report.considered == 40


async def test_what_only_the_catalogue_knows_of_it_changes_in_place(world):
    await world.store.upsert("tools", [entry("share", "recipe", enabled=False)])
    index = await world.catalogs.get("tools")
    assert index.dead == 0
    assert "shop/share_recipe" not in await world.found("share recipe")
    await world.store.upsert("tools", [entry("share", "recipe", enabled=True)])
    assert (await world.found("share recipe"))[0] == "shop/share_recipe"


async def test_what_was_removed_is_not_found(world):
    await world.store.remove("tools", ["shop/share_recipe"])
    assert "shop/share_recipe" not in await world.found("share recipe")


async def test_who_may_not_see_a_candidate_does_not_find_it_and_is_not_told_of_it(world):
    await world.store.upsert("tools", [entry("share", "recipe", principals=("cook", "chef"))])
    assert "shop/share_recipe" not in await world.found("share recipe")
    assert "shop/share_recipe" not in await world.found("share recipe", principals=frozenset({"waiter"}))
    assert (await world.found("share recipe", principals=frozenset({"chef", "x"})))[0] == "shop/share_recipe"
    asked = RouteRequest((Message("user", "x"),), catalog="tools", pinned=frozenset({"shop/share_recipe"}))
    kept = await world.prefilter.select(asked)
    assert kept.report.considered == 39
    assert "shop/share_recipe" not in [candidate.id for candidate in kept.candidates]


async def test_filters(world):
    only = await world.found("archive the ticket", include=Filter(servers=("office",)))
    assert sorted(only) == sorted(f"office/{verb}_invoice" for verb in VERBS)
    without = await world.found("archive the ticket", exclude=Filter(ids=("shop/archive_ticket",)))
    assert without
    assert "shop/archive_ticket" not in without
    assert await world.found("x", include=Filter(servers=("shop",), ids=("office/share_invoice",))) == []
    assert await world.found("x", include=Filter(tags=("none",))) == []
    assert len(await world.found("x", include=Filter(types=("tool",)))) == 5


async def test_pinned_candidates_always_pass(world):
    await world.store.upsert("tools", [entry("share", "recipe", pinned=True)])
    found = await world.found("archive the ticket", pinned=frozenset({"shop/share_sensor"}))
    assert found[0] == "shop/archive_ticket"
    assert {"shop/share_recipe", "shop/share_sensor"} < set(found)
    assert "shop/share_recipe" not in await world.found("x", exclude=Filter(ids=("shop/share_recipe",)))


async def test_generated_queries_are_searched_too(world):
    assert "shop/share_sensor" not in await world.found("let grandma see how warm it is", methods=("bm25",))
    await world.store.put_enrichment("tools", {"shop/share_sensor": (["let grandma see how warm it is"], [])})
    for methods in (("bm25",), ("dense",), ()):
        assert (await world.found("let grandma see how warm it is", methods=methods))[0] == "shop/share_sensor"
    await world.store.put_enrichment("tools", {"shop/share_sensor": ([], [])})
    assert "shop/share_sensor" not in await world.found("let grandma see how warm it is", methods=("bm25",))


async def test_a_restart_embeds_nothing(world, database):
    embedder = WordEmbedder()
    async with World(database, embedder) as again:
        assert embedder.texts == []
        assert (await again.found("archive the ticket"))[0] == "shop/archive_ticket"
    assert embedder.texts == ["archive the ticket"]


async def test_many_new_ones_are_found_by_words_at_once_and_by_meaning_soon(database):
    embedder = WordEmbedder()
    async with World(database, embedder) as world:
        many = [entry("find", f"thing{number}") for number in range(3 * BATCH)]
        await world.store.upsert("tools", many)
        assert (await world.found("thing70", methods=("bm25",)))[0] == "shop/find_thing70"
        await world.catalogs.embedded()
        assert (await world.found("find one thing70", methods=("dense",)))[0] == "shop/find_thing70"


async def test_two_replicas_see_each_others_changes(world, database):
    async with World(database, WordEmbedder(), poll_s=0.01) as other:
        await world.store.upsert("tools", [entry("calibrate", "telescope")])
        async with asyncio.timeout(30):
            while (await other.found("calibrate the telescope"))[0] != "shop/calibrate_telescope":
                await asyncio.sleep(0.01)
            await world.store.drop("tools")
            while "tools" in other.catalogs.loaded:
                await asyncio.sleep(0.01)
            with pytest.raises(NotFoundError):
                await other.found("x")


async def test_a_catalogue_that_grows_while_it_is_searched_answers_with_what_there_was(world):
    index = await world.catalogs.get("tools")
    request = RouteRequest((Message("user", "x"),), catalog="tools")
    allowed = index.allowed(request)
    await world.store.upsert("tools", [entry("calibrate", "telescope")])
    for ranker in world.prefilter.rankers.values():
        ranking = await ranker.rank(SearchText((("telescope", 1.0),)), index, allowed)
        assert ranking.scores.shape == (40,)


async def test_dead_rows_do_not_pile_up(world, monkeypatch):
    monkeypatch.setattr(catalogs_module, "DEAD", 20)
    for number in range(30):
        await world.store.upsert("tools", [Entry(Candidate("shop/share_recipe", "share_recipe", f"version {number}"))])
        assert (await world.found(f"version {number}", methods=("bm25",)))[0] == "shop/share_recipe"
    assert (await world.catalogs.get("tools")).dead <= 21
