"""The graph of servers, tools and intentions, and how relevance spreads through it (SING, sections 3.1 and 3.3).

Knows rows, servers, numbered intentions with their vectors, and chains of rows. Does not know texts, requests or how a
candidate is scored in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from serving.prefilter.vectors import Vectors

Floats = NDArray[np.float32]
_Counts = Mapping[tuple[int, int], int]

# How far probabilities, which sum to 1, may be off in all when spreading stops. A tool that matters has a hundredth.
TOLERANCE = 1e-4


class IntentionGraph:
    """Nodes are rows, then servers, then intentions.

    Relations are has_tool (server and row), has_intention (row and intention), tool_next (a row to the next of a chain)
    and tool_cooccur (two rows of a chain); all but tool_next lead both ways. Each weighs log(1 + its count).

    Args:
        servers: each row's; "" where it has none.
        intentions: the numbers of each row's.
        vectors: of the intentions, by number; None where there are none.
        chains: rows that were used one after the other; None for one that is not there any more.
        about: vectors of the descriptions of those servers that have one.

    Attributes:
        rows, servers: how many there are.
        server_of: array (rows,): each row's server, numbered by name; -1 for none.
    """

    def __init__(
        self,
        servers: Sequence[str],
        intentions: Sequence[Sequence[int]] = (),
        vectors: Vectors | None = None,
        chains: Iterable[Sequence[int | None]] = (),
        about: Mapping[str, NDArray[np.floating]] | None = None,
    ) -> None:
        numbers = {name: number for number, name in enumerate(sorted(set(servers) - {""}))}
        self.rows, self.servers = len(servers), len(numbers)
        self.server_of = np.fromiter((numbers.get(name, -1) for name in servers), np.intp, len(servers))
        # Vectors only grow, and may do so for a later graph while this one is searched.
        self._vectors, self._intentions = vectors, len(vectors) if vectors is not None else 0
        described = {numbers[name]: vector for name, vector in (about or {}).items() if name in numbers}
        self._described = np.fromiter(described, np.intp, len(described))
        self._about = np.array([*described.values()], dtype=np.float32)

        intended = Counter((row, number) for row, of_row in enumerate(intentions) for number in of_row)
        self._intending, self._intended = _columns(intended)
        following: Counter[tuple[int, int]] = Counter()
        together: Counter[tuple[int, int]] = Counter()
        for chain in chains:
            following.update((a, b) for a, b in pairwise(chain) if a is not None and b is not None and a != b)
            together.update(combinations(sorted({row for row in chain if row is not None}), 2))
        having = Counter(
            (self.rows + server, row) for row, server in enumerate(self.server_of.tolist()) if server != -1
        )
        first = self.rows + self.servers
        meaning = {(row, first + number): count for (row, number), count in intended.items()}
        self._transitions = _transitions(self.nodes, following, [having, meaning, together])

    @property
    def nodes(self) -> int:
        """How many there are of all three kinds."""
        return self.rows + self.servers + self._intentions

    def intentions(self, query: Floats) -> Floats:
        """Cosines of the intentions with a query: array (intentions,)."""
        return np.zeros(0, np.float32) if self._vectors is None else self._vectors.scores(query)[: self._intentions]

    def best_intention(self, cosines: Floats) -> Floats:
        """The best of each row's intentions, given the cosines of all: array (rows,); 0 for a row without any."""
        best = np.full(self.rows, -np.inf, dtype=np.float32)
        np.maximum.at(best, self._intending, cosines[self._intended])
        return np.where(np.isneginf(best), np.float32(0), best)

    def intended(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which intentions one of these rows has: array (intentions,)."""
        found = np.zeros(self._intentions, dtype=bool)
        found[self._intended[rows[self._intending]]] = True
        return found

    def best_of_server(self, scores: NDArray[np.floating]) -> Floats:
        """The best of its rows' scores for each server: array (servers,); -inf for a server without rows."""
        best = np.full(self.servers, -np.inf, dtype=np.float32)
        served = self.server_of != -1
        np.maximum.at(best, self.server_of[served], scores[served].astype(np.float32))
        return best

    def described(self, query: Floats) -> Floats:
        """Cosines of the servers' own descriptions with a query: array (servers,); -inf where there is none."""
        cosines = np.full(self.servers, -np.inf, dtype=np.float32)
        if len(self._described):
            cosines[self._described] = np.einsum("sd,d->s", self._about, query)
        return cosines

    def relevance(self, rows: NDArray[np.floating], intentions: NDArray[np.floating], damping: float) -> Floats:
        """Personalised PageRank: where walks are that start, and with probability 1 - `damping` at each step start
        anew, at rows and intentions in proportion to the seeds given.

        Power iteration: of a graph with 32,000 nodes and 58,000 edges a seventh of the time that igraph's PRPACK takes.
        A walk that can go nowhere starts anew.

        Args:
            rows: seeds, not negative: array (rows,).
            intentions: seeds, not negative: array (intentions,).

        Returns:
            Probabilities: array (nodes,); all 0 without any seed.
        """
        seeds = np.concatenate([rows, np.zeros(self.servers), intentions]).astype(np.float32)
        if not seeds.any():
            return seeds
        seeds /= seeds.sum()
        at = seeds
        # After that many steps nothing but rounding could be missing.
        for _ in range(int(np.log(TOLERANCE) / np.log(damping)) + 1):
            moved = damping * (self._transitions @ at)
            moved += (1 - moved.sum()) * seeds
            change = np.abs(moved - at).sum()
            at = moved
            if change * damping < TOLERANCE * (1 - damping):
                break
        return at


def _columns(pairs: Iterable[tuple[int, int]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    both = np.array(list(pairs), dtype=np.intp).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _transitions(nodes: int, directed: _Counts, undirected: Sequence[_Counts]) -> Any:
    """Probability of the step from a node (column) to a node (row), by weight: sparse matrix (nodes, nodes)."""
    forth = [(*_columns(counts), np.log1p([*counts.values()])) for counts in (directed, *undirected)]
    back = [(end, start, weight) for start, end, weight in forth[1:]]
    source, target, weight = (np.concatenate(column) for column in zip(*forth, *back, strict=True))
    leaving = np.bincount(source, weights=weight, minlength=nodes)
    shares = (weight / leaving[source]).astype(np.float32)
    # Two relations between the same nodes add up. Numbers of 4 bytes are read faster than those of 8.
    return csr_array((shares, (target.astype(np.int32), source.astype(np.int32))), shape=(nodes, nodes))
