"""A cache of bounded weight that forgets what was used longest ago. Knows nothing of what it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRU(Generic[K, V]):
    """Values by key, together no heavier than `capacity`; one that is heavier alone is not kept. Not thread-safe."""

    def __init__(self, capacity: int, weigh: Callable[[V], int]) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._values: OrderedDict[K, V] = OrderedDict()
        self.weight = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value of `key`, which becomes the most recently used; None where it is not held."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """Those of `keys` that are held, with their values."""
        return {key: value for key in keys if (value := self.get(key)) is not None}

    def put(self, key: K, value: V) -> None:
        """Hold `value`, in place of what `key` had, and forget the oldest until all fit."""
        if key in self._values:
            self.weight -= self._weigh(self._values.pop(key))
        self._values[key] = value
        self.weight += self._weigh(value)
        while self.weight > self._capacity:
            self.weight -= self._weigh(self._values.popitem(last=False)[1])
