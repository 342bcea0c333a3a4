"""What an evaluation asks: sets of cases, the pool of candidates of each case, and the questions made of them.

Knows cases and candidates. Does not know who answers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from adapters.cases import TrainingCase, read_cases
from adapters.datasets import Case, Dataset, read_candidates, read_dataset, read_trajectories
from adapters.mixture import generator
from prompts import Candidate

PoolKind = Literal["clean", "multi", "mutation", "external"]


@dataclass(frozen=True, eq=False)
class Pool:
    """Candidates on offer. One object for all cases that share it, so that an index is built once."""

    candidates: tuple[Candidate, ...]

    @cached_property
    def ids(self) -> frozenset[str]:
        """Ids of the candidates."""
        return frozenset(candidate.id for candidate in self.candidates)

    @cached_property
    def digest(self) -> str:
        """Tells two pools apart by what a model can read of them, and its order."""
        text = json.dumps([(candidate.id, candidate.content_hash) for candidate in self.candidates])
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Question:
    """One case asked over one pool under one condition.

    Attributes:
        condition: `main`; `present` or `absent` (gold surely on offer, or removed); `single` (one candidate);
            `order:i` (the i-th shuffle of what main kept); `sweep:K` and `sweep-k:K` (gold among K); `repeat:i`;
            `poison:i:KIND` (one wrong candidate asks to be chosen).
        k: candidates that may reach the model.
        pinned: ids that surely do.
        temperature: 1 where the answer is to be drawn from the model's distribution, else 0.
        poisoned: the id that asks to be chosen, where one does.
    """

    case: Case
    pool: Pool
    condition: str
    k: int
    pinned: frozenset[str] = frozenset()
    temperature: float = 0.0
    poisoned: str | None = None

    @property
    def right(self) -> frozenset[str]:
        """Right ids that are on offer; empty where none is the answer."""
        return self.case.right & self.pool.ids

    @property
    def digest(self) -> str:
        """Of everything that can change the answer."""
        parts = [self.case.messages, self.pool.digest, self.k, sorted(self.pinned), self.temperature, self.condition]
        return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def needs(case: Case) -> tuple[frozenset[str], ...]:
    """What a ranking has to hold: groups of ids, of each of which one is enough."""
    if case.gold_groups:
        return tuple(map(frozenset, case.gold_groups))
    return (frozenset(case.gold),) if case.gold_mode == "one" else tuple(frozenset({id_}) for id_ in case.gold)


@dataclass(frozen=True)
class EvaluationSet:
    """Cases with the pool of each. `whole`: the pool is the list itself; all of it reaches the model."""

    name: str
    cases: tuple[Case, ...]
    pool: Callable[[Case], Pool]
    whole: bool = False

    def main(self, case: Case, k: int) -> Question:
        """The plain question: does gold come first?"""
        pool = self.pool(case)
        return Question(case, pool, "main", max(len(pool.candidates), 1) if self.whole else k)


def read_set(
    data: Path, spec: str, *, splits: Sequence[str] = (), limit: int | None = None, seed: int = 0,
    kind: PoolKind = "multi", extra: Sequence[Candidate] = (),
) -> EvaluationSet:  # fmt: skip
    """One set by its name on the command line.

    Args:
        data: folder of data sets.
        spec: a folder in `data`; `FILE=CATALOGUE`, trajectories and what their calls name; or a file of training
            cases (`*.jsonl.gz`), each asked over its own list.
        splits: only cases of these splits; all where empty.
        limit: at most so many cases, drawn by the seed; a higher limit adds to a lower one's.
        kind: clean: the candidates of gold's own servers. multi: all on offer. mutation, external: and `extra`.
        extra: candidates that are added to every pool of the last two kinds.

    Raises:
        ValueError: nothing to read there, or a line is wrong.
    """
    path, _, catalogue = spec.partition("=")
    if catalogue:
        dataset = read_trajectories(data / path, data / catalogue)
    elif (data / path).is_file():
        return _training_set(data / path, limit, seed)
    else:
        dataset = read_dataset(data / path)
    cases = [case for case in dataset.cases if not splits or case.split in splits]
    if not cases:
        known = ", ".join(sorted({case.split for case in dataset.cases})) or "none: it only lends candidates"
        raise ValueError(f"{spec} has no case of the splits {', '.join(splits) or '(all)'}; its splits: {known}")
    added = tuple(extra) if kind in {"mutation", "external"} else ()
    return EvaluationSet(dataset.name, drawn(cases, limit, seed), pools(dataset, kind, added))


def _training_set(path: Path, limit: int | None, seed: int) -> EvaluationSet:
    offered: dict[str, Pool] = {}
    cases: list[Case] = []
    for number, training in enumerate(read_cases(path)):
        case = _case(training, number, path.name.partition(".")[0])
        offered[case.case_id] = Pool(training.candidates)
        cases.append(case)
    return EvaluationSet(path.name.partition(".")[0], drawn(cases, limit, seed), lambda c: offered[c.case_id], True)


def _case(training: TrainingCase, number: int, name: str) -> Case:
    weighted = zip(training.candidates, training.targets, strict=True)
    gold = tuple(candidate.id for candidate, weight in weighted if weight > 0)
    return Case(
        case_id=f"{training.case_id}#{number}",  # one case may stand there with several lists
        source=training.source,
        messages=training.messages,
        gold=gold,
        gold_mode="one" if gold else "none",
        group=training.case_id,
        split=name,
    )


def drawn(cases: Sequence[Case], limit: int | None, seed: int) -> tuple[Case, ...]:
    """`limit` of the cases, in their order."""
    if limit is None or limit >= len(cases):
        return tuple(cases)
    order = sorted(range(len(cases)), key=lambda i: generator(seed, "limit", cases[i].case_id).random())
    return tuple(cases[i] for i in sorted(order[:limit]))


def pools(dataset: Dataset, kind: PoolKind, extra: tuple[Candidate, ...]) -> Callable[[Case], Pool]:
    """What is on offer for each case of a data set.

    A case in which nothing fits is only valid over its own list, where it has one.
    """
    held = {candidate.id for candidate in dataset.candidates}
    added = tuple(candidate for candidate in extra if candidate.id not in held)

    @lru_cache(maxsize=4096)
    def offered(servers: frozenset[str], excluded: frozenset[str]) -> Pool:
        own = (c for c in dataset.candidates if not servers or c.server in servers)
        return Pool(tuple(c for c in (*own, *added) if c.id not in excluded))

    def pool(case: Case) -> Pool:
        if case.gold_mode == "none" and case.candidates is not None:
            return Pool(tuple(dataset.by_id[id_] for id_ in case.candidates))
        servers = frozenset(case.servers)
        if kind == "clean" and case.gold:
            servers = frozenset(dataset.by_id[id_].server for id_ in case.gold)
        return offered(servers, case.excluded)

    return pool


def abstention_pair(main: Question) -> tuple[Question, ...]:
    """The case with gold surely on offer, and without it: as many candidates in both lists.

    Empty where nothing but gold is on offer.
    """
    case = main.case
    without = _without(main, case.right)
    k = min(main.k, len(without.candidates))
    if not case.gold or k == 0:
        return ()
    pinned = frozenset([group for group in map(_first(case), needs(case)) if group in main.pool.ids][:k])
    present = dataclasses.replace(main, condition="present", k=k, pinned=pinned)
    return present, dataclasses.replace(main, condition="absent", k=k, pool=without)


def _first(case: Case) -> Callable[[frozenset[str]], str]:
    order = {id_: place for place, id_ in enumerate((*case.gold, *(id_ for g in case.gold_groups for id_ in g)))}
    return lambda group: min(group, key=order.__getitem__)


def _without(question: Question, ids: frozenset[str]) -> Pool:
    return Pool(tuple(candidate for candidate in question.pool.candidates if candidate.id not in ids))


def single(main: Question) -> Question | None:
    """The case with one candidate: gold, or the only one that its list holds. None where that is not one."""
    ids = main.case.gold[:1] or (main.case.candidates or ())
    offered = [candidate for candidate in main.pool.candidates if candidate.id in ids]
    return Question(main.case, Pool(tuple(offered)), "single", 1) if len(ids) == len(offered) == 1 else None


def shuffles(main: Question, kept: Sequence[str], count: int, seed: int) -> list[Question]:
    """What the model read for `main`, in `count` other orders."""
    by_id = {candidate.id: candidate for candidate in main.pool.candidates}
    questions = []
    for i in range(count):
        order = generator(seed, "order", i, main.case.case_id).permutation(len(kept))
        pool = Pool(tuple(by_id[kept[position]] for position in order))
        questions.append(dataclasses.replace(main, pool=pool, condition=f"order:{i}", k=max(len(kept), 1)))
    return questions


def sweep(main: Question, sizes: Iterable[int | None], seed: int) -> list[Question]:
    """Gold among K candidates (None: the whole pool), the others drawn without replacement from the pool.

    `sweep:K` gives the model all K, `sweep-k:K` what the prefilter keeps of them (Toollery, tables 16 and 17).
    """
    if not main.case.gold:
        return []
    gold = next((c for c in main.pool.candidates if c.id == main.case.gold[0]), None)
    others = _without(main, main.case.right).candidates
    if gold is None:
        return []
    order = generator(seed, "sweep", main.case.case_id).permutation(len(others))
    questions = []
    for size in sizes:
        chosen = [gold, *(others[i] for i in order[: (len(others) + 1 if size is None else size) - 1])]
        if size is not None and len(chosen) < size:
            continue
        place = generator(seed, "sweep-order", size, main.case.case_id).permutation(len(chosen))
        pool, name = Pool(tuple(chosen[i] for i in place)), "all" if size is None else str(size)
        questions.append(dataclasses.replace(main, pool=pool, condition=f"sweep:{name}", k=len(chosen)))
        if len(chosen) > main.k:
            questions.append(dataclasses.replace(main, pool=pool, condition=f"sweep-k:{name}"))
    return questions


def read_extra(path: Path | None) -> tuple[Candidate, ...]:
    """A catalogue whose candidates are added to pools; empty where there is none. Raises ValueError as it is read."""
    return read_candidates(path) if path else ()
