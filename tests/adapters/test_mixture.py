"""What is trained on and what is held out: groups, refusals, diversity and the order of a mix."""

from pathlib import Path

import pytest

from adapters.datasets import Case
from adapters.mixture import (
    REPORT_SETS,
    CasesRecipe,
    SourceRecipe,
    choose,
    generator,
    mixed,
    refuse_report_sets,
    side_of,
)
from prompts import Message
from tests.conftest import ROOT


def case(case_id, query="q", gold=("a",), group="g", **fields):
    return Case(case_id, "s", (Message("user", query),), gold, "one", group, fields.pop("split", "all"), **fields)


def recipe(**fields):
    return CasesRecipe(sources={}, **fields)


@pytest.mark.parametrize("name", ["bfcl_multiple", "bfcl_irrelevance", "bfcl_multi_turn", "bfcl_live", *REPORT_SETS])
def test_the_reports_sets_are_refused(name):
    with pytest.raises(ValueError, match="never train on it"):
        refuse_report_sets(name)


def test_cases_of_one_group_stand_on_one_side_across_sets():
    sides = {}
    for number in range(400):
        tools, agents = (case(f"{name}/{number}", group=f"dialogue{number}") for name in ("tools", "agents"))
        assert side_of(tools, False, (), 0.1) == side_of(agents, False, (), 0.1)
        sides[number] = side_of(tools, False, (), 0.1)
    held_out = sum(side == "dev" for side in sides.values())
    assert 20 <= held_out <= 60


def test_a_source_with_a_training_split_keeps_its_own():
    sides = [side_of(case("x", split=split), True, (), 0.5) for split in ("train", "dev", "other")]
    assert sides == ["train", "dev", None]


def test_a_split_named_test_is_on_no_side():
    assert side_of(case("x", split="test"), True, (), 0.5) is None
    assert side_of(case("x", split="test", group="unseen/1"), False, ("unseen/",), 0.5) is None


def test_named_groups_are_held_out_and_only_they():
    sides = [
        side_of(case("x", group=group), False, ("team_1/",), 0.5) for group in ("team_1/3", "team_10/3", "team_2/1")
    ]
    assert sides == ["dev", "train", "train"]


def test_rare_gold_is_chosen_first():
    cases = [case(f"c{i}", "abcdefghijklmnopqrst"[i], gold=("common",), group=f"g{i}") for i in range(18)]
    cases += [case("r1", "rare one", gold=("rare",), group="r1"), case("r2", "rare two", gold=("rare",), group="r2")]
    chosen = choose(cases, 4, recipe(), variants=1)
    assert sorted(case.gold[0] for case, _ in chosen) == ["common", "common", "rare", "rare"]


def test_what_says_the_same_is_chosen_once():
    cases = [
        case("a", "Book 2 tables", group="1"),
        case("b", "book 17 TABLES!", group="2"),
        case("c", "cancel", group="3"),
    ]
    assert len(choose(cases, 10, recipe(), variants=1)) == 2


def test_a_group_gives_no_more_than_its_share():
    cases = [case(f"c{i}", "abcdefghij"[i]) for i in range(10)]
    assert len(choose(cases, 10, recipe(per_group=3), variants=1)) == 3


def test_repeats_of_the_last_call_are_thinned_out():
    cases = [
        case(f"c{i}", f"{i:b}".translate({48: "a", 49: "b"}), group=str(i), repeats_last_call=i % 2 == 0)
        for i in range(400)
    ]
    chosen = choose(cases, 400, recipe(repeats=0.25), variants=1)
    repeats = sum(case.repeats_last_call for case, _ in chosen)
    assert len(chosen) - repeats == 200
    assert 25 <= repeats <= 75


def test_variants_come_after_every_case_has_been_used():
    cases = [case(f"c{i}", "abc"[i], group=str(i)) for i in range(3)]
    chosen = choose(cases, 5, recipe(), variants=2)
    assert [variant for _, variant in chosen] == [0, 0, 0, 1, 1]
    assert {case.case_id for case, _ in chosen[:3]} == {"c0", "c1", "c2"}


def test_every_stretch_of_a_mix_holds_the_parts_in_their_shares():
    many, few = [("many", i) for i in range(300)], [("few", i) for i in range(100)]
    mix = mixed([many, few], generator("seed"))
    assert len(mix) == 400
    assert [item for item in mix if item[0] == "many"] == many
    for start in range(0, 400, 40):
        assert 8 <= sum(name == "few" for name, _ in mix[start : start + 40]) <= 12


def test_the_shipped_recipe_names_no_set_of_the_report():
    shipped = CasesRecipe.load(ROOT / "adapters/recipes/cases.yaml")
    for source in shipped.sources.values():
        refuse_report_sets(Path(source.path).name)
    history = sum(
        shipped.sources[name].train for name in shipped.sources if name.startswith(("sgd_", "mcp_", "agents_"))
    )
    assert history > sum(source.train for source in shipped.sources.values()) / 2


def test_an_unknown_key_of_a_recipe_is_an_error():
    with pytest.raises(ValueError, match="trains"):
        SourceRecipe.model_validate({"path": "x", "licence": "MIT", "train": 1, "dev": 1, "trains": 2})
