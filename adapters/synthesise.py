"""The data factory: a catalogue in, routing cases out (ToolACE-MCP, sections 3.3 and 3.4).

Every stage reads the one before, and leaves files that people can read and the hashes of what it read and wrote. Every
finished call stands in the LLM's journal, so a run that was stopped at any moment is started again with the same
command: it walks through all stages again and asks only what has no answer yet. From the same answers and seed all
files are the same bytes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress

from adapters.asking import Asker
from adapters.datasets import Dataset, file_sha256, read_catalogue
from adapters.graph import KINDS, THRESHOLD, Graph, build_graph, specification
from adapters.mining import Embed
from adapters.mutation import Mutations, mutations
from adapters.supervision import CASES, CATALOGUE, Sides, candidate_line, counted, supervise
from adapters.trajectories import Play, Trajectories, trajectories
from adapters.walk import Walker
from prompts import Candidate, enrichment, synthesis
from serving.catalog.exchange import write_json_lines
from serving.llm import Prices

MANIFEST = "manifest.json"
MUTANTS, EDGES = "mutants.jsonl", "edges.jsonl.gz"
KEPT, REJECTED = "synthetic.trajectories.jsonl", "rejected.jsonl"


@dataclass(frozen=True, slots=True)
class Settings:
    """What is made.

    Attributes:
        count: trajectories that pass the filter.
        mutants: new candidates; the paper made 1,378 out of 627.
        threshold: cosine above which candidates are neighbours.
        play: how dialogues are played.
        sides: shares of the trajectories that are held out.
    """

    count: int
    mutants: int = 0
    threshold: float = THRESHOLD
    play: Play = field(default_factory=Play)
    sides: Sides = field(default_factory=Sides)
    seed: int = 0


@dataclass(frozen=True)
class Made:
    """All that a run made, for its report."""

    settings: Settings
    catalogue: Sequence[Candidate]
    """What was given."""
    mutations: Mutations
    graph: Graph
    trajectories: Trajectories
    dataset: Dataset
    """Catalogue with mutants, and cases."""
    manifest: Mapping[str, Any]


class _Run:
    def __init__(self, out: Path, asker: Asker, prices: Prices, progress: Progress | None) -> None:
        self.out = out
        self.manifest: dict[str, Any] = {"stages": {}}
        self._asker, self._prices = asker, prices
        self._progress = progress or Progress(disable=True)

    def record(self, stage: str, read: Sequence[Path], wrote: Sequence[Path], **facts: Any) -> None:
        """Note what a stage read, wrote and did."""
        self.manifest["stages"][stage] = {
            "read": {path.name: file_sha256(path) for path in read},
            "wrote": {path.name: file_sha256(path) for path in wrote},
            **facts,
        }
        partial = self.out / f"{MANIFEST}.partial"
        partial.write_text(json.dumps(self.manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        partial.replace(self.out / MANIFEST)

    def bar(self, stage: str, total: int | None) -> Callable[..., None]:
        """Moves a bar of this stage, with what has been spent so far."""
        task = self._progress.add_task(stage, total=total, spent="")

        def move(note: str = "", **changes: Any) -> None:
            spent = self._asker.llm.spent
            said = f"{note}{spent.calls:,} calls, ${spent.cost(self._prices):.2f}"
            self._progress.update(task, spent=said, **changes)

        return move


async def synthesise(
    catalogue: Path,
    out: Path,
    asker: Asker,
    embed: Embed,
    settings: Settings,
    *,
    prices: Prices | None = None,
    progress: Progress | None = None,
) -> Made:
    """Make training data in `out`, a data set as `read_dataset` reads it. See the module.

    Args:
        catalogue: a catalogue file.
        embed: makes unit vectors; one that keeps them spares a second run the time.
        progress: from `serving.catalog.enrich_report.progress_bar`.

    Raises:
        ValueError: the catalogue cannot be used.
        EngineUnavailableError, EngineTimeoutError: the LLM answers nobody. Started again, the run goes on.
    """
    given = read_catalogue(catalogue)
    if len(given) < 2:
        raise ValueError(f"{catalogue} has {len(given)} candidates; there must be two to choose among")
    run = _Run(out, asker, prices or Prices(), progress)
    run.manifest |= {
        "settings": dataclasses.asdict(settings),
        "llm": asker.llm.model,
        "wording": {module.__name__: file_sha256(Path(str(module.__file__))) for module in (enrichment, synthesis)},
    }
    mutated = await _mutate(run, catalogue, given, settings, asker, embed)
    everything = (*given, *(mutant.candidate for mutant in mutated.made))
    graph = await _connect(run, everything, mutated, settings, embed)
    played = await _play(run, everything, graph, settings, asker, embed)
    dataset = await asyncio.to_thread(_supervise, run, settings)
    return Made(settings, given, mutated, graph, played, dataset, run.manifest)


async def _mutate(
    run: _Run, catalogue: Path, given: Sequence[Candidate], settings: Settings, asker: Asker, embed: Embed
) -> Mutations:
    move = run.bar("mutations", settings.mutants)
    made = await mutations(given, settings.mutants, asker, embed, settings.seed, lambda number: move(advance=number))
    write_json_lines(
        run.out / MUTANTS,
        (
            candidate_line(mutant.candidate) | {"parent": mutant.parent, "operator": mutant.operator}
            for mutant in made.made
        ),
    )
    refused = {f"{operator}: {reason}": count for (operator, reason), count in sorted(made.refused.items())}
    everything = (*given, *(mutant.candidate for mutant in made.made))
    write_json_lines(run.out / CATALOGUE, map(candidate_line, everything))
    wrote = [run.out / MUTANTS, run.out / CATALOGUE]
    run.record("mutation", [catalogue], wrote, made=len(made.made), refused=refused)
    return made


async def _connect(
    run: _Run, candidates: Sequence[Candidate], mutated: Mutations, settings: Settings, embed: Embed
) -> Graph:
    move = run.bar("graph", 1)
    vectors = await asyncio.to_thread(embed, list(map(specification, candidates)))
    graph = await asyncio.to_thread(build_graph, candidates, vectors, mutated.parents, settings.threshold)
    write_edges(run.out / EDGES, graph, candidates)
    run.record("graph", [run.out / CATALOGUE, run.out / MUTANTS], [run.out / EDGES], **graph.statistics())
    move(advance=1)
    return graph


def write_edges(path: Path, graph: Graph, candidates: Sequence[Candidate]) -> int:
    """Write a graph's edges as JSON lines; returns how many."""
    columns = (graph.sources.tolist(), graph.targets.tolist(), graph.kinds.tolist(), graph.similarity.tolist())
    return write_json_lines(
        path,
        (
            {
                "source": candidates[source].id,
                "target": candidates[target].id,
                "kind": KINDS[kind],
                "similarity": round(similarity, 4),
            }
            for source, target, kind, similarity in zip(*columns, strict=True)
        ),
    )


async def _play(
    run: _Run, candidates: Sequence[Candidate], graph: Graph, settings: Settings, asker: Asker, embed: Embed
) -> Trajectories:
    move = run.bar("trajectories", settings.count)
    walker = Walker(graph, candidates, settings.play.least, settings.play.most)

    def tell(played: int, kept: int) -> None:
        # As many again as were lost so far.
        move(f"{kept} kept, ", completed=played, total=max(played, settings.count + played - kept))

    made = await trajectories(walker, candidates, settings.count, asker, embed, settings.play, settings.seed, tell)
    files = (run.out / KEPT, run.out / REJECTED)
    for file, some in zip(files, (made.kept, made.rejected), strict=True):
        write_json_lines(file, (trajectory.line() for trajectory in some))
    run.record(
        "trajectories",
        [run.out / CATALOGUE, run.out / EDGES],
        files,
        kept=len(made.kept),
        rejected=dict(sorted(made.reasons.items())),
    )
    return made


def _supervise(run: _Run, settings: Settings) -> Dataset:
    dataset = supervise(
        run.out / KEPT, run.out / CATALOGUE, run.out, settings.sides, settings.seed, everything_offered=True
    )
    read = [run.out / KEPT, run.out / CATALOGUE]
    run.record("supervision", read, [run.out / CASES], cases=counted(dataset.cases))
    return dataset
