"""Pools and questions over the small world."""

import pytest

from adapters.cases import TrainingCase, write_cases
from adapters.questions import abstention_pair, needs, read_set, shuffles, single, sweep
from prompts import Candidate, Message
from tests.adapters.conftest import CATALOGUE, FOREIGN, SERVERS, request, write_lines

IDS = {line["id"] for line in CATALOGUE}


@pytest.fixture
def read(world):
    return lambda spec="tasks", **settings: read_set(world / "sets", spec, **settings)


@pytest.fixture
def odd(world):
    """Cases with everything that a plain case lacks."""
    write_lines(world / "sets/odd/catalog.jsonl", CATALOGUE)
    water, plant, mow = "garden/water_bed", "garden/plantSeeds", "garden/mow-lawn"
    lines = [
        request("excluded", "water", [water], excluded=[mow]),
        request("all", "water and plant", [water, plant], gold_mode="all", split="other"),
        request("groups", "water, plant or mow", [water, plant], gold_mode="all", gold_groups=[[water], [plant, mow]]),
        request("none", "sing", [], candidates=["library/lend_book", "harbour/readTide"]),
        request("alone", "sing", [], candidates=["harbour/readTide"]),
    ]  # fmt: skip
    write_lines(world / "sets/odd/cases.jsonl", lines)
    set_ = read_set(world / "sets", "odd")
    return set_, {case.case_id: case for case in set_.cases}


def test_all_servers_are_merged_and_one_pool_serves_all_cases(read):
    set_ = read()
    first, *others = map(set_.pool, set_.cases)
    assert first.ids == IDS
    assert all(other is first for other in others)


def test_clean_holds_golds_own_server(read):
    set_ = read(kind="clean")
    for case in set_.cases:
        server = case.gold[0].split("/")[0]
        assert set_.pool(case).ids == {f"{server}/{name}" for name in SERVERS[server]}


@pytest.mark.parametrize("kind", ["mutation", "external"])
def test_candidates_are_added_once(read, kind):
    twin = Candidate(CATALOGUE[0]["id"], "another thing of the same id")
    extra = (*(Candidate(line["id"], line["name"]) for line in FOREIGN), twin)
    set_ = read(kind=kind, extra=extra)
    pool = set_.pool(set_.cases[0])
    assert len(pool.candidates) == len(pool.ids) == len(CATALOGUE) + len(FOREIGN)
    assert twin not in pool.candidates
    assert read(kind="multi", extra=extra).pool(set_.cases[0]).ids == IDS


def test_excluded_candidates_are_not_offered(odd):
    set_, cases = odd
    assert set_.pool(cases["excluded"]).ids == IDS - {"garden/mow-lawn"}
    assert set_.pool(cases["all"]).ids == IDS


def test_what_has_no_right_candidate_is_asked_over_its_own_list(odd):
    set_, cases = odd
    assert [c.id for c in set_.pool(cases["none"]).candidates] == ["library/lend_book", "harbour/readTide"]


def test_what_a_ranking_needs(odd, read):
    _, cases = odd
    water, plant, mow = "garden/water_bed", "garden/plantSeeds", "garden/mow-lawn"
    assert needs(cases["excluded"]) == ({water},)
    assert needs(cases["all"]) == ({water}, {plant})
    assert needs(cases["groups"]) == ({water}, {plant, mow})
    assert needs(cases["none"]) == ()


def test_splits_and_their_error(world, odd):
    assert [case.case_id for case in read_set(world / "sets", "odd", splits=["other"]).cases] == ["all"]
    with pytest.raises(ValueError, match="odd has no case of the splits test; its splits: all, other"):
        read_set(world / "sets", "odd", splits=["test"])
    with pytest.raises(ValueError, match="it only lends candidates"):
        read_set(world / "sets", "foreign")


def test_a_higher_limit_adds_to_a_lower_ones_cases(read):
    few, more = ([case.case_id for case in read(limit=n, seed=3).cases] for n in (10, 25))
    assert len(few) == 10
    assert len(more) == 25
    assert set(few) < set(more)
    assert [i for i in more if i in few] == few
    assert few != [case.case_id for case in read(limit=10, seed=4).cases]
    assert len(read(limit=1000).cases) == 60


def test_trajectories_are_asked_over_the_servers_they_had(world):
    set_ = read_set(world, "runs/team.trajectories.jsonl=sets/tasks")
    assert set_.name == "team_trajectories"
    assert {candidate.server for candidate in set_.pool(set_.cases[0]).candidates} == {"garden", "library"}


def test_training_cases_are_asked_over_their_own_lists(world):
    lists = [tuple(Candidate(f"{n}/{i}", f"tool {i}") for i in range(n)) for n in (3, 12)]
    messages = (Message("user", "do it"),)
    write_cases(
        world / "dev.jsonl.gz",
        [TrainingCase("same", "s", messages, list_, (1.0, *[0.0] * (len(list_) - 1)), 0.0) for list_ in lists]
        + [TrainingCase("none", "s", messages, lists[0], (0.0,) * 3, 1.0)],
    )
    set_ = read_set(world, "dev.jsonl.gz")
    questions = [set_.main(case, 10) for case in set_.cases]
    assert [(q.k, len(q.pool.candidates), q.case.gold) for q in questions] == [
        (3, 3, ("3/0",)),
        (12, 12, ("12/0",)),
        (3, 3, ()),
    ]
    assert len({case.case_id for case in set_.cases}) == 3
    assert set_.cases[0].group == set_.cases[1].group


@pytest.mark.parametrize("k", [1, 5, 11, 12, 50])
def test_an_abstention_pair_has_lists_of_equal_lengths(read, k):
    set_ = read()
    present, absent = abstention_pair(set_.main(set_.cases[0], k))
    assert present.k == absent.k == min(k, 11)
    assert present.pinned == set(present.case.gold) == present.right
    assert absent.pool.ids == IDS - present.right
    assert absent.right == frozenset()


def test_a_pair_pins_one_of_each_group(odd):
    set_, cases = odd
    present, absent = abstention_pair(set_.main(cases["groups"], 10))
    assert present.pinned == {"garden/water_bed", "garden/plantSeeds"}
    assert absent.pool.ids == IDS - {"garden/water_bed", "garden/plantSeeds", "garden/mow-lawn"}
    assert present.k == absent.k == 9
    assert abstention_pair(set_.main(cases["none"], 10)) == ()


def test_single_candidates(odd):
    set_, cases = odd
    alone = single(set_.main(cases["excluded"], 10))
    assert ([c.id for c in alone.pool.candidates], alone.right) == (["garden/water_bed"], {"garden/water_bed"})
    without = single(set_.main(cases["alone"], 10))
    assert ([c.id for c in without.pool.candidates], without.right) == (["harbour/readTide"], frozenset())
    assert single(set_.main(cases["none"], 10)) is None


def test_shuffles_show_what_was_kept_in_other_orders(read):
    set_ = read()
    main = set_.main(set_.cases[0], 5)
    kept = [candidate.id for candidate in main.pool.candidates[:5]]
    questions = shuffles(main, kept, 4, seed=0)
    orders = [tuple(candidate.id for candidate in question.pool.candidates) for question in questions]
    assert all(sorted(order) == sorted(kept) for order in orders)
    assert len(set(orders)) == 4
    assert all(question.k == 5 for question in questions)
    again = shuffles(main, kept, 4, seed=0)
    assert [question.digest for question in again] == [question.digest for question in questions]
    assert len({question.digest for question in questions}) == 4


def test_a_sweep_holds_gold_and_k_candidates(read):
    set_ = read()
    main = set_.main(set_.cases[5], 4)
    questions = sweep(main, (3, 6, 13, None), seed=0)
    assert [(q.condition, len(q.pool.candidates), q.k) for q in questions] == [
        ("sweep:3", 3, 3),
        ("sweep:6", 6, 6),
        ("sweep-k:6", 6, 4),
        ("sweep:all", 12, 12),
        ("sweep-k:all", 12, 4),
    ]
    assert all(main.case.gold[0] in question.pool.ids for question in questions)
    assert questions[0].pool.ids < questions[1].pool.ids
    places = {
        [c.id for c in sweep(set_.main(case, 4), (6,), 0)[0].pool.candidates].index(case.gold[0]) for case in set_.cases
    }
    assert places == set(range(6))


def test_the_digest_changes_with_everything_that_may_change_the_answer(read):
    set_ = read()
    main = set_.main(set_.cases[0], 5)
    others = [set_.main(set_.cases[0], 6), set_.main(set_.cases[1], 5), *abstention_pair(main), *sweep(main, (5,), 0)]
    assert len({question.digest for question in [main, *others]}) == len(others) + 1
    assert set_.main(set_.cases[0], 5).digest == main.digest
