"""Ranking for many cases: both rankers count, the pool bounds, and a vector is computed once."""

import numpy as np

from adapters.datasets import read_dataset
from adapters.mining import CachedEmbedder, CatalogueIndex, search_text, words
from prompts import Message, ToolCall
from tests.adapters.conftest import toy_embed


def test_names_are_split_into_words():
    assert words("getHTTPResponse_v2 Übergröße") == ["get", "http", "response", "v", "2", "übergröße"]


def test_the_ranking_finds_what_the_text_says_within_the_pool(world):
    index = CatalogueIndex(read_dataset(world / "sets/tasks").candidates, toy_embed)
    text = "please weigh the cargo in the harbour"
    everything = index.ranking(text, toy_embed([text])[0], np.arange(12))
    assert index.candidates[everything[0]].id == "harbour/weighCargo"
    assert sorted(everything) == list(range(12))
    garden = index.ranking(text, toy_embed([text])[0], np.arange(4))
    assert sorted(garden) == [0, 1, 2, 3]


def test_the_search_text_begins_with_the_query_and_holds_what_came_last():
    messages = [
        Message("user", "first wish"),
        Message("assistant", "", (ToolCall("a"),)),
        Message("tool", "old result", name="a"),
        *[Message("assistant", f"thought {i}") for i in range(6)],
    ]
    text = search_text(messages)
    assert text.startswith("first wish")
    assert "thought 5" in text
    assert "old result" not in text


def test_a_vector_is_computed_once_even_across_runs(tmp_path, monkeypatch):
    asked = []

    def encode(self, texts):
        asked.extend(texts)
        return toy_embed(texts)

    monkeypatch.setattr(CachedEmbedder, "_encode", encode)
    cache = tmp_path / "vectors.npz"
    first = CachedEmbedder("unused", cache)(["one boat", "two boats", "one boat"])
    assert sorted(asked) == ["one boat", "two boats"]
    np.testing.assert_array_equal(first[0], first[2])
    again = CachedEmbedder("unused", cache)(["two boats", "three"])
    assert sorted(asked) == ["one boat", "three", "two boats"]
    np.testing.assert_array_equal(again[0], first[1])
