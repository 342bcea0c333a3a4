"""An embedder and a reranker behind HTTP: a real server here that speaks the protocols, and fails in every way.

It stands in for TEI or vLLM serving such a model; the answers are made of the texts' words.
"""

import asyncio
import socket
from contextlib import closing

import numpy as np
import pytest
from sentence_transformers import CrossEncoder as CrossEncoderModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from prompts import Candidate, Message
from serving.config import PrefilterConfig
from serving.prefilter import make_embeddings, make_rankers
from serving.prefilter import remote as remote_module
from serving.prefilter.remote import RemoteCrossEncoder, RemoteEmbedder
from serving.prefilter.rerank import LocalCrossEncoder
from serving.prefilter.selection import RankingPrefilter
from serving.types import EngineError, EngineTimeoutError, EngineUnavailableError, RouteRequest
from tests.live import serving

pytestmark = pytest.mark.anyio


class Endpoint:
    """Embeds a text as its counts of letters, reranks by shared words; `fault` says how to fail."""

    def __init__(self):
        self.asked = []
        self.fault = ""
        self.app = Starlette(
            routes=[Route("/v1/embeddings", self.embeddings, methods=["POST"]),
                    Route("/v1/rerank", self.rerank, methods=["POST"])]
        )  # fmt: skip

    async def embeddings(self, request):
        body = await request.json()
        self.asked.append((body, request.headers.get("authorization")))
        if self.fault == "status":
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        if self.fault == "slow":
            await asyncio.sleep(60)
        data = [
            {"object": "embedding", "index": i, "embedding": [2.0 * text.count(c) + 0.5 for c in "abcdefgh"]}
            for i, text in enumerate(body["input"])
        ]
        if self.fault == "short":
            data = data[:-1]
        return JSONResponse({"object": "list", "data": data[::-1], "model": body["model"], "usage": {}})

    async def rerank(self, request):
        body = await request.json()
        self.asked.append((body, request.headers.get("authorization")))
        if self.fault == "status":
            return JSONResponse({"error": "no"}, 500)
        words = set(body["query"].split())
        results = [
            {"index": i, "relevance_score": len(words & set(text.split())), "document": {"text": text}}
            for i, text in enumerate(body["documents"])
        ]
        results.sort(key=lambda item: -item["relevance_score"])
        return JSONResponse({"results": results[: -1 if self.fault == "short" else None]})


@pytest.fixture
async def endpoint():
    served = Endpoint()
    async with serving(served.app) as port:
        served.url = f"http://127.0.0.1:{port}/v1"
        yield served


@pytest.fixture
async def embedder(endpoint):
    made = RemoteEmbedder(endpoint.url, "letters", "secret")
    await made.start()
    yield made
    await made.close()


async def test_vectors_have_unit_length_and_the_order_of_the_texts(endpoint, embedder):
    vectors = await embedder.embed(["aaa", "", "hh"])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1])
    assert (vectors[0].argmax(), vectors[2].argmax()) == (0, 7)
    body, key = endpoint.asked[-1]
    assert (body["model"], body["input"], key) == ("letters", ["aaa", " ", "hh"], "Bearer secret")


async def test_many_texts_go_in_several_calls_and_long_ones_are_cut(endpoint, embedder, monkeypatch):
    monkeypatch.setattr(remote_module, "TOGETHER", 3)
    endpoint.asked.clear()
    vectors = await embedder.embed([*"abcdefgh", "a" * 100_000])
    assert vectors.argmax(axis=1).tolist() == [*range(8), 0]
    assert [len(body["input"]) for body, _ in endpoint.asked] == [3, 3, 3]
    assert max(len(text) for body, _ in endpoint.asked for text in body["input"]) == remote_module.CHARACTERS


@pytest.mark.parametrize(("fault", "error"), [("status", EngineError), ("short", EngineError)])
async def test_what_the_endpoint_does_wrong_is_told(endpoint, embedder, fault, error):
    endpoint.fault = fault
    with pytest.raises(error, match=endpoint.url):
        await embedder.embed(["a", "b"])


async def test_a_silent_endpoint_is_given_up(endpoint, monkeypatch):
    monkeypatch.setattr(remote_module, "TIMEOUT_S", 0.05)
    endpoint.fault = "slow"
    silent = RemoteEmbedder(endpoint.url, "letters")
    with pytest.raises(EngineTimeoutError, match="did not answer"):
        await silent.start()
    await silent.close()


async def test_an_endpoint_that_is_not_there_is_told():
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    embedder = RemoteEmbedder(f"http://127.0.0.1:{port}/v1", "letters")
    with pytest.raises(EngineUnavailableError, match="cannot be reached"):
        await embedder.start()
    await embedder.close()
    encoder = RemoteCrossEncoder(f"http://127.0.0.1:{port}/v1", "letters")
    with pytest.raises(EngineUnavailableError, match="cannot be reached"):
        await encoder.start()
    await encoder.close()


@pytest.mark.parametrize("fault", ["status", "short"])
async def test_what_a_reranker_does_wrong_is_told(endpoint, fault):
    encoder = RemoteCrossEncoder(endpoint.url, "words", "secret")
    await encoder.start()
    assert (await encoder.scores("x y", ["y", "x y", "z"])).tolist() == [1, 2, 0]
    assert endpoint.asked[-1][1] == "Bearer secret"
    endpoint.fault = fault
    with pytest.raises(EngineError, match=endpoint.url):
        await encoder.scores("x y", ["y", "x y", "z"])
    await encoder.close()


TOOLS = tuple(Candidate(str(i), f"tool_{i}", f"abc number {i}") for i in range(20))


async def test_the_best_are_put_in_the_cross_encoders_order_and_the_rest_stay_behind(endpoint):
    config = PrefilterConfig(
        method="rerank", k=6, embedder="letters", embedder_url=endpoint.url,
        reranker="words", reranker_url=endpoint.url, rerank_depth=4,
    )  # fmt: skip
    prefilter = RankingPrefilter(make_rankers(config, make_embeddings(config)), config)
    await prefilter.start()
    kept = await prefilter.select(RouteRequest((Message("user", "abc number 17"),), TOOLS))
    await prefilter.close()
    assert kept.report.method == "rerank"
    assert kept.candidates[0].id == "17"
    assert len(kept.candidates) == 6
    assert kept.scores == sorted(kept.scores, reverse=True)
    assert len(next(body["documents"] for body, _ in endpoint.asked[::-1] if "documents" in body)) == 4
    assert kept.embedding_ms > 0


async def test_a_profile_that_reranks_names_a_cross_encoder():
    with pytest.raises(ValueError, match=r"prefilter\.reranker"):
        PrefilterConfig(method="rerank")


async def test_a_cross_encoder_in_process_scores_every_text(tiny_embedder, tmp_path):
    """Real code over a BERT with random weights."""
    CrossEncoderModel(str(tiny_embedder), num_labels=1).save_pretrained(str(tmp_path / "cross"))
    encoder = LocalCrossEncoder(str(tmp_path / "cross"))
    await encoder.start()
    scores = await encoder.scores("weather", ["a forecast", "an invoice", "a forecast"])
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()
    assert scores[0] == pytest.approx(scores[2], abs=1e-5)
    await encoder.close()
    with pytest.raises(EngineUnavailableError, match="not started"):
        await encoder.scores("a", ["b"])


async def test_a_cross_encoder_that_is_not_there_says_so(tmp_path):
    encoder = LocalCrossEncoder(str(tmp_path / "nothing"))
    with pytest.raises(EngineUnavailableError, match="nothing"):
        await encoder.start()
    await encoder.close()
