"""Makes training cases from data sets and stores them, once, as JSON lines that training streams.

Mining and drawing lists takes minutes, training hours. For the same recipe, data and embedder the files are the
same bytes.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from pydantic import TypeAdapter, ValidationError

from adapters.augment import shorten, vary
from adapters.datasets import (
    Case,
    Dataset,
    file_sha256,
    open_lines,
    read_candidates,
    read_dataset,
    read_trajectories,
    without_history,
)
from adapters.mining import CatalogueIndex, Embed, search_vectors
from adapters.mixture import CasesRecipe, Side, SourceRecipe, choose, generator, mixed, refuse_report_sets, side_of
from adapters.sampling import Sampler
from prompts import Candidate, Message, Template
from serving.prefilter.base import search_text


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """A routing question with its whole list and the distribution that the router should answer.

    `targets` has one weight for each candidate; with `none_weight` they sum to 1. Cases for calibration also hold the
    prefilter's score of each candidate, and their group.
    """

    case_id: str
    source: str
    messages: tuple[Message, ...]
    candidates: tuple[Candidate, ...]
    targets: tuple[float, ...]
    none_weight: float
    prefilter: tuple[float, ...] = ()
    group: str = ""


_LINE = TypeAdapter(TrainingCase)


def write_cases(path: Path, cases: Iterable[TrainingCase]) -> int:
    """Write JSON lines, gzipped without a time stamp; the file appears when it is whole. Returns how many."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    count = 0
    with partial.open("wb") as raw, gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as lines:
        for case in cases:
            lines.write(_LINE.dump_json(case, exclude_defaults=True) + b"\n")
            count += 1
    partial.replace(path)
    return count


def read_cases(path: Path) -> Iterator[TrainingCase]:
    """Stream training cases.

    Raises:
        ValueError: the file cannot be read, or a line is no training case; the message names the line.
    """
    for place, line in open_lines(path):
        try:
            yield _LINE.validate_json(line)
        except ValidationError as error:
            raise ValueError(f"{place}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def build_cases(recipe: CasesRecipe, root: Path, out: Path, embed: Embed) -> dict[str, Any]:
    """Write `{train,dev,calibration}.jsonl.gz` and `manifest.json` into `out`; returns the manifest.

    The cases for calibration are those of dev, each with what the prefilter keeps of everything that was on offer.

    Args:
        root: what the recipe's paths are relative to.
        embed: the embedder that finds hard negatives; for cases like those served, the prefilter's.

    Raises:
        ValueError: a source belongs to the report, cannot be read, or holds an error.
    """
    for name, source in recipe.sources.items():
        for said in (name, *(Path(path).name for path in (source.path, source.foreign, source.catalogue) if path)):
            refuse_report_sets(said)
    indexes = _Indexes(root, embed)
    parts: dict[str, list[list[TrainingCase]]] = {"train": [], "dev": [], "calibration": []}
    sources: dict[str, Any] = {}
    for name, source in recipe.sources.items():
        dataset = _read(source, root)
        foreign = indexes.of(source.foreign) if source.foreign else None
        sampler = Sampler(
            indexes.of(source.catalogue or source.path), foreign, _companions(dataset), source.lists or recipe.lists
        )
        for side, chosen in _chosen(dataset, source, recipe).items():
            parts[side].append(list(_drawn(chosen, dataset, sampler, recipe, embed)))
            if side == "dev":
                parts["calibration"].append(list(_served([case for case, _ in chosen], sampler, recipe, embed)))
        sources[name] = {
            "licence": source.licence,
            "sha256": dict(dataset.sha256),
            **{side: len(part[-1]) for side, part in parts.items()},
        }
    manifest: dict[str, Any] = {"recipe": recipe.model_dump(mode="json"), "sources": sources, "files": {}}
    for title, part in parts.items():
        file = out / f"{title}.jsonl.gz"
        write_cases(file, mixed(part, generator(recipe.seed, title)))
        manifest["files"][file.name] = file_sha256(file)
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return manifest


class _Indexes:
    """Each catalogue read and indexed once, by its path in the recipe."""

    def __init__(self, root: Path, embed: Embed) -> None:
        self._root = root
        self._embed = embed
        self._made: dict[str, CatalogueIndex] = {}

    def of(self, path: str) -> CatalogueIndex:
        if path not in self._made:
            self._made[path] = CatalogueIndex(read_candidates(self._root / path), self._embed)
        return self._made[path]


def _read(source: SourceRecipe, root: Path) -> Dataset:
    if source.catalogue is None:
        return read_dataset(root / source.path)
    return read_trajectories(root / source.path, root / source.catalogue)


def _companions(dataset: Dataset) -> Mapping[str, Sequence[str]]:
    """What the cases of each group have as gold."""
    golds: dict[str, dict[str, None]] = {}
    for case in dataset.cases:
        golds.setdefault(case.group, {}).update(dict.fromkeys(case.gold))
    return {group: tuple(ids) for group, ids in golds.items()}


def _chosen(dataset: Dataset, source: SourceRecipe, recipe: CasesRecipe) -> dict[Side, list[tuple[Case, int]]]:
    """The cases of either side, with their variants."""
    own_split = any(case.split == "train" for case in dataset.cases)
    sides: dict[Side, list[Case]] = {"train": [], "dev": []}
    for case in dataset.cases:
        side = side_of(case, own_split, source.dev_groups, recipe.dev_share)
        if side:
            sides[side].append(case)
    counts: dict[Side, int] = {"train": source.train, "dev": source.dev}
    chosen: dict[Side, list[tuple[Case, int]]] = {}
    for side, cases in sides.items():
        # A trajectory's answers are one "gold" (none): counted apart, or they would be as rare as one tool.
        answers = [case for case in cases if case.gold_mode == "none" and case.candidates is None]
        decisions = [case for case in cases if case.gold_mode != "none" or case.candidates is not None]
        share = counts[side] / source.train if source.train else 0
        chosen[side] = mixed(
            [
                choose(decisions, counts[side], recipe, source.variants),
                choose(answers, round(source.answers * share), recipe, 1),
            ],
            generator(recipe.seed, dataset.name, side),
        )
    return chosen


def _drawn(
    chosen: Sequence[tuple[Case, int]], dataset: Dataset, sampler: Sampler, recipe: CasesRecipe, embed: Embed
) -> Iterator[TrainingCase]:
    rngs = [generator(recipe.seed, case.source, case.case_id, variant) for case, variant in chosen]
    cases = [_asked(case, recipe, rng) for (case, _), rng in zip(chosen, rngs, strict=True)]
    texts = [search_text(case.messages, recipe.history_messages) for case in cases]
    vectors = search_vectors(texts, embed)
    for case, text, vector, rng in zip(cases, texts, vectors, rngs, strict=True):
        listing = sampler.draw(case, text, vector, rng)
        messages, candidates = case.messages, listing.candidates
        if rng.random() < recipe.varied:
            messages, candidates = vary(messages, candidates, dataset.by_id, rng)
        shown = tuple(map(_slim, candidates))
        yield TrainingCase(case.case_id, case.source, messages, shown, listing.targets, listing.none_weight)


def _served(cases: Sequence[Case], sampler: Sampler, recipe: CasesRecipe, embed: Embed) -> Iterator[TrainingCase]:
    """Each case once, as the server asks it: nothing is varied, and gold may be lost."""
    once = list({case.case_id: case for case in cases}.values())
    if recipe.history == "none":
        once = list(map(without_history, once))
    texts = [search_text(case.messages, recipe.history_messages) for case in once]
    vectors = search_vectors(texts, embed)
    for case, text, vector in zip(once, texts, vectors, strict=True):
        listing, scores = sampler.served(case, text, vector, recipe.k)
        shown = tuple(map(_slim, listing.candidates))
        yield TrainingCase(
            case.case_id, case.source, case.messages, shown, listing.targets, listing.none_weight, scores, case.group
        )


def _asked(case: Case, recipe: CasesRecipe, rng: Generator) -> Case:
    """The case as the router is asked it: whole, begun later, after the assistant's announcement, or bare."""
    if recipe.history == "none":
        return without_history(case)
    messages = case.messages
    if case.preface and rng.random() < recipe.prefaced:
        messages = (*messages, Message("assistant", case.preface))
    if rng.random() < recipe.shortened:
        messages = shorten(messages, rng)
    return dataclasses.replace(case, messages=messages)


def _slim(candidate: Candidate) -> Candidate:
    """What a template can read of a candidate: of its schema, the names of its parameters."""
    schema: dict[str, Any] = {}
    if candidate.parameters:
        required = [name for name, needed in candidate.parameters if needed]
        schema = {"properties": {name: {} for name, _ in candidate.parameters}, "required": required}
    return Candidate(
        id=candidate.id,
        name=candidate.name,
        description=candidate.description,
        type=candidate.type,
        server=candidate.server,
        input_schema=schema,
        tools=candidate.tools,
    )


def token_budget(cases: Iterable[TrainingCase], template: Template) -> dict[str, dict[str, float]]:
    """Means for each source under a pointwise template, and their sum under `all`.

    Columns: cases, candidates, none (share), prefix and continuation (tokens each), tokens (of a whole case).
    """
    rows: dict[str, list[tuple[float, ...]]] = {"all": []}
    for case in cases:
        prompt = template.render(case.messages, case.candidates)
        continuations = [len(ids) for ids in prompt.continuations]
        row = (len(case.candidates), case.none_weight, len(prompt.prefix), float(np.mean(continuations)), prompt.tokens)
        rows["all"].append(row)
        rows.setdefault(case.source, []).append(row)
    columns = ("candidates", "none", "prefix", "continuation", "tokens")
    return {
        source: {"cases": len(values), **dict(zip(columns, np.mean(values, axis=0).round(3).tolist(), strict=True))}
        for source, values in rows.items()
        if values
    }
