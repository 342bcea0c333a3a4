"""Tasks for an agent, out of recorded trajectories that nothing was trained on.

Knows trajectories, the recipe of the training cases and what of it is held out. Does not know who works on a task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from adapters.datasets import Case, read_trajectories, whole_trajectories
from adapters.mixture import CasesRecipe, side_of
from adapters.questions import Pool, PoolKind, drawn, pools
from prompts import Candidate, Message


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call.

    Attributes:
        candidate: the id.
        arguments: JSON text.
        result: what it gave back.
        need: what the assistant said it was about to do; the user's latest words where it said nothing.
        before: the conversation up to the call.
    """

    candidate: str
    arguments: str
    result: str
    need: str
    before: tuple[Message, ...]


@dataclass(frozen=True)
class Task:
    """A trajectory to be done again.

    Attributes:
        case: its first decision, with every candidate that the trajectory called as gold.
        messages: as recorded.
        pool: what was on offer.
    """

    case: Case
    messages: tuple[Message, ...]
    pool: Pool

    @property
    def id(self) -> str:
        """Unique in its file."""
        return self.case.group

    @property
    def requests(self) -> list[str]:
        """What the user says, in order."""
        return [message.content for message in self.messages if message.role == "user"]

    @property
    def gold(self) -> tuple[str, ...]:
        """Every candidate that the trajectory called, in the order of its first call."""
        return self.case.gold

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """What was called, in order."""
        calls: list[Call] = []
        waiting: list[int] = []
        query = ""
        for position, message in enumerate(self.messages):
            if message.role == "user":
                query = message.content
            elif message.role == "tool":
                at = next((at for at in waiting if calls[at].candidate == message.name), next(iter(waiting), None))
                if at is not None:
                    waiting.remove(at)
                    calls[at] = dataclasses.replace(calls[at], result=message.content)
            for call in message.tool_calls:
                waiting.append(len(calls))
                need = message.content.strip() or query
                calls.append(Call(call.name, call.arguments, "", need, self.messages[:position]))
        return tuple(calls)


def held_out_tasks(
    data: Path, spec: str, recipe: CasesRecipe, *, groups: Sequence[str] = (), limit: int | None = None, seed: int = 0,
    kind: PoolKind = "multi", extra: Sequence[Candidate] = (),
) -> list[Task]:  # fmt: skip
    """The trajectories of a file that the recipe holds out of training, as `adapters.cases` does, by their group.

    Args:
        data: folder that `spec` is relative to.
        spec: `TRAJECTORIES=CATALOGUE`.
        recipe: of the training cases. Its source of this file's name says which groups are held out; for a file that
            it does not name the hash of the group decides, as for a source that names none.
        groups: only of these groups of the file; all where empty.
        limit: at most so many, drawn by the seed.
        kind, extra: as `adapters.questions.read_set`.

    Raises:
        ValueError: the files cannot be read, or nothing in them is held out.
    """
    path, _, catalogue = spec.partition("=")
    if not catalogue:
        raise ValueError(f"{spec!r} should be TRAJECTORIES=CATALOGUE, two paths in {data}")
    dataset = read_trajectories(data / path, data / catalogue)
    recorded = whole_trajectories(data / path)
    own_split = any(case.split == "train" for case in dataset.cases)
    dev_groups = next(
        (source.dev_groups for source in recipe.sources.values() if Path(source.path).name == Path(path).name), ()
    )
    pool_of = pools(dataset, kind, tuple(extra) if kind in {"mutation", "external"} else ())
    chosen = [
        case
        for case in _whole(dataset.cases)
        if side_of(case, own_split, dev_groups, recipe.dev_share) == "dev"
        and (not groups or case.split in groups)
        and recorded[case.group][0].role == "user"
    ]
    if not chosen:
        raise ValueError(
            f"{spec} has no trajectory that is held out of training and calls a candidate of the groups "
            f"{', '.join(groups) or '(all)'}; held out are {', '.join(dev_groups) or f'{recipe.dev_share:.0%} by hash'}"
        )
    return [Task(case, recorded[case.group], pool_of(case)) for case in drawn(chosen, limit, seed)]


def _whole(cases: Iterable[Case]) -> list[Case]:
    """One case for each trajectory that calls a candidate: its first, with everything called as gold."""
    first: dict[str, Case] = {}
    gold: dict[str, dict[str, None]] = {}
    for case in cases:
        first.setdefault(case.group, case)
        gold.setdefault(case.group, {}).update(dict.fromkeys(case.gold))
    return [
        dataclasses.replace(case, gold=tuple(gold[group]), gold_mode="all")
        for group, case in first.items()
        if gold[group]
    ]


def found_sets(data: Path) -> list[str]:
    """The trajectories in a folder as `TRAJECTORIES=CATALOGUE`: `NAME.catalog.jsonl` beside each, or `catalog.jsonl`.

    Raises:
        ValueError: there is none, or one has no catalogue.
    """
    found: list[str] = []
    for path in sorted([*data.glob("*trajectories.jsonl"), *data.glob("*trajectories.jsonl.gz")]):
        stem = path.name.partition("trajectories.jsonl")[0]
        beside = [f"{name}{end}" for name in (f"{stem}catalog.jsonl", "catalog.jsonl") for end in ("", ".gz")]
        catalogue = next((name for name in beside if (data / name).exists()), None)
        if catalogue is None:
            raise ValueError(f"{path} has no catalogue beside it ({beside[0]}); name it: --sets {path.name}=CATALOGUE")
        found.append(f"{path.name}={catalogue}")
    if not found:
        raise ValueError(f"{data} has no *trajectories.jsonl; name one: --sets TRAJECTORIES=CATALOGUE")
    return found
