"""Routing cases out of dialogues (ToolACE-MCP, section 3.4): every step is a question, what was called its answer.

Knows trajectories and the project's `cases` format. What a step is, `adapters.datasets.read_trajectories` says; here
its cases are given a side of the split and written beside their catalogue, as every data set stands.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from adapters.datasets import Case, Dataset, read_trajectories
from adapters.mixture import generator
from prompts import Candidate, Message
from prompts.question import query_position
from serving.catalog.exchange import write_json_lines

CATALOGUE, CASES = "catalog.jsonl.gz", "cases.jsonl.gz"

_MESSAGES = TypeAdapter(tuple[Message, ...])


@dataclasses.dataclass(frozen=True, slots=True)
class Sides:
    """Shares of the trajectories that are held out; all the others are train."""

    dev: float = 0.08
    test: float = 0.0


def supervise(
    trajectories: Path,
    catalogue: Path,
    out: Path,
    sides: Sides | None = None,
    seed: int = 0,
    *,
    everything_offered: bool = False,
) -> Dataset:
    """Write the cases of a file of trajectories, with their catalogue, as a data set in `out`; returns it.

    A call names a tool, an agent or a skill: cases are made of all alike. Every trajectory is on one side.

    Args:
        everything_offered: the whole catalogue may be offered in every case, not only the servers that the
            trajectories of its group called.

    Raises:
        ValueError: a file cannot be read, or a line is wrong.
    """
    dataset = split(read_trajectories(trajectories, catalogue), sides or Sides(), seed)
    if everything_offered:
        cases = tuple(dataclasses.replace(case, servers=()) for case in dataset.cases)
        dataset = dataclasses.replace(dataset, cases=cases)
    write_dataset(dataset, out)
    return dataset


def split(dataset: Dataset, sides: Sides, seed: int) -> Dataset:
    """With a side for every case that a user asked; what the assistant did before anybody spoke is no case."""
    asked = [case for case in dataset.cases if query_position(case.messages) is not None]
    cases = [dataclasses.replace(case, split=_side(case.group, sides, seed)) for case in asked]
    return dataclasses.replace(dataset, cases=tuple(cases))


def _side(group: str, sides: Sides, seed: int) -> str:
    place = generator(seed, "side", group).random()
    if place < sides.test:
        return "test"
    return "dev" if place < sides.test + sides.dev else "train"


def write_dataset(dataset: Dataset, out: Path) -> None:
    """Write catalogue and cases. The same data set is the same bytes."""
    write_json_lines(out / CATALOGUE, map(candidate_line, dataset.candidates))
    write_json_lines(out / CASES, map(case_line, dataset.cases))


def candidate_line(candidate: Candidate) -> dict[str, Any]:
    """A line of a catalogue."""
    line = {
        "id": candidate.id,
        "type": candidate.type,
        "server": candidate.server,
        "name": candidate.name,
        "description": candidate.description,
        "input_schema": dict(candidate.input_schema),
    }
    more = {name: getattr(candidate, name) for name in ("output_schema", "annotations", "tools", "tags")}
    return line | {name: value for name, value in more.items() if value}


def case_line(case: Case) -> dict[str, Any]:
    """A line of cases. The query is the latest message of the user; where it is the last, history is all before it."""
    position = query_position(case.messages)
    if position is None:
        raise ValueError(f"the case {case.case_id} has no message of a user: there is no query")
    asked_now = position == len(case.messages) - 1
    history = case.messages[:position] if asked_now else case.messages
    line = {
        "case_id": case.case_id,
        "query": case.messages[position].content,
        "query_pos": position,
        "history": _MESSAGES.dump_python(history, mode="json", exclude_defaults=True),
        "gold": case.gold,
        "gold_mode": case.gold_mode,
        "split": case.split,
        "group": case.group,
    }
    more = {
        "gold_groups": case.gold_groups,
        "candidates": case.candidates,
        "excluded": sorted(case.excluded),
        "servers": case.servers,
        "repeats_last_call": case.repeats_last_call,
        "preface": case.preface,
    }
    return line | {name: value for name, value in more.items() if value}


def counted(cases: Sequence[Case]) -> dict[str, dict[str, int]]:
    """Cases by side: with a candidate as gold, and with none."""
    sides = Counter((case.split, bool(case.gold)) for case in cases)
    return {
        side: {"decisions": sides[side, True], "none": sides[side, False]}
        for side in sorted({side for side, _ in sides})
    }
