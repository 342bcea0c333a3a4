"""The tree of choices: where it forks, and that the posterior over it is one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.base import Choice, ChoiceRequest, ScoreRequest, Scores
from serving.engine.trie import choose_by_scoring, forks, posterior_over_choices

pytestmark = pytest.mark.anyio

END = 0
sequences = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple), min_size=1, max_size=8, unique=True
)


class Table:
    """An engine whose label scores are a fixed function of the tokens before them."""

    model, max_tokens = "table", 10_000

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def choose(self, request: ChoiceRequest) -> Choice:
        return await choose_by_scoring(self, request)

    async def score(self, request: ScoreRequest) -> Scores:
        rows = [
            np.random.default_rng([*request.prefix, *continuation]).normal(size=8)[list(request.labels)]
            for continuation in request.continuations
        ]
        return Scores(np.stack(rows), None, 1, 0)


def request(choices: list[tuple[int, ...]]) -> ChoiceRequest:
    return ChoiceRequest([5, 6], [str(c) for c in choices], choices, END)


@given(choices=sequences)
def test_following_the_forks_tells_every_choice_apart(choices: list[tuple[int, ...]]) -> None:
    tree = forks(choices, END)
    for position, choice in enumerate(choices):
        met = [fork for fork in tree if any(position in way for way in fork.ways.values())]
        alone = set(range(len(choices)))
        for fork in met:
            assert fork.path == choice[: len(fork.path)]
            alone &= set(next(way for way in fork.ways.values() if position in way))
        assert alone == {position}


def test_a_choice_that_begins_another_ends_with_the_end_token() -> None:
    (fork,) = forks([(1,), (1, 2)], END)
    assert fork.path == (1,)
    assert fork.ways == {END: [0], 2: [1]}


def test_equal_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="unique"):
        forks([(1, 2), (1, 2)], END)


@pytest.mark.parametrize("choices", [[(1,)], [(1, 2), (1, 3), (2,)], [(1,), (1, 2), (1, 2, 3), (3, 1), (3, 2)]])
async def test_the_posterior_sums_to_one_and_holds_the_greedy_choice(choices: list[tuple[int, ...]]) -> None:
    logprobs = await posterior_over_choices(Table(), request(choices))
    assert np.exp(logprobs).sum() == pytest.approx(1)
    chosen = await choose_by_scoring(Table(), request(choices))
    assert chosen.logprob == pytest.approx(logprobs[chosen.position])
