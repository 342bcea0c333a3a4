"""Which candidates a task is made for: a walk through the graph, in depth, from a seed (ToolACE-MCP, section 3.4).

Knows the graph and servers. Does not know tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from adapters.graph import KINDS, Graph
from prompts import Candidate

# How readily an edge is followed: what depends on each other makes tasks of several steps, what is similar makes them
# hard to route. One of a kind is taken about as often as one of another, however many there are.
PULL = {"similarity": 1.0, "dependency": 2.0, "mutation": 1.0}


class Walker:
    """Walks a graph.

    Args:
        candidates: of every position of the graph.
        least, most: candidates of a subset.
    """

    def __init__(self, graph: Graph, candidates: Sequence[Candidate], least: int, most: int) -> None:
        self._graph = graph
        self._candidates = candidates
        self._least, self._most = least, most
        self._servers: dict[str, list[int]] = {}
        for place, candidate in enumerate(candidates):
            self._servers.setdefault(candidate.server, []).append(place)
        connected = np.flatnonzero(graph.degrees > 0)
        # Without any edge, everything is as good a beginning.
        self._seeds = connected if len(connected) else np.arange(len(candidates))

    def subset(self, rng: Generator) -> list[int]:
        """Positions, in an order that says nothing. Smaller than `least` only where the catalogue is.

        Where the walk has nowhere to go on, another candidate of the servers seen so far is a seed, then any.
        """
        size = min(int(rng.integers(self._least, self._most + 1)), len(self._candidates))
        visited: dict[int, None] = {}
        while len(visited) < size:
            seed = self._seed(visited, rng)
            if seed is None:
                break
            self._descend(seed, size, visited, rng)
        order: list[int] = rng.permutation(list(visited)).tolist()
        return order

    def _descend(self, seed: int, size: int, visited: dict[int, None], rng: Generator) -> None:
        """Visit in depth: of a candidate's neighbours the first, then of its neighbours the first, and back up."""
        visited[seed] = None
        stack = [self._in_turn(seed, rng)]
        while stack and len(visited) < size:
            following = next((place for place in stack[-1] if place not in visited), None)
            if following is None:
                stack.pop()
            else:
                visited[following] = None
                stack.append(self._in_turn(following, rng))

    def _in_turn(self, place: int, rng: Generator) -> list[int]:
        """Neighbours, drawn by the pull of their edges."""
        others, kinds = self._graph.neighbours(place)
        counts = np.bincount(kinds, minlength=len(KINDS))
        pull = np.array([PULL[kind] for kind in KINDS])[kinds] / np.maximum(counts, 1)[kinds]
        # Exponential clocks: sorting by them draws without replacement in proportion to the pull.
        order = np.argsort(rng.exponential(size=len(others)) / np.maximum(pull, 1e-9), kind="stable")
        return list(dict.fromkeys(others[order].tolist()))

    def _seed(self, visited: dict[int, None], rng: Generator) -> int | None:
        servers = dict.fromkeys(self._candidates[place].server for place in visited)
        near = [place for server in servers for place in self._servers[server] if place not in visited]
        if near:
            return int(rng.choice(near))
        if visited and len(visited) >= self._least:
            return None  # whatever came now would have nothing to do with the rest
        left = self._seeds[~np.isin(self._seeds, list(visited))]
        if not len(left):
            left = np.setdiff1d(np.arange(len(self._candidates)), list(visited))
        return int(rng.choice(left)) if len(left) else None
