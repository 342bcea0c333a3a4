"""The graph of servers, tools and intentions: how relevance spreads, and what is found through it."""

import asyncio
from itertools import pairwise

import igraph
import numpy as np
import pytest

from prompts import Candidate
from serving.config import GraphConfig
from serving.prefilter.base import SearchText
from serving.prefilter.embedder import Embeddings
from serving.prefilter.graph import GraphRanker
from serving.prefilter.intentions import TOLERANCE, IntentionGraph
from serving.prefilter.pool import Embedded, Pool
from serving.prefilter.vectors import Vectors

DIMENSIONS = 64


class Words:
    """Embeds texts as their words, each a direction of its own."""

    def __init__(self):
        self.axes = {}

    async def start(self): ...
    async def close(self): ...

    def vector(self, text):
        row = np.zeros(DIMENSIONS, dtype=np.float32)
        for word in text.replace(":", "").split():
            row[self.axes.setdefault(word, len(self.axes))] += 1
        return row / max(np.linalg.norm(row), 1)

    async def embed(self, texts):
        return np.stack([self.vector(text) for text in texts])


class Catalogue:
    """Rows (server, description, intentions), chains and servers' descriptions, as a ranker searches them."""

    def __init__(self, rows, chains=(), about=None):
        self.words = Words()
        self.embeddings = Embeddings(self.words, 2**20)
        self.rows = rows
        texts = list(dict.fromkeys(text for _, _, intentions in rows for text in intentions))
        self.made = IntentionGraph(
            [server for server, _, _ in rows],
            [[texts.index(text) for text in intentions] for _, _, intentions in rows],
            self.vectors(texts) if texts else None,
            chains,
            {server: self.words.vector(text) for server, text in (about or {}).items()},
        )

    def vectors(self, texts):
        vectors = Vectors(DIMENSIONS)
        vectors.add(np.stack([self.words.vector(text) for text in texts]))
        return vectors

    def __len__(self):
        return len(self.rows)

    async def embedded(self, field, embeddings):
        return Embedded(self.vectors([description for _, description, _ in self.rows]))

    async def graph(self, embeddings):
        return self.made

    async def scores(self, text, *subtasks, allowed=None, **weights):
        ranker = GraphRanker(self.embeddings, GraphConfig(**weights))
        ranking = await ranker.rank(SearchText(((text, 1.0),), subtasks), self, allowed)
        assert ranking.embedding_ms > 0
        assert ranking.scores.shape == (len(self.rows),)
        return ranking.scores


def order(scores):
    """Rows that something speaks for, best first."""
    return [row for row in np.argsort(-scores, kind="stable").tolist() if scores[row] > 0]


# How relevance spreads


SERVERS = ["mail", "mail", "maps", "maps", "maps", ""]
INTENTIONS = [[0], [0, 1], [2], [], [1], [2, 2]]
CHAINS = [(0, 2, 3), (0, 2), (3, None, 1), (4, 4, 0), (5,)]
DAMPING = 0.85


def expected_relation_weights():
    """Matrix (nodes, nodes) by hand: rows 0-5, servers mail 6 and maps 7, intentions 8-10."""
    weights = np.zeros((11, 11))

    def tie(a, b, count):
        weights[a, b] += np.log1p(count)
        weights[b, a] += np.log1p(count)

    for row, server in ((0, 6), (1, 6), (2, 7), (3, 7), (4, 7)):
        tie(server, row, 1)
    for row, intention, count in ((0, 8, 1), (1, 8, 1), (1, 9, 1), (2, 10, 1), (4, 9, 1), (5, 10, 2)):
        tie(row, intention, count)
    for a, b, count in ((0, 2, 2), (0, 3, 1), (2, 3, 1), (1, 3, 1), (0, 4, 1)):  # tool_cooccur
        tie(a, b, count)
    for a, b, count in ((0, 2, 2), (2, 3, 1), (4, 0, 1)):  # tool_next
        weights[a, b] += np.log1p(count)
    return weights


def random_vectors(count):
    vectors = Vectors(DIMENSIONS)
    drawn = np.random.default_rng(0).normal(size=(count, DIMENSIONS))
    vectors.add(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))
    return vectors


def test_relevance_is_personalised_pagerank_over_weighted_relations():
    graph = IntentionGraph(SERVERS, INTENTIONS, random_vectors(3), CHAINS)
    assert (graph.rows, graph.servers, graph.nodes) == (6, 2, 11)
    rows, intentions = np.array([0, 0.5, 0, 0, 0, 0]), np.array([0, 0, 1.5])
    weights, start = expected_relation_weights(), np.array([0, 0.25, 0, 0, 0, 0, 0, 0, 0, 0, 0.75])
    step = weights / weights.sum(axis=1, keepdims=True)
    dense = np.linalg.solve(np.eye(11) - DAMPING * step.T, (1 - DAMPING) * start)
    found = graph.relevance(rows, intentions, DAMPING)
    assert found == pytest.approx(dense, abs=TOLERANCE)
    assert found.sum() == pytest.approx(1, abs=1e-5)

    pairs = np.argwhere(weights).tolist()
    other = igraph.Graph(11, pairs, directed=True).personalized_pagerank(
        reset=start.tolist(), damping=DAMPING, weights=[weights[a, b] for a, b in pairs]
    )
    assert found == pytest.approx(np.array(other), abs=TOLERANCE)


def test_a_walk_that_can_go_nowhere_starts_anew():
    graph = IntentionGraph(["", "", "s"])
    assert graph.relevance(np.array([1, 3, 0]), np.zeros(0), DAMPING) == pytest.approx(
        [0.25, 0.75, 0, 0], abs=TOLERANCE
    )


def test_without_seeds_nothing_is_relevant():
    graph = IntentionGraph(SERVERS, INTENTIONS, random_vectors(3), CHAINS)
    assert not graph.relevance(np.zeros(6), np.zeros(3), DAMPING).any()


def test_a_chain_leads_on_rather_than_back():
    graph = IntentionGraph(["", "", ""], chains=[(0, 1, 2)])
    first, _, last = graph.relevance(np.array([0, 1, 0]), np.zeros(0), DAMPING)
    assert last > first > 0


def test_a_relation_seen_more_often_carries_more():
    often = [(0, 1)] * 5 + [(0, 2)]
    _, more, less = IntentionGraph(["", "", ""], chains=often).relevance(np.array([1, 0, 0]), np.zeros(0), DAMPING)
    # All but the start lead only back to it, so what they get is in proportion to cooccur + next.
    assert more / less == pytest.approx(np.log(6) / np.log(2), rel=1e-3)


# What is found


TRAVEL = [
    ("maps", "geocode place", ["find park"]),  # 0
    ("maps", "draw map", ["show route"]),  # 1
    ("math", "evaluate expression", ["compute numbers"]),  # 2
    ("math", "plot curve", ["show curve"]),  # 3
    ("mail", "send letter", ["write friend"]),  # 4
    ("mail", "read letter", ["see inbox"]),  # 5
]


@pytest.mark.anyio
async def test_an_intention_finds_a_tool_whose_description_says_something_else():
    catalogue = Catalogue(TRAVEL)
    assert order(await catalogue.scores("see inbox"))[0] == 5
    assert order(await catalogue.scores("write friend"))[0] == 4


@pytest.mark.anyio
async def test_the_neighbour_in_a_chain_is_found_though_none_of_its_words_match():
    alone = Catalogue(TRAVEL)
    chained = Catalogue(TRAVEL, chains=[(0, 2)])
    assert 2 not in order(await alone.scores("find park", servers=2))
    found = order(await chained.scores("find park", servers=2))
    assert found[0] == 0
    assert set(found[1:3]) == {1, 2}  # its server's other tool, and the next of the chain


@pytest.mark.anyio
async def test_only_tools_of_the_best_servers_are_found_first():
    rows = [*TRAVEL, ("mail", "place", [])]
    catalogue = Catalogue(rows, about={"maps": "maps place"})
    # Alone, row 6 says exactly what is searched for; its server is the best by that.
    assert order(await catalogue.scores("place", servers=1, pagerank=0))[0] == 6
    # Another server is nearer to the search: what is outside it comes behind, by its description.
    scores = await catalogue.scores("maps place", servers=1, pagerank=0, graph=0)
    assert order(scores)[:2] == [0, 6]
    assert scores[0] > 1
    assert scores[6] == pytest.approx(2**-0.5, abs=1e-3)


@pytest.mark.anyio
async def test_as_many_servers_count_as_are_asked_for():
    catalogue = Catalogue(TRAVEL)
    for servers in (1, 2, 3, 50):
        scores = await catalogue.scores("geocode place evaluate expression send letter", servers=servers)
        assert len({TRAVEL[row][0] for row in np.flatnonzero(scores > 1)}) == min(servers, 3)


@pytest.mark.anyio
async def test_a_tool_without_a_server_is_always_among_those_ranked():
    catalogue = Catalogue([*TRAVEL, ("", "geocode", []), ("", "unrelated thing", [])])
    scores = await catalogue.scores("geocode place", servers=1)
    assert scores[6] > 1
    assert order(scores)[0] == 0


@pytest.mark.anyio
async def test_the_score_of_a_tool_is_the_weighted_sum_of_its_three():
    catalogue = Catalogue([("s", "alpha beta", ["gamma"]), ("s", "delta", ["alpha"]), ("s", "epsilon", [])])
    # Similarity to descriptions of "alpha" .707, 0, 0; to intentions 0, 1, 0.
    assert await catalogue.scores("alpha", intention=0, graph=0) == pytest.approx([1 + 2**-0.5, 0, 0], abs=1e-3)
    assert await catalogue.scores("alpha", description=0, graph=0) == pytest.approx([2**-0.5, 2, 0], abs=1e-3)
    assert await catalogue.scores("alpha", description=2, intention=3, graph=0) == pytest.approx(
        [1 + 2 * 2**-0.5, 4, 0], abs=1e-2
    )
    only_graph = await catalogue.scores("alpha", description=0, intention=0, graph=0.5)
    assert only_graph.max() == pytest.approx(1.5)  # the highest PageRank counts 1
    assert only_graph[1] == only_graph.max()  # seeded through its intention, which is nearer than row 0's description
    assert only_graph[2] == 0  # the lowest counts 0


@pytest.mark.anyio
async def test_servers_are_weighed_by_similarity_or_by_pagerank():
    rows = [("said", "alpha beta", []), ("used", "zeta", ["alpha"]), ("used", "eta", ["alpha gamma"])]
    catalogue = Catalogue(rows)
    by_description = await catalogue.scores("alpha", servers=1, pagerank=0)
    by_graph = await catalogue.scores("alpha", servers=1, semantic=0)
    assert np.flatnonzero(by_description > 1).tolist() == [0]
    assert np.flatnonzero(by_graph > 1).tolist() == [1, 2]


@pytest.mark.anyio
async def test_each_subtask_finds_its_own_and_all_are_united():
    catalogue = Catalogue(TRAVEL)
    scores = await catalogue.scores("find park then write friend", "find park", "write friend", tools=1)
    assert np.flatnonzero(scores > 1).tolist() == [0, 4]
    scores = await catalogue.scores("find park then write friend", "find park", "write friend", tools=6)
    assert np.flatnonzero(scores > 1).tolist() == [0, 1, 4, 5]  # and what is near them in the graph


@pytest.mark.anyio
async def test_nothing_shows_of_rows_that_are_not_allowed():
    catalogue = Catalogue(TRAVEL, chains=[(0, 2)])
    allowed = np.array([False, True, True, True, False, True])
    scores = await catalogue.scores("find park geocode place", allowed=allowed)
    assert not scores[~allowed].any()
    # Only what is allowed starts walks, so a tool whose intention no allowed one has leads nowhere.
    assert not scores.any()
    scores = await catalogue.scores("draw map", allowed=allowed, servers=1)
    assert order(scores)[0] == 1


@pytest.mark.anyio
async def test_servers_without_an_allowed_tool_take_no_place_among_the_best():
    catalogue = Catalogue(TRAVEL, about={"mail": "geocode place"})
    allowed = np.array([True, True, True, True, False, False])
    scores = await catalogue.scores("geocode place", allowed=allowed, servers=1)
    assert order(scores)[0] == 0
    assert scores[0] > 1


@pytest.mark.anyio
async def test_rows_that_came_after_the_graph_are_found_by_description():
    catalogue = Catalogue(TRAVEL)
    catalogue.rows = [*TRAVEL, ("maps", "geocode place", [])]
    scores = await catalogue.scores("geocode place", graph=0)
    assert order(scores)[:2] == [0, 6]
    assert scores[6] == pytest.approx(1, abs=1e-3)


@pytest.mark.anyio
async def test_rows_that_came_after_it_was_said_what_is_allowed_are_left_out():
    catalogue = Catalogue(TRAVEL)
    ranker = GraphRanker(catalogue.embeddings, GraphConfig())
    ranking = await ranker.rank(SearchText((("read letter", 1.0),)), catalogue, np.ones(5, dtype=bool))
    assert ranking.scores.shape == (5,)
    assert order(ranking.scores)[0] == 4


@pytest.mark.anyio
async def test_without_intentions_and_chains_descriptions_and_servers_rank():
    catalogue = Catalogue([(server, description, []) for server, description, _ in TRAVEL])
    assert order(await catalogue.scores("read letter"))[:2] == [5, 4]


@pytest.mark.anyio
@pytest.mark.parametrize("server", ["", "all"])
async def test_one_server_or_none_excludes_nothing(server):
    catalogue = Catalogue([(server, description, intentions) for _, description, intentions in TRAVEL])
    scores = await catalogue.scores("read letter", servers=1)
    assert order(scores)[:2] == [5, 4]


@pytest.mark.anyio
async def test_a_search_for_nothing_finds_nothing():
    assert not (await Catalogue(TRAVEL).scores("unheard")).any()


@pytest.mark.anyio
async def test_more_rows_than_are_found_are_in_the_order_of_their_descriptions():
    rows = [("s", f"alpha {' '.join(f'w{i}' for i in range(n))}", []) for n in range(30)]
    scores = await Catalogue(rows).scores("alpha", tools=10)
    assert order(scores) == list(range(30))
    assert all(a > b for a, b in pairwise(scores.tolist()))


@pytest.mark.anyio
async def test_a_requests_pool_is_ranked_by_description_and_each_subtask_counts():
    words = Words()
    ranker = GraphRanker(Embeddings(words, 2**20), GraphConfig())
    pool = Pool.of([Candidate("a", "geocode", "place"), Candidate("b", "send", "letter"), Candidate("c", "x", "y")])
    row = {candidate.id: at for at, candidate in enumerate(pool.candidates)}
    ranking = await ranker.rank(SearchText((("geocode place", 1.0),)), pool)
    assert order(ranking.scores) == [row["a"]]
    assert ranking.scores[row["a"]] == pytest.approx(1, abs=1e-3)
    ranking = await ranker.rank(SearchText((("geocode place", 1.0),), ("geocode place", "send letter")), pool)
    assert set(order(ranking.scores)) == {row["a"], row["b"]}


@pytest.mark.anyio
async def test_requests_at_once_get_each_its_own():
    catalogue = Catalogue(TRAVEL, chains=[(0, 2), (4, 5)])
    queries = [description for _, description, _ in TRAVEL]
    together = await asyncio.gather(*(catalogue.scores(query) for query in queries))
    assert [order(scores)[0] for scores in together] == list(range(6))
