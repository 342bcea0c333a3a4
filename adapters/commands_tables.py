"""`light-router catalog tables`: arguments, progress and files around `adapters.tables`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapters.terminal import listed, progress, show
from serving.cli import DEFAULT_PROFILE, ConfigOption, fail, load_config
from serving.config import Config
from serving.types import LightRouterError

if TYPE_CHECKING:
    from adapters.questions import EvaluationSet
    from adapters.scores import Row
    from adapters.searching import Queries, Searcher
    from adapters.tables_servers import Tasks
    from adapters.verifying import Verifier

OF_SETS = ("main", "history", "sweep", "popularity")
OF_QUERIES = ("fields", "queries", "verifier")
OF_TRAJECTORIES = ("servers", "exposure", "growth")
# A file or pipe has no width of its own.
_FILE_WIDTH = 200


def tables(
    data: Annotated[Path, typer.Option(help="Folder of data sets.", exists=True, file_okay=False)],
    sets: Annotated[str, typer.Option(help="Sets of DATA, by comma; or TRAJECTORIES=CATALOGUE.")] = "",
    which: Annotated[str, typer.Option("--tables", help=f"By comma: {', '.join((*OF_SETS, *OF_QUERIES))}, "
                     f"{', '.join(OF_TRAJECTORIES)}. By default all that there is data for.")] = "",
    enrichment: Annotated[Path | None, typer.Option(help="Generated queries.", exists=True)] = None,
    trajectories: Annotated[str, typer.Option(help="FILE=CATALOGUE, within DATA: whole tasks.")] = "",
    verifier: Annotated[str, typer.Option(help="Who checks generated queries: fused, bm25, dense, or llm, the "
                        "profile's.")] = "fused",
    k: Annotated[int, typer.Option(help="Candidates passed, where a table does not vary them.", min=1)] = 10,
    splits: Annotated[str, typer.Option(help="Only cases of these splits, by comma.")] = "",
    limit: Annotated[int | None, typer.Option(help="At most so many cases of each set, and tasks.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Draws cases, folds and bootstrap samples.")] = 0,
    output: Annotated[Path | None, typer.Option("--json", help="Write the rows.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots.")] = None,
    journal: Annotated[Path, typer.Option(help="Finished calls of --verifier llm.")] = Path(".work/verifier.jsonl"),
    config: ConfigOption = DEFAULT_PROFILE,
) -> None:  # fmt: skip
    """Measure how well candidates are found: by method, by what is indexed, by how many are passed, at what cost."""
    # scikit-learn and ir-measures: seconds to import, and not there without the extra `train`.
    from adapters.datasets import read_trajectories  # noqa: PLC0415
    from adapters.questions import read_set  # noqa: PLC0415
    from adapters.retrieval import read_enrichment  # noqa: PLC0415
    from adapters.tables_servers import Tasks  # noqa: PLC0415

    known = (*OF_SETS, *OF_QUERIES, *OF_TRAJECTORIES)
    wanted = listed(which) or list(known)
    if unknown := set(wanted).difference(known):
        fail(f"there is no table {', '.join(sorted(unknown))}; there are {', '.join(known)}", 2)
    try:
        read = [read_set(data, name, splits=listed(splits), limit=limit, seed=seed) for name in listed(sets)]
        queries = read_enrichment(enrichment) if enrichment else {}
        tasks = None
        if trajectories:
            file, _, catalogue = trajectories.partition("=")
            tasks = Tasks(read_trajectories(data / file, data / catalogue), limit, seed)
        report = asyncio.run(_measured(load_config(config), wanted, read, queries, tasks, verifier, journal, k, seed))
    except (LightRouterError, ValueError, OSError) as error:
        fail(error)
    report["settings"] = {
        "data": str(data), "sets": sets, "trajectories": trajectories, "enrichment": str(enrichment or ""),
        "verifier": verifier, "profile": str(config), "k": k, "splits": splits, "limit": limit, "seed": seed,
    }  # fmt: skip
    _show(report, output, markdown, plots)


async def _measured(
    profile: Config, wanted: list[str], sets: list[EvaluationSet], queries: Queries, tasks: Tasks | None, checks: str,
    journal: Path, k: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    from adapters import tables as of_sets  # noqa: PLC0415
    from adapters import tables_servers as of_tasks  # noqa: PLC0415
    from adapters.searching import Searcher  # noqa: PLC0415
    from prompts.tokenizer import PromptTokenizer  # noqa: PLC0415
    from serving.prefilter import make_embeddings  # noqa: PLC0415

    embeddings = make_embeddings(profile.prefilter.model_copy(update={"method": "fused"}))
    if embeddings is None:
        raise ValueError("the profile has no embedder; prefilter.embedder names one")
    with progress() as announce:
        tokenizer = PromptTokenizer(profile.model.tokenizer or profile.model.path)
        searcher = Searcher(profile.prefilter, embeddings, tokenizer, announce)
        made: dict[str, Callable[[], Awaitable[list[Row]]]] = {
            "main": lambda: of_sets.main_table(searcher, sets, seed),
            "history": lambda: of_sets.history_table(searcher, sets, seed),
            "sweep": lambda: of_sets.sweep_table(searcher, sets, queries),
            "popularity": lambda: of_sets.popularity_table(searcher, sets, queries, k, seed),
            "fields": lambda: of_sets.field_table(searcher, sets, queries, seed),
            "queries": lambda: of_sets.query_table(searcher, sets, queries, seed),
            "verifier": lambda: of_sets.verifier_table(
                searcher, sets, queries, _verifier(checks, searcher, profile, journal), seed
            ),
        }
        if tasks is not None:
            made |= {
                "servers": lambda: of_tasks.server_table(searcher, tasks),
                "exposure": lambda: of_tasks.exposure_table(searcher, tasks),
                "growth": lambda: of_tasks.growth_table(searcher, tasks, k),
            }
        await embeddings.embedder.start()
        try:
            return {name: await made[name]() for name in wanted if name in made}
        finally:
            await embeddings.embedder.close()


def _verifier(name: str, searcher: Searcher, profile: Config, journal: Path) -> Verifier:
    from adapters.methods import RETRIEVAL  # noqa: PLC0415
    from adapters.verifying import LLMVerifier, SearchVerifier  # noqa: PLC0415
    from serving.llm import LLM  # noqa: PLC0415  (openai)

    if name in RETRIEVAL:
        return SearchVerifier(searcher.rankers("specification")[name])
    if name != "llm":
        raise ValueError(f"there is no verifier {name!r}; there are {', '.join(RETRIEVAL)} and llm")
    return LLMVerifier(LLM.of(profile.llm, journal))


def _show(report: dict[str, Any], output: Path | None, markdown: Path | None, plots: Path | None) -> None:
    from adapters.tables_report import draw, sections  # noqa: PLC0415

    drawn = partial(draw, report, plots) if plots else tuple
    show(report, "How well candidates are found", sections(report), _FILE_WIDTH, output, markdown, drawn)
