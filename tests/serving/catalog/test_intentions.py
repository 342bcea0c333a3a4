"""A catalogue's graph: made of what the store holds, embedded once, made anew after a change."""

import asyncio

import numpy as np
import pytest

from prompts import Candidate
from serving.catalog.entry import Chain, Entry, Server
from serving.catalog.index import CatalogIndex
from serving.catalog.store import Store
from serving.config import GraphConfig
from serving.prefilter.base import SearchText
from serving.prefilter.embedder import Embeddings
from serving.prefilter.graph import GraphRanker
from tests.serving.prefilter.test_graph import Words

ENTRIES = [
    Entry(Candidate("geocode", "geocode", "place", server="maps"), intentions=("find park", "Find  PARK")),
    Entry(Candidate("route", "route", "draw", server="maps"), intentions=("find park",)),
    Entry(Candidate("sum", "sum", "numbers", server="math")),
    Entry(Candidate("odd", "odd", "one")),
]


class Counting(Words):
    """Remembers what it embedded, and waits where it is told to."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def embed(self, texts):
        self.texts += texts
        self.asked.set()
        await self.gate.wait()
        return await super().embed(texts)


@pytest.fixture
async def store(sqlite_url):
    store = Store(sqlite_url)
    await store.start()
    await store.upsert("c", ENTRIES)
    await store.put_server("c", Server("maps", "places of all kinds"))
    await store.put_chains("c", [Chain("where and how many", ("geocode", "sum")), Chain("?", ("gone", "sum"))])
    yield store
    await store.close()


def indexed(store):
    words = Counting()
    return CatalogIndex(store, "c", Embeddings(words, 2**20), "words"), words


@pytest.mark.anyio
async def test_the_graph_holds_what_the_store_holds(store):
    index, words = indexed(store)
    await index.refresh()
    graph = await index.graph(index._embeddings)
    rows = index.position
    assert (graph.rows, graph.servers, graph.nodes) == (4, 2, 4 + 2 + 1)  # both spellings are one intention
    assert graph.server_of[[rows[id_] for id_ in ("geocode", "route", "sum", "odd")]].tolist() == [0, 0, 1, -1]
    query = words.vector("find park")
    cosines = graph.intentions(query)
    assert cosines == pytest.approx([1], abs=1e-3)
    best = graph.best_intention(cosines)
    assert best[[rows["geocode"], rows["route"]]] == pytest.approx([1, 1], abs=1e-3)
    assert not best[[rows["sum"], rows["odd"]]].any()
    assert graph.described(words.vector("places kinds"))[0] == pytest.approx(2 / np.sqrt(10), abs=1e-3)

    seeds = np.zeros(4)
    seeds[rows["geocode"]] = 1
    relevance = graph.relevance(seeds, np.zeros(1), 0.85)
    assert relevance[rows["sum"]] > 0  # through the chain
    assert relevance[rows["odd"]] == 0


@pytest.mark.anyio
async def test_nothing_is_embedded_twice_and_a_restart_embeds_nothing(store):
    index, words = indexed(store)
    await index.refresh()
    first = await index.graph(index._embeddings)
    assert sorted(words.texts).count("find park") == 1
    embedded = len(words.texts)
    assert await index.graph(index._embeddings) is first
    assert len(words.texts) == embedded

    again, other = indexed(store)
    await again.refresh()
    await again.graph(again._embeddings)
    assert other.texts == []


@pytest.mark.anyio
async def test_a_change_is_in_the_next_graph_and_only_what_is_new_is_embedded(store):
    index, words = indexed(store)
    await index.refresh()
    await index.graph(index._embeddings)
    words.texts.clear()
    await store.put_enrichment("c", {"sum": ((), ("add up",)), "route": ((), ("find park",))})
    await store.remove("c", ["geocode"])
    await index.refresh()
    graph = await index.graph(index._embeddings)
    assert words.texts == ["add up"]
    best = graph.best_intention(graph.intentions(words.vector("add up")))
    assert best.argmax() == index.position["sum"]
    # What was removed is in no relation any more.
    assert np.count_nonzero(graph.server_of == 0) == 1


@pytest.mark.anyio
async def test_requests_at_once_make_one_graph(store):
    index, words = indexed(store)
    await index.refresh()
    graphs = await asyncio.gather(*(index.graph(index._embeddings) for _ in range(4)))
    assert len({id(graph) for graph in graphs}) == 1
    assert words.texts.count("find park") == 1


@pytest.mark.anyio
async def test_who_gives_up_leaves_the_next_a_whole_graph(store):
    index, words = indexed(store)
    await index.refresh()
    words.gate.clear()
    words.asked.clear()
    dropped = asyncio.create_task(index.graph(index._embeddings))
    await words.asked.wait()
    dropped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    words.gate.set()
    graph = await index.graph(index._embeddings)
    assert graph.intentions(words.vector("find park")) == pytest.approx([1], abs=1e-3)


@pytest.mark.anyio
async def test_a_ranker_finds_the_next_of_a_chain_in_a_catalogue(store):
    index, _ = indexed(store)
    await index.refresh()
    ranker = GraphRanker(index._embeddings, GraphConfig())
    ranking = await ranker.rank(SearchText((("find park", 1.0),)), index, None)
    assert ranking.scores[index.position["sum"]] > 1
    assert ranking.scores[index.position["odd"]] == 0


@pytest.mark.anyio
async def test_an_empty_catalogue_has_an_empty_graph(store):
    await store.create("empty")
    index = CatalogIndex(store, "empty", Embeddings(Counting(), 2**20), "words")
    await index.refresh()
    graph = await index.graph(index._embeddings)
    assert graph.nodes == 0
    assert graph.relevance(np.zeros(0), np.zeros(0), 0.85).shape == (0,)
