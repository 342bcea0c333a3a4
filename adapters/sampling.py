"""Draws the candidate list of a training case: gold, hard and easy negatives, or no gold at all.

Knows cases and catalogue indexes. Does not know how many cases are made, or from which sets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from adapters.datasets import Case
from adapters.mining import CatalogueIndex, Vectors, cosines
from prompts import Candidate
from serving.prefilter.base import SearchText

Positions = NDArray[np.intp]

# Lengths of a list, each as (shares of lists, least, most): mostly about ten, as in serving; sometimes one or two,
# as in a request that the caller has narrowed down.
LENGTHS = ((0.06, 1, 1), (0.16, 2, 4), (0.25, 5, 8), (0.31, 9, 11), (0.15, 12, 16), (0.07, 17, 24))
# From which part of the ranking a hard negative is drawn.
HARD_DEPTH = 40
# Distractors from another catalogue that resemble the query are drawn from this many.
FOREIGN_DEPTH = 200
# Right candidates that one list shows at most.
MOST_GOLD = 6


class ListSettings(BaseModel):
    """How lists are drawn. Cosines are those of the embedder of the index."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    none: float = Field(default=0.13, ge=0, le=1)
    """Share of the cases with gold that lose it."""
    served: float = Field(default=0.6, ge=0, le=1)
    """Share of lists that are the head of the ranking, as in serving; the others mix kinds of negatives."""
    own_list: float = Field(default=0.3, ge=0, le=1)
    """Share of lists that are the source's own, where it has one."""
    few_servers: float = Field(default=0.35, ge=0, le=1)
    """Share of cases in which only some of the servers are connected."""
    near_same_server: float = 0.9
    """From this cosine on, a candidate of gold's server (any, where servers have no names) may be as right as gold
    and is no negative."""
    near_elsewhere: float = 0.75
    """The same for candidates of other servers, which more often do just what gold does."""
    foreign_far: float = 0.5
    """Candidates of a foreign catalogue must stay under this cosine to gold."""
    # Kinds of negatives of a mixed list.
    hard: float = 0.45
    companions: float = 0.2
    """What the same dialogue or trajectory calls at another time: only history tells these from gold."""
    same_server: float = 0.1
    random: float = 0.1
    foreign: float = 0.15


@dataclass(frozen=True, slots=True)
class Listing:
    """A drawn list. `targets` and `none_weight` are a distribution: what the router should answer."""

    candidates: tuple[Candidate, ...]
    targets: tuple[float, ...]
    none_weight: float


class Sampler:
    """Draws lists for the cases of one data set.

    Args:
        index: the set's own catalogue.
        foreign: a catalogue that lends distractors, or None.
        companions: ids that the cases of each group have as gold.
    """

    def __init__(
        self,
        index: CatalogueIndex,
        foreign: CatalogueIndex | None,
        companions: Mapping[str, Sequence[str]],
        settings: ListSettings,
    ) -> None:
        self._index = index
        self._foreign = foreign
        self._companions = companions
        self._settings = settings
        self._all = np.arange(len(index.candidates))

    def draw(self, case: Case, text: SearchText, vector: Vectors, rng: Generator) -> Listing:
        """One list for `case`. `text` is what the prefilter would search for, `vector` its embedding."""
        length = _length(rng)
        gold = self._shown_gold(case, length, rng)
        if rng.random() < self._settings.none:
            gold = []
        own_list = case.candidates is not None and (not case.gold or rng.random() < self._settings.own_list)
        pool = self._pool(case, own_list, rng)
        ranked = self._index.ranking(text, vector, pool[~np.isin(pool, self._never_negative(case))])
        missing = max(length - len(gold), 0 if gold else 1)
        chosen = list(ranked[:missing]) if own_list or rng.random() < self._settings.served else []
        foreign: list[Candidate] = []
        if not chosen:
            chosen, foreign = self._mixed(case, ranked, vector, missing, rng)
        elif own_list and len(chosen) < missing and rng.random() < 0.5:
            foreign = self._distractors(case, vector, missing - len(chosen), rng)
        if not (gold or chosen or foreign):  # nothing else is on offer: without gold the list would be empty
            gold = self._shown_gold(case, length, rng)
        own = [self._index.candidates[position] for position in (*gold, *chosen)]
        share = 1.0 / len(gold) if gold else 0.0
        weighted = [(candidate, share if i < len(gold) else 0.0) for i, candidate in enumerate(own)]
        taken = {candidate.id for candidate in own}
        weighted += [(candidate, 0.0) for candidate in foreign if candidate.id not in taken]
        shuffled = [weighted[i] for i in rng.permutation(len(weighted))]
        return Listing(
            candidates=tuple(candidate for candidate, _ in shuffled),
            targets=tuple(weight for _, weight in shuffled),
            none_weight=0.0 if gold else 1.0,
        )

    def served(self, case: Case, text: SearchText, vector: Vectors, k: int) -> tuple[Listing, tuple[float, ...]]:
        """The best `k` of everything on offer, best first, whether gold is among them or not; and their scores.

        A case in which nothing fits is only valid over its own list.
        """
        index = self._index
        if not case.gold and case.candidates is not None:
            pool = np.array([index.position[id_] for id_ in case.candidates], dtype=np.intp)
        else:
            codes = [index.server_codes[name] for name in case.servers]
            pool = np.flatnonzero(np.isin(index.servers, codes)) if codes else self._all
            pool = pool[~np.isin(pool, [index.position[id_] for id_ in case.excluded if id_ in index.position])]
        scores = index.scores(text, vector, pool)
        best = np.argsort(-scores, kind="stable")[:k]
        kept = [index.candidates[position] for position in pool[best]]
        right = [candidate.id in case.right for candidate in kept]
        share = 1 / sum(right) if any(right) else 0.0
        listing = Listing(tuple(kept), tuple(share * is_right for is_right in right), 0.0 if share else 1.0)
        return listing, tuple(scores[best].tolist())

    def _shown_gold(self, case: Case, length: int, rng: Generator) -> list[int]:
        """Positions of the right candidates that the list shows: one of each group, and never the whole list."""
        ids = [str(rng.choice(group)) for group in case.gold_groups] if case.gold_groups else list(case.gold)
        most = max(min(MOST_GOLD, length // 2), 1)
        return [self._index.position[ids[i]] for i in rng.permutation(len(ids))[:most]]

    def _pool(self, case: Case, own_list: bool, rng: Generator) -> Positions:
        """What is on offer: the source's own list, the candidates of some servers, or the whole catalogue."""
        index = self._index
        if own_list and case.candidates is not None:
            return np.array([index.position[id_] for id_ in case.candidates], dtype=np.intp)
        offered = np.array(sorted(index.server_codes[name] for name in case.servers) or np.unique(index.servers))
        if len(offered) > 1 and rng.random() < self._settings.few_servers:
            called = [*case.gold, *(call.name for message in case.messages for call in message.tool_calls)]
            needed = index.servers[[index.position[id_] for id_ in called if id_ in index.position]]
            more = int(len(offered) ** rng.random())  # log-uniform: one server as often as dozens
            offered = np.union1d(needed, rng.choice(offered, size=more, replace=False))
        elif not case.servers:
            return self._all
        return np.flatnonzero(np.isin(index.servers, offered))

    def _never_negative(self, case: Case) -> Positions:
        """Right ids, excluded ids, and candidates so like a right one that they may be right too."""
        index, settings = self._index, self._settings
        never = np.zeros(len(index.candidates), dtype=bool)
        never[[index.position[id_] for id_ in case.excluded if id_ in index.position]] = True
        for id_ in case.right:
            position = index.position[id_]
            cosine = cosines(index.vectors, index.vectors[position])
            here = index.servers == index.servers[position]
            never |= np.where(here, cosine >= settings.near_same_server, cosine >= settings.near_elsewhere)
            never |= (index.names == index.names[position]) & (here | (cosine >= settings.foreign_far))
            if index.candidates[position].description:
                never |= index.descriptions == index.descriptions[position]
            never[position] = True
        return np.flatnonzero(never)

    def _mixed(
        self, case: Case, ranked: Positions, vector: Vectors, missing: int, rng: Generator
    ) -> tuple[list[int], list[Candidate]]:
        settings, index = self._settings, self._index
        companions = [index.position[id_] for id_ in self._companions.get(case.group, ())]
        servers = index.servers[[index.position[id_] for id_ in case.gold]]
        kinds = {
            "hard": ranked[:HARD_DEPTH],
            "companions": ranked[np.isin(ranked, companions)],
            "same_server": ranked[np.isin(index.servers[ranked], servers)],
            "random": ranked,
        }
        names = [*kinds, "foreign"]
        shares = np.array([getattr(settings, name) for name in names])
        drawn = rng.choice(names, size=missing, p=shares / shares.sum())
        chosen: list[int] = []
        for kind, positions in kinds.items():
            chosen += _picked(positions, int((drawn == kind).sum()), chosen, rng)
        lent = int((drawn == "foreign").sum()) if len(ranked) else missing
        foreign = self._distractors(case, vector, lent, rng)
        # What a kind could not give (no companion, no foreign catalogue), the ranking gives.
        rest = ranked[~np.isin(ranked, chosen)].tolist()
        return chosen + rest[: missing - len(chosen) - len(foreign)], foreign

    def _distractors(self, case: Case, vector: Vectors, count: int, rng: Generator) -> list[Candidate]:
        """Candidates of the foreign catalogue, half like the query and half any, none of them like gold."""
        if self._foreign is None or not count:
            return []
        far = np.ones(len(self._foreign.candidates), dtype=bool)
        for id_ in case.right:
            gold = self._index.vectors[self._index.position[id_]]
            far &= cosines(self._foreign.vectors, gold) < self._settings.foreign_far
        cosine = cosines(self._foreign.vectors, vector)
        if not case.right:  # nothing to compare with: only what is far from the query is safely wrong
            far &= cosine < self._settings.foreign_far / 2
        positions = np.flatnonzero(far)
        like = positions[np.argsort(-cosine[positions], kind="stable")[:FOREIGN_DEPTH]]
        picks = _picked(like, count // 2, [], rng)
        picks += _picked(positions, count - len(picks), picks, rng)
        lent = [self._foreign.candidates[position] for position in picks]
        # Where a catalogue names no servers, a server in front would tell the distractors apart.
        served = any(candidate.server for candidate in self._index.candidates)
        return lent if served else [dataclasses.replace(candidate, server="") for candidate in lent]


def _picked(positions: Positions, count: int, taken: Sequence[int], rng: Generator) -> list[int]:
    """At most `count` of `positions` that are not taken, at random."""
    left = positions[~np.isin(positions, taken)]
    picked: list[int] = rng.choice(left, size=min(count, len(left)), replace=False).tolist()
    return picked


def _length(rng: Generator) -> int:
    _, least, most = LENGTHS[rng.choice(len(LENGTHS), p=[share for share, _, _ in LENGTHS])]
    return int(rng.integers(least, most + 1))
