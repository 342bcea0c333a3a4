"""Beginnings that were computed already: found again among many, whatever was dropped meanwhile."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.engine.schedule import BLOCK, PrefixCache


@dataclass(eq=False)
class Keys:
    """Stands for the keys and values of a sequence, of so many bytes."""

    of: list[int]
    nbytes: int = 1


def shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


# Sequences that have whole blocks in common: some blocks out of two, and a rest.
BITS = st.lists(st.integers(0, 1), max_size=4)
SEQUENCE = st.tuples(BITS, BITS).map(lambda parts: [bit for bit in parts[0] for _ in range(BLOCK)] + parts[1])
STEPS = st.lists(st.tuples(st.sampled_from(["", "a"]), SEQUENCE), max_size=20)


@settings(deadline=None)
@given(STEPS)
def test_of_what_is_kept_none_shares_more_whole_blocks(steps):
    cache, kept = PrefixCache(100), []
    for salt, sequence in steps:
        best = max((shared(held, sequence) for other, held in kept if other == salt), default=0)
        keys, length = cache.longest(salt, sequence)
        assert length // BLOCK == best // BLOCK
        if keys is not None:
            assert length == shared(keys.of, sequence)
            assert (salt, keys.of) in kept
        cache.add(salt, sequence, Keys(sequence))
        kept.append((salt, sequence))


@settings(deadline=None)
@given(STEPS, st.integers(1, 4))
def test_what_was_dropped_is_not_found(steps, room):
    cache, kept = PrefixCache(room), []  # the least recently used first
    for salt, sequence in steps:
        keys, _ = cache.longest(salt, sequence)
        if keys is not None:
            assert (salt, keys.of) in kept
            kept.remove((salt, keys.of))
            kept.append((salt, keys.of))
        cache.add(salt, sequence, Keys(sequence))
        if (salt, sequence) not in kept:
            kept = [*kept, (salt, sequence)][-room:]


def test_the_last_that_is_dropped_takes_its_beginnings_with_it():
    cache = PrefixCache(1)
    one, other = [1] * 3 * BLOCK, [1] * BLOCK + [2] * BLOCK
    cache.add("", one, Keys(one))
    cache.add("", other, Keys(other))
    keys, length = cache.longest("", one)
    assert (keys.of, length) == (other, BLOCK)
    cache.add("", [3] * BLOCK, Keys([3] * BLOCK))
    assert cache.longest("", one) == (None, 0)
