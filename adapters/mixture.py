"""Which cases are trained on: the recipe of a mix, what is held out, and how the most diverse cases are chosen.

Knows cases by their groups, gold and words. Does not know candidate lists or files.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import yaml
from numpy.random import Generator
from pydantic import BaseModel, ConfigDict, Field

from adapters.datasets import Case
from adapters.sampling import ListSettings

# These sets are the report. A name that begins so never becomes a training case.
REPORT_SETS = ("bfcl_", "apibank", "tooltalk", "taubench_airline", "a2a_agents")

Item = TypeVar("Item")
Side = Literal["train", "dev"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceRecipe(_Section):
    """One data set of a mix."""

    path: str
    """A folder with catalogue and cases, or a file of trajectories; relative to the data's root."""
    catalogue: str | None = None
    """Trajectories: the catalogue file whose ids they call."""
    licence: str
    train: int = Field(ge=0)
    dev: int = Field(ge=0)
    answers: int = Field(default=0, ge=0)
    """Trajectories: further training cases in which the assistant should answer and no candidate act."""
    foreign: str | None = None
    """A catalogue file that lends distractors."""
    dev_groups: tuple[str, ...] = ()
    """Groups, or the beginnings of their names, that are held out; otherwise the hash of the group decides."""
    lists: ListSettings | None = None
    """How its lists are drawn, where that differs from the recipe's `lists`."""
    variants: int = Field(default=1, ge=1)
    """How often one case may be used, each time with another list."""


class CasesRecipe(_Section):
    """What to build. `sources` are mixed evenly: every stretch of the file holds them in the same shares."""

    seed: int = 0
    sources: dict[str, SourceRecipe]
    lists: ListSettings = ListSettings()
    dev_share: float = Field(default=0.08, gt=0, lt=1)
    """Share of the groups that is held out, where a source has no split of its own."""
    history: Literal["keep", "none"] = "keep"
    """`none` strips every case to query and observation: the ablation."""
    history_messages: int = Field(default=4, ge=0)
    """Messages before query and observation that hard negatives are searched with, as in a profile's prefilter."""
    k: int = Field(default=10, ge=1)
    """Candidates that the prefilter keeps in cases for calibration, as in a profile."""
    per_group: int = Field(default=6, ge=1)
    """Cases of one dialogue, trajectory or first request, before variants."""
    repeats: float = Field(default=0.7, ge=0, le=1)
    """Share kept of the cases in which the last tool is called again: enough to know that it happens, and too few for
    it to be the lesson."""
    shortened: float = Field(default=0.2, ge=0, le=1)
    """Share of cases whose history begins later."""
    prefaced: float = Field(default=0.15, ge=0, le=1)
    """Share of trajectory steps asked after the assistant has said what it is about to do."""
    varied: float = Field(default=0.7, ge=0, le=1)
    """Share of cases with other names, servers and descriptions."""

    @classmethod
    def load(cls, path: Path) -> CasesRecipe:
        """Read a recipe's `cases` section, or a file that holds nothing else."""
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return cls.model_validate(values.get("cases", values))


def refuse_report_sets(name: str) -> None:
    """Raises ValueError for a set that must never be trained on."""
    if name.startswith(REPORT_SETS):
        raise ValueError(f"{name} is one of the report's sets ({', '.join(REPORT_SETS)}): never train on it")


def side_of(case: Case, own_split: bool, dev_groups: Sequence[str], dev_share: float) -> Side | None:
    """On which side of the split a case stands; None for neither. Cases of one group always stand together.

    Args:
        case: its `group` decides, so that two sets over the same dialogues agree.
        own_split: whether its source has cases named train; then its own split is followed.
        dev_groups: beginnings of the names of held-out groups; where given, they alone are held out.
        dev_share: share of the groups held out by their hash.
    """
    if case.split == "test":
        return None
    if own_split:
        return {"train": "train", "dev": "dev"}.get(case.split)  # type: ignore[return-value]
    if dev_groups:
        return "dev" if case.group.startswith(tuple(dev_groups)) else "train"
    return "dev" if _fraction(case.group) < dev_share else "train"


def _digest(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b("\x00".join(map(str, parts)).encode(), digest_size=8).digest(), "big")


def _fraction(*parts: object) -> float:
    """A number in [0, 1) that only the parts decide."""
    return _digest(*parts) / 2**64


def generator(*parts: object) -> Generator:
    """The random numbers that belong to these parts, whatever was drawn before."""
    return np.random.default_rng(_digest(*parts))


def choose(cases: Iterable[Case], count: int, recipe: CasesRecipe, variants: int) -> list[tuple[Case, int]]:
    """The most diverse `count` cases, each with the number of its variant.

    Rare gold comes first: the n-th case of a gold set stands before any n+1-th. Requests that say the same once
    numbers and case are left out are used once, a group at most `recipe.per_group` times.
    """
    groups: Counter[str] = Counter()
    golds: Counter[tuple[str, ...]] = Counter()
    seen: set[str] = set()
    ordered: list[tuple[int, Case]] = []
    for case in sorted(cases, key=lambda case: _digest(recipe.seed, case.source, case.case_id)):
        if case.repeats_last_call and _fraction("repeats", case.case_id) >= recipe.repeats:
            continue
        words = _content_key(case)
        if words in seen or groups[case.group] >= recipe.per_group:
            continue
        seen.add(words)
        groups[case.group] += 1
        ordered.append((golds[case.gold], case))
        golds[case.gold] += 1
    ordered.sort(key=lambda item: item[0])
    return [(case, variant) for variant in range(variants) for _, case in ordered][:count]


def _content_key(case: Case) -> str:
    """Gold, query and the last two messages, letters only: equal for cases that ask the same."""
    query = next((message.content for message in reversed(case.messages) if message.role == "user"), "")
    text = "".join([query, *(message.content for message in case.messages[-2:])]).casefold()
    wrong = case.candidates if case.candidates and not case.gold else ()
    return "|".join((*case.gold, *wrong, "".join(filter(str.isalpha, text))))


def mixed(parts: Sequence[Sequence[Item]], rng: Generator) -> list[Item]:
    """All items of all parts, so that every stretch holds the parts in their shares; the order inside is kept."""
    placed = [
        ((place + rng.random()) / len(part), number, item)
        for number, part in enumerate(parts)
        for place, item in enumerate(part)
    ]
    return [item for _, _, item in sorted(placed, key=lambda entry: entry[:2])]
