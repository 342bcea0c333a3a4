"""BM25 and its tokeniser: identifiers, languages, documents that come later, and what is not language at all."""

import unicodedata

import bm25s
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompts import Candidate
from prompts.candidate import describe
from serving.prefilter import postings as postings_module
from serving.prefilter.postings import K1, B, Postings, Tokenizer

NOUNS = ("invoice", "parcel", "ticket", "recipe", "sensor")

# Every code point but surrogates, which cannot stand in a decoded request.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def scores_of(candidates, *parts):
    postings = Postings()
    postings.add(map(describe, candidates))
    return postings.scores([part if isinstance(part, tuple) else (part, 1.0) for part in parts])


def best(tools, *texts):
    """The names of the candidates that share a term with the text, best first."""
    candidates = [Candidate(name, name, description) for name, description in tools.items()]
    scores = scores_of(candidates, *texts)
    order = sorted(range(len(tools)), key=lambda i: -scores[i])
    return [candidates[i].name for i in order if scores[i] > 0]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("get_user_profile", ["get", "user", "profil"]),
        ("calendar.events-list/v2", ["calendar", "event", "list", "v2"]),
        ("getUserProfile", ["get", "user", "profil", "getuserprofil"]),
        ("parseHTTPResponse", ["pars", "http", "respons", "parsehttprespons"]),
        ("base64Encode", ["base64", "encod", "base64encod"]),
        ("YouTube", ["tube", "youtub"]),
        ("booking flights", ["book", "flight"]),
        ("What is the weather?", ["weather"]),
        ("\uff27\uff29\uff34 caf\u0065\u0301", ["git", "caf\u00e9"]),  # full width; a decomposed accent
        ("погоду в городе", ["погод", "в", "город"]),
        ("查询天气", ["查", "询", "天", "气", "查询", "询天", "天气"]),
        ("東京タワーmap", ["東", "京", "タ", "ワ", "ー", "東京", "京タ", "タワ", "ワー", "map"]),
        ("हिन्दी मौसम", ["हिन्दी", "मौसम"]),
        ("  \n\x00 ?!", []),
        ("", []),
    ],
)
def test_terms(text, terms):
    assert sorted(Tokenizer()(text)) == sorted(terms)


@given(ANY_TEXT)
def test_any_text_has_terms_that_are_the_same_in_either_composition(text):
    tokenize = Tokenizer()
    terms = tokenize(text)
    assert all(terms)
    assert sorted(tokenize(unicodedata.normalize("NFC", text))) == sorted(terms)


def test_a_query_finds_its_tool_in_every_writing():
    tools = {
        "getWeatherForecast": "Forecast of the weather for a city",
        "send_email": "Sends a message to an address",
        "youtube_search": "Search for videos",
        "прогноз": "Прогноз погоды в городе на неделю",
        "перевод": "Перевод денег между счетами",
        "天气预报": "查询一个城市的天气预报",
        "翻译": "把文字翻译成另一种语言",
        "번역": "문장을 번역합니다",
    }
    assert best(tools, "weather forecasts please")[0] == "getWeatherForecast"
    assert best(tools, "emailing")[0] == "send_email"
    assert best(tools, "a YouTube clip")[0] == "youtube_search"
    assert best(tools, "какая погода в городах?")[0] == "прогноз"
    assert best(tools, "明天的天气怎么样")[0] == "天气预报"
    assert best(tools, "번역해 주세요")[0] == "번역"


def test_parameters_and_server_are_searched_too():
    candidates = [
        Candidate("1", "run", server="payroll", input_schema={"properties": {"salary_month": {}}}),
        Candidate("2", "run", server="weather", input_schema={"properties": {"city": {}}}),
    ]
    for text, right, wrong in (("salary", 0, 1), ("payroll", 0, 1), ("city", 1, 0)):
        scores = scores_of(candidates, text)
        assert scores[right] > scores[wrong] == 0


def test_a_part_counts_by_its_weight_and_repetition_counts_less():
    def score(*parts):
        return float(scores_of([Candidate("1", "alpha"), Candidate("2", "beta")], *parts).max())

    once = score(("alpha", 1.0))
    assert score(("alpha", 0.25)) == pytest.approx(once / 2)
    assert score(("alpha alpha alpha", 1.0)) == pytest.approx(once)
    assert score(*[("alpha", 0.25)] * 4) == pytest.approx(once)
    assert once < score(("alpha", 1.0), ("alpha", 1.0)) < 2 * once


@pytest.mark.parametrize(
    "listed",
    [
        [Candidate("1", "")],
        [Candidate("1", ""), Candidate("2", "?"), Candidate("3", "the")],
        [Candidate("1", ""), Candidate("2", "weather")],
    ],
)
@pytest.mark.parametrize("text", ["", "the", "zebra", "\x00"])
def test_nothing_in_common_scores_nothing(listed, text):
    assert scores_of(listed, text).tolist() == [0.0] * len(listed)
    assert scores_of(listed).tolist() == [0.0] * len(listed)


@settings(deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=8), st.lists(ANY_TEXT, max_size=4))
def test_any_candidates_and_any_text_have_finite_scores(pairs, texts):
    scores = scores_of([Candidate(str(i), name, text) for i, (name, text) in enumerate(pairs)], *texts)
    assert scores.shape == (len(pairs),)
    assert (scores >= 0).all()


def bm25s_scores(texts, query):
    """The library's own, as the reference."""
    tokenize = Tokenizer()
    reference = bm25s.BM25(k1=K1, b=B)
    reference.index([tokenize(text) for text in texts], show_progress=False)
    return reference.get_scores(list(dict.fromkeys(tokenize(query))))


TEXTS = [f"tool number {i}: {'weather ' * (i % 4)}{'for a city ' * (i % 3)}{NOUNS[i % len(NOUNS)]}" for i in range(60)]
QUERIES = ["weather in a city", "invoice number 7", "nothing of that"]


@pytest.mark.parametrize("query", QUERIES)
def test_scores_are_those_of_the_library(query):
    postings = Postings()
    postings.add(TEXTS)
    postings._merge()
    np.testing.assert_allclose(postings.scores([(query, 1.0)]), bm25s_scores(TEXTS, query), atol=1e-5)


@pytest.mark.parametrize("query", QUERIES)
def test_documents_that_wait_score_as_if_they_had_always_been_there(query, monkeypatch):
    monkeypatch.setattr(postings_module, "MERGE_DOCUMENTS", 20)
    postings = Postings()
    for size in (40, 1, 1, 18):  # merged at once, then waiting
        start = len(postings)
        postings.add(TEXTS[start : start + size])
    assert sum(map(len, postings._new.values())) > 0
    np.testing.assert_allclose(postings.scores([(query, 1.0)]), bm25s_scores(TEXTS, query), rtol=0.1, atol=1e-5)
    postings._merge()
    np.testing.assert_allclose(postings.scores([(query, 1.0)]), bm25s_scores(TEXTS, query), atol=1e-5)


def test_a_tokeniser_remembers_no_more_than_it_may(monkeypatch):
    monkeypatch.setattr(postings_module, "KNOWN_WORDS", 5)
    tokenize = Tokenizer()
    assert [tokenize(f"word{i}") for i in range(20)] == [[f"word{i}"] for i in range(20)]
    assert len(tokenize._known) <= 5
