"""The tree of token sequences that a choice may be written as: where it forks, and what a fork decides.

Knows token ids and an engine's `score`. Where a path has one way on, the constraint decides and no model is
asked; only forks are read. Sequences that begin alike share their forks, and a sequence that ends where another
goes on is told apart by the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.engine.base import Choice, ChoiceRequest, Engine, ScoreRequest


@dataclass(frozen=True, slots=True)
class Fork:
    """A place with several ways on: the path to it, and for each next token the choices that go that way."""

    path: tuple[int, ...]
    ways: dict[int, list[int]]


def forks(sequences: Sequence[Sequence[int]], end_token: int) -> list[Fork]:
    """All forks of the tree, parents before children; empty where there is one sequence.

    Raises:
        ValueError: two sequences are equal, so that nothing can tell them apart.
    """
    whole = [(*sequence, end_token) for sequence in sequences]
    if len(set(whole)) != len(whole):
        raise ValueError("two choices have the same tokens; choices must be unique")
    found: list[Fork] = []
    open_groups: list[tuple[int, list[int]]] = [(0, list(range(len(whole))))]
    while open_groups:
        depth, members = open_groups.pop(0)
        while len(members) > 1:
            ways: dict[int, list[int]] = {}
            for member in members:
                ways.setdefault(whole[member][depth], []).append(member)
            if len(ways) > 1:
                found.append(Fork(whole[members[0]][:depth], ways))
                open_groups += [(depth + 1, group) for group in ways.values()]
                break
            depth += 1
    return found


async def _ask(engine: Engine, request: ChoiceRequest, places: Sequence[Fork]) -> list[NDArray[np.float64]]:
    """Log-probabilities of each fork's ways, normalised over them, in one question."""
    labels = sorted({token for fork in places for token in fork.ways})
    scores = await engine.score(
        ScoreRequest(
            prefix=list(request.prompt[:-1]),
            continuations=[[request.prompt[-1], *fork.path] for fork in places],
            labels=labels,
            cache_salt=request.cache_salt,
            deadline=request.deadline,
        )
    )
    column = {token: position for position, token in enumerate(labels)}
    rows = [scores.logprobs[row][[column[token] for token in fork.ways]] for row, fork in enumerate(places)]
    return [row - np.logaddexp.reduce(row) for row in rows]


async def choose_by_scoring(engine: Engine, request: ChoiceRequest) -> Choice:
    """Greedy constrained generation by asking at every fork that the written path meets."""
    tree = {fork.path: fork for fork in forks(request.choice_ids, request.end_token)}
    members = list(range(len(request.choices)))
    total = 0.0
    tokens = len(request.prompt)
    while len(members) > 1:
        fork = next(fork for fork in tree.values() if {m for way in fork.ways.values() for m in way} == set(members))
        (row,) = await _ask(engine, request, [fork])
        best = int(np.argmax(row))
        total += float(row[best])
        members = list(fork.ways.values())[best]
    return Choice(position=members[0], logprob=total, prompt_tokens=tokens, cached_tokens=0)


async def posterior_over_choices(engine: Engine, request: ChoiceRequest) -> NDArray[np.float64]:
    """Log-probability of every choice under the constraint, shape (choices,), by reading every fork at once."""
    places = forks(request.choice_ids, request.end_token)
    logprobs = np.zeros(len(request.choices))
    if not places:
        return logprobs
    for fork, row in zip(places, await _ask(engine, request, places), strict=True):
        for way, members in enumerate(fork.ways.values()):
            logprobs[members] += row[way]
    return logprobs
