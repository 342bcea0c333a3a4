"""BM25 and its tokeniser: identifiers, languages, and what is not language at all."""

import asyncio
import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompts import Candidate
from serving.prefilter import lexical
from serving.prefilter.base import Pool, SearchText
from serving.prefilter.lexical import BM25Ranker, Index, Tokenizer

# Every code point but surrogates, which cannot stand in a decoded request.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def search(*texts, weight=1.0):
    return SearchText(tuple((text, weight) for text in texts))


def best(tools, *texts):
    """The names of the candidates that share a term with the text, best first."""
    pool = Pool.of([Candidate(name, name, description) for name, description in tools.items()])
    scores = Index(pool).scores(search(*texts))
    order = sorted(range(len(tools)), key=lambda i: -scores[i])
    return [pool.candidates[i].name for i in order if scores[i] > 0]


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
    pool = Pool.of(
        [
            Candidate("1", "run", server="payroll", input_schema={"properties": {"salary_month": {}}}),
            Candidate("2", "run", server="weather", input_schema={"properties": {"city": {}}}),
        ]
    )
    by_id = {c.id: i for i, c in enumerate(pool.candidates)}
    for text, right, wrong in (("salary", "1", "2"), ("payroll", "1", "2"), ("city", "2", "1")):
        scores = Index(pool).scores(search(text))
        assert scores[by_id[right]] > scores[by_id[wrong]] == 0


def test_a_part_counts_by_its_weight_and_repetition_counts_less():
    pool = Pool.of([Candidate("1", "alpha"), Candidate("2", "beta")])
    index = Index(pool)

    def score(*parts):
        return float(index.scores(SearchText(parts)).max())

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
    index = Index(Pool.of(listed))
    assert index.scores(search(text)).tolist() == [0.0] * len(listed)
    assert index.scores(SearchText(())).tolist() == [0.0] * len(listed)


@settings(deadline=None)
@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT), min_size=1, max_size=8), st.lists(ANY_TEXT, max_size=4))
def test_any_candidates_and_any_text_have_finite_scores(pairs, texts):
    pool = Pool.of([Candidate(str(i), name, description) for i, (name, description) in enumerate(pairs)])
    scores = Index(pool).scores(search(*texts))
    assert scores.shape == (len(pairs),)
    assert (scores >= 0).all()


@pytest.fixture
def built(monkeypatch):
    """Counts the indexes that are built."""
    pools = []

    class Counted(Index):
        def __init__(self, pool):
            pools.append(pool)
            super().__init__(pool)

    monkeypatch.setattr(lexical, "Index", Counted)
    return pools


TOOLS = [Candidate(str(i), f"tool_{i}", f"weather number {i}") for i in range(30)]


@pytest.mark.anyio
async def test_the_same_tools_in_any_order_are_indexed_once_even_at_once(built):
    ranker = BM25Ranker()
    shuffled = random.Random(0).sample(TOOLS, len(TOOLS))
    rankings = await asyncio.gather(
        *(ranker.rank(search("tool 7"), Pool.of(listed)) for listed in (TOOLS, shuffled, TOOLS[::-1]))
    )
    assert len(built) == 1
    assert all(ranking.scores.tolist() == rankings[0].scores.tolist() for ranking in rankings)
    await ranker.rank(search("tool 7"), Pool.of(TOOLS[1:]))
    assert len(built) == 2


@pytest.mark.anyio
async def test_what_is_kept_is_bounded_and_a_larger_pool_is_answered_all_the_same(built, monkeypatch):
    monkeypatch.setattr(lexical, "INDEXED_CANDIDATES", 20)
    ranker = BM25Ranker()
    for _ in range(2):
        assert (await ranker.rank(search("weather"), Pool.of(TOOLS))).scores.all()
    assert len(built) == 2
    for _ in range(2):
        await ranker.rank(search("weather"), Pool.of(TOOLS[:20]))
    assert len(built) == 3
