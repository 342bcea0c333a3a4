"""Ranking for many cases: the pool bounds it, and a vector is computed once."""

import numpy as np
import pytest

from adapters.datasets import read_dataset
from adapters.mining import CachedEmbedder, CatalogueIndex
from prompts import Message
from serving.prefilter.base import search_text
from serving.prefilter.embedder import LocalEmbedder
from tests.adapters.conftest import toy_embed


def test_the_ranking_finds_what_the_text_says_within_the_pool(world):
    index = CatalogueIndex(read_dataset(world / "sets/tasks").candidates, toy_embed)
    text = search_text([Message("user", "please weigh the cargo in the harbour")], 0)
    vector = toy_embed([text.text])[0]
    everything = index.ranking(text, vector, np.arange(12))
    assert index.candidates[everything[0]].id == "harbour/weighCargo"
    assert sorted(everything) == list(range(12))
    garden = index.ranking(text, vector, np.arange(4))
    assert sorted(garden) == [0, 1, 2, 3]


@pytest.fixture
def embedded(monkeypatch):
    """The texts that reach the embedder, which is a toy here."""
    texts = []

    async def embed(self, batch):
        texts.extend(batch)
        return toy_embed(batch)

    async def nothing(self):
        pass

    monkeypatch.setattr(LocalEmbedder, "embed", embed)
    monkeypatch.setattr(LocalEmbedder, "start", nothing)
    monkeypatch.setattr(LocalEmbedder, "close", nothing)
    return texts


def test_a_vector_is_computed_once_even_across_runs(tmp_path, embedded):
    cache = tmp_path / "vectors.npz"
    first = CachedEmbedder("toy", cache)(["one boat", "two boats", "one boat"])
    assert sorted(embedded) == ["one boat", "two boats"]
    np.testing.assert_array_equal(first[0], first[2])
    again = CachedEmbedder("toy", cache)(["two boats", "three"])
    assert sorted(embedded) == ["one boat", "three", "two boats"]
    np.testing.assert_array_equal(again[0], first[1])


def test_every_vector_of_several_batches_is_its_own_texts(tmp_path, embedded):
    texts = [f"{'boat ' * (i % 7)}{i}" for i in range(100)]
    vectors = CachedEmbedder("toy", tmp_path / "vectors.npz")(texts)
    np.testing.assert_allclose(vectors, toy_embed(texts), atol=1e-3)


def test_another_models_vectors_are_refused(tmp_path, embedded):
    cache = tmp_path / "vectors.npz"
    CachedEmbedder("toy", cache)(["one boat"])
    with pytest.raises(ValueError, match="vectors of toy, not of other"):
        CachedEmbedder("other", cache)
