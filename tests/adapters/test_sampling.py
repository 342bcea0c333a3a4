"""Candidate lists: gold is there or none is right, no other right answer is a negative, lengths vary."""

import dataclasses
from collections import Counter

import pytest

from adapters.datasets import Case, read_dataset
from adapters.mining import CatalogueIndex
from adapters.mixture import generator
from adapters.sampling import ListSettings, Sampler
from prompts import Candidate, Message
from serving.prefilter.base import search_text
from tests.adapters.conftest import toy_embed

TEXT = "please water the bed in the garden"
# The toy embedder's cosines are not MiniLM's: only equal texts count as near here.
APART = {"near_same_server": 0.999, "near_elsewhere": 0.999, "foreign_far": 0.9}


def question(**fields):
    values = {"gold": ("garden/water_bed",), "gold_mode": "one", "group": "g", "split": "all", **fields}
    return Case("c", "tasks", (Message("user", TEXT),), **values)


@pytest.fixture
def indexes(world):
    return [CatalogueIndex(read_dataset(world / f"sets/{name}").candidates, toy_embed) for name in ("tasks", "foreign")]


def drawn(indexes, case, count=200, companions=None, **settings):
    sampler = Sampler(indexes[0], indexes[1], companions or {}, ListSettings(**{**APART, **settings}))
    text, vector = search_text(case.messages, 0), toy_embed([TEXT])[0]
    return [sampler.draw(case, text, vector, generator("draw", i)) for i in range(count)]


def ids(listing):
    return [candidate.id for candidate in listing.candidates]


def right(listing):
    return {candidate.id for candidate, weight in zip(listing.candidates, listing.targets, strict=True) if weight}


def test_targets_are_a_distribution_over_what_is_listed(indexes):
    for listing in drawn(indexes, question()):
        assert len(set(ids(listing))) == len(listing.candidates) == len(listing.targets) >= 1
        assert sum(listing.targets) + listing.none_weight == pytest.approx(1)
        assert right(listing) == (set() if listing.none_weight else {"garden/water_bed"})
        assert ("garden/water_bed" in ids(listing)) != bool(listing.none_weight)


def test_the_share_without_gold_is_the_one_asked_for(indexes):
    none = sum(listing.none_weight for listing in drawn(indexes, question(), 600, none=0.25))
    assert 110 <= none <= 190
    assert not any(listing.none_weight for listing in drawn(indexes, question(), none=0))


def test_lists_without_gold_are_as_long_as_those_with_it(indexes):
    with_gold, without = (drawn(indexes, question(), 400, none=none, few_servers=0) for none in (0, 1))
    means = [sum(len(listing.candidates) for listing in lists) / 400 for lists in (with_gold, without)]
    assert means[0] == pytest.approx(means[1], rel=0.1)
    assert {1, 4, 8, 10} <= {len(listing.candidates) for listing in with_gold}


def test_excluded_candidates_are_never_listed(indexes):
    case = question(excluded=frozenset({"garden/plantSeeds", "not/in-the-catalogue"}))
    assert not any("garden/plantSeeds" in ids(listing) for listing in drawn(indexes, case))
    assert any("garden/plantSeeds" in ids(listing) for listing in drawn(indexes, question()))


def test_all_needed_candidates_share_the_target(indexes):
    gold = ("garden/water_bed", "library/lend_book", "harbour/readTide")
    lists = drawn(indexes, question(gold=gold, gold_mode="all"), none=0)
    assert all(right(listing) == set(gold) & set(ids(listing)) for listing in lists)
    assert {len(right(listing)) for listing in lists} == {1, 2, 3}
    assert all(max(listing.targets) == pytest.approx(1 / len(right(listing))) for listing in lists)


def test_of_each_gold_group_one_is_shown_and_none_is_a_negative(indexes):
    groups = (("garden/water_bed", "garden/plantSeeds"), ("library/lend_book", "library/returnBook"))
    case = question(gold=("garden/water_bed", "library/lend_book"), gold_mode="all", gold_groups=groups)
    for listing in drawn(indexes, case, none=0):
        for group in groups:
            assert len(set(group) & set(ids(listing))) <= 1
            assert set(group) & set(ids(listing)) <= right(listing)


def test_what_is_as_right_as_gold_is_no_negative(indexes):
    index, foreign = indexes
    gold = index.candidates[0]
    same_words = Candidate("z/1", "soak", gold.description, server="zoo")
    same_name = dataclasses.replace(gold, id="garden/2", description="Another wording altogether, with nothing shared")
    same_text = dataclasses.replace(gold, id="zoo/3", server="zoo")
    crowded = CatalogueIndex((*index.candidates, same_words, same_name, same_text), toy_embed)
    listed = Counter(id_ for listing in drawn([crowded, foreign], question(), few_servers=0) for id_ in ids(listing))
    assert not {"z/1", "garden/2", "zoo/3"} & listed.keys()
    assert len(listed) > 12


def test_a_case_whose_answer_is_none_keeps_to_its_own_list(indexes):
    case = question(gold=(), gold_mode="none", candidates=("library/lend_book", "harbour/readTide"))
    lists = drawn(indexes, case)
    assert all(listing.none_weight == 1 for listing in lists)
    own = {id_ for listing in lists for id_ in ids(listing) if not id_.startswith("orchestra/")}
    assert own == {"library/lend_book", "harbour/readTide"}


def test_a_list_is_never_empty(indexes):
    alone = [CatalogueIndex(indexes[0].candidates[:1], toy_embed), None]
    assert {tuple(ids(listing)) for listing in drawn(alone, question(), none=0.5)} == {("garden/water_bed",)}


def test_only_candidates_of_the_servers_on_offer_are_listed(indexes):
    case = question(servers=("garden", "library"))
    listed = {candidate.server for listing in drawn([indexes[0], None], case) for candidate in listing.candidates}
    assert listed == {"garden", "library"}


def test_what_the_same_group_calls_elsewhere_is_a_frequent_negative(indexes):
    companions = {"g": ("harbour/hire_pilot",)}
    settings = {"served": 0, "few_servers": 0, "none": 0}
    often, seldom = (
        sum("harbour/hire_pilot" in ids(listing) for listing in drawn(indexes, question(), 300, given, **settings))
        for given in (companions, {})
    )
    assert often > seldom * 1.2


def test_the_same_random_numbers_draw_the_same_list(indexes):
    assert drawn(indexes, question(), 20) == drawn(indexes, question(), 20)
