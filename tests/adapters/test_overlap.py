"""The overlap audit on texts whose overlap is known."""

import pytest

from adapters.cases import TrainingCase, write_cases
from adapters.overlap import audit, grams, overlap, training_texts, words
from adapters.questions import read_set
from prompts import Candidate, Message

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def test_words_have_no_case_or_punctuation():
    assert words("Don't  stop_me -- NOW, 42!") == ("don", "t", "stop", "me", "now", "42")


def test_runs_of_words():
    assert grams(("a", "b", "c"), 2) == {("a", "b"), ("b", "c")}
    assert grams(("a",), 2) == {("a",)}
    assert grams((), 2) == frozenset()


def test_nothing_in_common():
    found = overlap(["water the long garden bed today"], ["a quite different sentence stands here"])
    assert (found.queries, found.texts, found.exact, found.shared_13, found.max_jaccard) == (1, 1, 0, 0, 0)


def test_the_same_words_are_exact_whatever_their_case():
    found = overlap(
        ["Water the bed, please", "water the BED please!"], ["WATER the bed please", "Water. The bed please"]
    )
    assert (found.queries, found.texts, found.exact) == (1, 1, 1)
    assert found.max_jaccard == 1


def test_jaccard_of_five_grams():
    # abcdefg and abcdefh: {abcde, bcdef, cdefg} and {abcde, bcdef, cdefh}: 2 of 4.
    found = overlap(["a b c d e f g"], ["x y z u v w", "a b c d e f h"])
    assert found.max_jaccard == pytest.approx(2 / 4)
    assert found.closest == ("a b c d e f g", "a b c d e f h")
    assert found.exact == 0


def test_thirteen_words_in_a_row():
    inside = f"before that {LONG} and then more"
    assert overlap([LONG], [inside]).shared_13 == 1
    assert overlap([LONG], [inside.replace("seven", "7")]).shared_13 == 0
    assert overlap([LONG, LONG.replace("one", "zero")], [inside]).shared_13 == 2


def test_audit_of_training_and_enrichment(world):
    query = "Please water bed a 0"
    messages = (Message("user", query), Message("user", "again"))
    case = TrainingCase("t", "s", messages, (Candidate("c", "c"),), (1.0,), 0.0)
    write_cases(world / "train.jsonl.gz", [case])
    sources = {
        "training": lambda: training_texts(world / "train.jsonl.gz"),
        "enrichment": lambda: ["the roses look dry", query],
    }
    [training, enrichment] = audit([read_set(world / "sets", "tasks")], sources)
    assert (training["set"], training["source"], training["texts"], training["exact"]) == ("tasks", "training", 2, 1)
    assert (enrichment["source"], enrichment["texts"], enrichment["exact"]) == ("enrichment", 2, 1)
