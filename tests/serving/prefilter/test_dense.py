"""Dense ranking: every candidate embedded once, within bounds, without standing in the way."""

import asyncio
import hashlib

import numpy as np
import pytest
import torch

from prompts import Candidate
from prompts.candidate import describe
from serving.prefilter.base import SearchText
from serving.prefilter.dense import DenseRanker
from serving.prefilter.embedder import BATCH, VECTOR_OVERHEAD, Embeddings, LocalEmbedder
from serving.prefilter.pool import Pool
from serving.types import EngineUnavailableError

DIMENSIONS = 16
VECTOR_BYTES = 2 * DIMENSIONS + VECTOR_OVERHEAD


def vector(text):
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
    drawn = np.random.default_rng(seed).normal(size=DIMENSIONS).astype(np.float32)
    return drawn / np.linalg.norm(drawn)


class Counting:
    """A deterministic embedder that remembers each call, and waits for `gate` where one is given."""

    def __init__(self, gate=None):
        self.calls = []
        self.gate = gate

    @property
    def texts(self):
        return [text for call in self.calls for text in call]

    async def start(self): ...
    async def close(self): ...

    async def embed(self, texts):
        self.calls.append(list(texts))
        await asyncio.sleep(0)  # as a real one, lets others run
        if self.gate is not None and len(texts) > len(VOICES):  # candidates, not a query
            await self.gate.wait()
        return np.stack([vector(text) for text in texts])


TOOLS = [Candidate(str(i), f"tool_{i}", "word " * (i % 17)) for i in range(3 * BATCH)]
QUERY = SearchText((("book a flight", 1.0), ("earlier", 0.25)))
VOICES = [text for text, _ in QUERY.voices]


def ranker(embedder, vectors=10_000):
    return DenseRanker(Embeddings(embedder, vectors * VECTOR_BYTES))


@pytest.mark.anyio
async def test_scores_are_cosines_with_the_weighted_mean_of_query_and_history():
    pool = Pool.of(TOOLS)
    ranking = await ranker(Counting()).rank(QUERY, pool)
    mean = vector("book a flight") + 0.25 * vector("earlier")
    expected = [vector(describe(c)) @ mean / np.linalg.norm(mean) for c in pool.candidates]
    assert ranking.scores == pytest.approx(expected, abs=2e-3)  # float16 in the cache
    assert ranking.embedding_ms > 0


@pytest.mark.anyio
async def test_only_what_is_missing_is_embedded():
    embedder = Counting()
    dense = ranker(embedder)
    await dense.rank(QUERY, Pool.of(TOOLS[:40]))
    assert sorted(embedder.texts) == sorted([*VOICES, *(describe(c) for c in TOOLS[:40])])
    embedder.calls.clear()
    again = [Candidate(f"other id {c.id}", c.name, c.description) for c in TOOLS[:40]]
    await dense.rank(QUERY, Pool.of([*again, TOOLS[50]]))
    assert sorted(embedder.texts) == sorted([*VOICES, describe(TOOLS[50])])


@pytest.mark.anyio
async def test_batches_are_bounded_and_hold_texts_of_like_length():
    embedder = Counting()
    await ranker(embedder).rank(QUERY, Pool.of(TOOLS))
    batches = embedder.calls[1:]
    assert [len(batch) for batch in batches] == [BATCH] * 3
    lengths = [len(text) for batch in batches for text in batch]
    assert lengths == sorted(lengths)


@pytest.mark.anyio
async def test_requests_at_once_embed_the_same_candidates_once():
    embedder = Counting()
    dense = ranker(embedder)
    pool = Pool.of(TOOLS)
    rankings = await asyncio.gather(*(dense.rank(QUERY, pool) for _ in range(4)))
    assert len(embedder.texts) == len(TOOLS) + 4 * len(VOICES)
    assert all(ranking.scores.tolist() == rankings[0].scores.tolist() for ranking in rankings)


@pytest.mark.anyio
async def test_a_pool_larger_than_the_cache_is_ranked_whole_and_the_cache_stays_bounded():
    embedder = Counting()
    small, large = ranker(embedder, vectors=10), ranker(Counting())
    pool = Pool.of(TOOLS)
    assert (await small.rank(QUERY, pool)).scores.tolist() == (await large.rank(QUERY, Pool.of(TOOLS))).scores.tolist()
    embedder.calls.clear()
    await small.rank(QUERY, Pool.of(TOOLS))
    assert len(embedder.texts) >= 1 + len(TOOLS) - 10


@pytest.mark.anyio
async def test_a_dropped_request_stops_at_the_batch_that_runs_and_others_go_on():
    gate = asyncio.Event()
    embedder = Counting(gate)
    dense = ranker(embedder)
    dropped = asyncio.create_task(dense.rank(QUERY, Pool.of(TOOLS)))
    while len(embedder.calls) < 2:
        await asyncio.sleep(0)
    dropped.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    assert len(embedder.calls) == 2
    assert (await dense.rank(QUERY, Pool.of(TOOLS[:5]))).scores.shape == (5,)


@pytest.mark.anyio
async def test_a_query_does_not_wait_for_another_requests_candidates():
    embedder = Counting(asyncio.Event())
    dense = ranker(embedder)
    pool = Pool.of(TOOLS[:1])
    await dense.rank(QUERY, pool)
    cold = asyncio.create_task(dense.rank(QUERY, Pool.of(TOOLS)))
    while len(embedder.calls[-1]) < BATCH:
        await asyncio.sleep(0)
    assert (await dense.rank(QUERY, pool)).scores.shape == (1,)
    assert not cold.done()
    embedder.gate.set()
    await cold


# The embedder in process: real code over a BERT with random weights.


@pytest.fixture
async def embedder(tiny_embedder):
    local = LocalEmbedder(str(tiny_embedder))
    await local.start()
    yield local
    await local.close()


@pytest.mark.anyio
async def test_vectors_have_unit_length_and_do_not_depend_on_their_neighbours(embedder):
    texts = ["book a flight", "", "weather " * 40, "查询天气"]
    together = await embedder.embed(texts)
    assert together.dtype == np.float32
    assert np.linalg.norm(together, axis=1) == pytest.approx([1.0] * 4, abs=1e-6)
    for text, row in zip(texts, together, strict=True):
        [alone] = await embedder.embed([text])
        assert alone @ row > 0.999


@pytest.mark.anyio
async def test_a_text_beyond_the_context_is_cut(embedder):
    long = "find a flight from Paris to Oslo " * 5000
    [whole, head] = await embedder.embed([long, long[:6000]])
    assert whole @ head > 0.999


@pytest.mark.anyio
async def test_calls_at_once_give_each_its_own(embedder):
    texts = [f"tool number {i}" for i in range(20)]
    answers = await asyncio.gather(*(embedder.embed([text]) for text in texts))
    expected = await embedder.embed(texts)
    assert all(answer[0] @ row > 0.999 for answer, row in zip(answers, expected, strict=True))


@pytest.mark.anyio
async def test_an_embedder_that_is_not_there_says_what_to_do(tmp_path):
    with pytest.raises(EngineUnavailableError, match="make setup"):
        await LocalEmbedder(str(tmp_path)).start()


@pytest.mark.anyio
async def test_an_embedder_that_is_not_started_says_so(tiny_embedder):
    local = LocalEmbedder(str(tiny_embedder))
    with pytest.raises(EngineUnavailableError, match="not started"):
        await local.embed(["a"])
    await local.start()
    await local.close()
    with pytest.raises(EngineUnavailableError, match="not started"):
        await local.embed(["a"])


@pytest.mark.anyio
async def test_its_threads_are_its_own(tiny_embedder):
    def in_a_new_thread():
        return asyncio.to_thread(torch.get_num_threads)

    before = torch.get_num_threads(), await in_a_new_thread()
    local = LocalEmbedder(str(tiny_embedder), threads=before[0] + 1)
    await local.start()
    assert await local._run(torch.get_num_threads) == before[0] + 1
    assert (torch.get_num_threads(), await in_a_new_thread()) == before
    await local.close()
