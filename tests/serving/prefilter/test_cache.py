"""The cache of bounded weight."""

from hypothesis import given
from hypothesis import strategies as st

from serving.cache import LRU


def test_what_was_used_longest_ago_goes_first():
    cache = LRU[str, str](3, len)
    for key in "abc":
        cache.put(key, key)
    assert cache.get("a") == "a"
    cache.put("d", "d")
    assert cache.get_many("abcd") == {"a": "a", "c": "c", "d": "d"}


def test_a_value_heavier_than_all_room_is_not_kept():
    cache = LRU[str, str](3, len)
    cache.put("a", "aaaa")
    assert cache.get("a") is None
    assert cache.weight == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.text(max_size=6)), max_size=50))
def test_the_weight_is_that_of_what_is_held_and_within_bounds(puts):
    cache = LRU[int, str](8, len)
    for key, value in puts:
        cache.put(key, value)
        held = cache.get_many(range(6))
        assert cache.weight == sum(map(len, held.values())) <= 8
        assert held.get(key) == (value if len(value) <= 8 else None)
        assert len(cache) == len(held)
