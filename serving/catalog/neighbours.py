"""Other candidates of a catalogue for one of them: random ones, the most similar ones, those of its server.

Knows candidates and their vectors. What it answers depends on nothing else, so that work which is repeated asks the
same again. Of candidates that read exactly the same only one is told: they cannot be told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from prompts.candidate import describe
from serving.types import Candidate

# Looked at for each neighbour that is wanted: among candidates of one server some read the same.
_LOOKED_AT = 4


class Neighbours:
    """The neighbours in a catalogue.

    Args:
        candidates: all of it.
        vectors: unit length, of each (candidates, dimensions); only `nearest` and `companions` need them.
    """

    def __init__(self, candidates: Sequence[Candidate], vectors: NDArray[np.float32] | None = None) -> None:
        self._candidates = candidates
        self._vectors = vectors
        self._positions = {candidate.id: i for i, candidate in enumerate(candidates)}
        self._servers: dict[str, list[int]] = defaultdict(list)
        for i, candidate in enumerate(candidates):
            if candidate.server:
                self._servers[candidate.server].append(i)

    def random(self, candidate: Candidate, number: int) -> list[Candidate]:
        """Drawn without replacement; always the same ones."""
        size = len(self._candidates)
        drawn = Random(candidate.content_hash).sample(range(size), min(size, _LOOKED_AT * (number + 1)))  # noqa: S311
        return self._first(candidate, drawn, number)

    def nearest(self, candidate: Candidate, number: int) -> list[Candidate]:
        """The most similar ones, most similar first."""
        return self._first(candidate, self._similar(candidate, _LOOKED_AT * (number + 1)), number)

    def companions(self, candidate: Candidate, number: int) -> list[Candidate]:
        """What may be used together with it: the most similar of its own server, then those of others."""
        own = self._servers.get(candidate.server, [])
        similar = self._similar(candidate, _LOOKED_AT * (number + 1))
        return self._first(candidate, [*self._similar(candidate, len(own), own), *similar], number)

    def _similar(self, candidate: Candidate, number: int, among: Sequence[int] | None = None) -> list[int]:
        """Positions of the most similar, the candidate itself among them, most similar first."""
        if self._vectors is None:
            raise ValueError("these neighbours were made without vectors; similarity needs them")
        rows = self._vectors if among is None else self._vectors[among]
        scores = rows @ self._vectors[self._positions[candidate.id]]
        best = np.argsort(-scores, kind="stable")[:number]
        return [int(i) if among is None else among[i] for i in best]

    def _first(self, candidate: Candidate, positions: Iterable[int], number: int) -> list[Candidate]:
        read = {describe(candidate)}
        others: list[Candidate] = []
        for i in dict.fromkeys(positions):
            if len(others) == number:
                break
            if (text := describe(self._candidates[i])) not in read:
                read.add(text)
                others.append(self._candidates[i])
        return others
