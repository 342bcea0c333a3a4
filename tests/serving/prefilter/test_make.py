"""The profile's prefilter from end to end: real tokeniser, real BM25, and both a tiny and the shipped embedder."""

import random

import pytest

from prompts import Candidate, Message
from serving.assembly import build_prefilter
from serving.config import Config, PrefilterConfig
from serving.types import RouteRequest
from tests.conftest import MODELS

NOUNS = ("invoice", "parcel", "ticket", "recipe", "sensor", "playlist", "contract", "patient", "branch", "survey")
VERBS = ("create", "delete", "archive", "share")
TOOLS = [
    *(Candidate(f"{v}-{n}", f"{v}_{n}", f"{v.capitalize()} one {n} by its number") for n in NOUNS for v in VERBS),
    Candidate("rain", "get_forecast", "Temperature, wind and rain for the next days"),
    Candidate("table", "reserve", "Holds seats at a restaurant for a given evening"),
]


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["bm25", "dense", "fused", "graph"])
async def test_each_method_keeps_the_same_k_of_the_same_tools(method, tiny_embedder):
    prefilter = build_prefilter(Config(prefilter=PrefilterConfig(method=method, embedder=str(tiny_embedder))))
    await prefilter.start()
    first = None
    for seed in range(4):
        listed = random.Random(seed).sample(TOOLS, len(TOOLS))
        kept = await prefilter.select(RouteRequest((Message("user", "archive my invoice"),), tuple(listed)))
        assert kept.report.method == method
        assert len(set(kept.candidates)) == kept.report.kept == 10
        assert kept.scores == sorted(kept.scores, reverse=True)
        assert (kept.embedding_ms > 0) == (method != "bm25")
        ids = [candidate.id for candidate in kept.candidates]
        assert ids == (first or ids)
        first = ids
    await prefilter.close()


@pytest.mark.anyio
async def test_words_and_meaning_both_find():
    prefilter = build_prefilter(Config(prefilter=PrefilterConfig(embedder=str(MODELS / "all-minilm-l6-v2"))))
    await prefilter.start()
    for query, wanted in (
        ("archive_invoice number 77", "archive-invoice"),  # the words
        ("will I need an umbrella on Friday?", "rain"),  # the meaning alone
        ("dinner for two tomorrow at eight", "table"),
    ):
        kept = await prefilter.select(RouteRequest((Message("user", query),), tuple(TOOLS), k=3))
        assert wanted in [candidate.id for candidate in kept.candidates]
    await prefilter.close()
