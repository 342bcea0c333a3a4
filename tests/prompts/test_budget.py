"""What may be cut, and that every cut is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prompts import Budget, PromptTokenizer
from prompts.budget import cut_end, cut_middle, window_start
from tests.conftest import MODELS

TOKENIZER = PromptTokenizer(MODELS / "smollm2-135m-instruct")


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=400), limit=st.integers(8, 64))
def test_a_cut_keeps_within_its_limit_and_says_so(text: str, limit: int) -> None:
    whole = TOKENIZER.text(text)
    for cut in (cut_middle(TOKENIZER, text, limit), cut_end(TOKENIZER, text, limit)):
        assert len(cut.ids) <= limit
        assert bool(cut.original) == (len(whole) > limit)
        if not cut.original:
            assert cut.ids == whole


def test_the_middle_goes_and_both_ends_stay() -> None:
    text = "alpha " + "filler " * 200 + "omega"
    shown = TOKENIZER.decode(cut_middle(TOKENIZER, text, 32).ids)
    assert shown.startswith("alpha")
    assert shown.endswith("omega")
    assert " ... " in shown


def test_a_megabyte_is_cut_without_being_read_whole() -> None:
    cut = cut_middle(TOKENIZER, "start " + "x" * 2**20 + " end", 32)
    assert len(cut.ids) <= 32
    assert cut.original > 10_000
    assert TOKENIZER.decode(cut.ids).endswith(" end")


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=60), limit=st.integers(60, 200))
def test_the_window_fits_and_its_start_never_goes_back(lengths: list[int], limit: int) -> None:
    starts = [window_start(lengths[:count], limit) for count in range(1, len(lengths) + 1)]
    assert starts == sorted(starts)
    for count, start in enumerate(starts, start=1):
        assert sum(lengths[start:count]) <= limit
        assert start < count


def test_the_window_moves_in_large_steps() -> None:
    starts = [window_start([10] * count, 200) for count in range(1, 201)]
    assert len(set(starts)) < 20  # 200 messages, and the prefix changes about every tenth


@pytest.mark.parametrize(("field", "value"), [("candidate", 4), ("message", 3), ("history", 10), ("total", 100)])
def test_an_impossible_budget_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"budget.{field}"):
        Budget(**{field: value})
