"""`light-router adapter graph` and `synthesise`: arguments and messages around the data factory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adapters.report import terminal
from serving.cli import DEFAULT_PROFILE, ConfigOption, console, fail, load_config
from serving.types import LightRouterError

if TYPE_CHECKING:
    from adapters.synthesise import Settings
    from serving.config import Config
    from serving.llm import LLM

CatalogueOption = Annotated[
    Path, typer.Option(help="Catalogue (JSON lines, plain or .gz).", exists=True, dir_okay=False)
]
ThresholdOption = Annotated[float, typer.Option(help="Cosine above which candidates are neighbours.", min=0, max=1)]
VectorsOption = Annotated[Path | None, typer.Option(help="Where vectors are kept.")]


def graph(
    catalogue: CatalogueOption,
    out: Annotated[Path, typer.Option(help="Picture: .png or .svg.")] = Path("graph.png"),
    threshold: ThresholdOption = 0.82,
    edges: Annotated[Path | None, typer.Option(help="Also write the edges (JSON lines, plain or .gz).")] = None,
    config: ConfigOption = DEFAULT_PROFILE,
    vectors: VectorsOption = Path(".work/vectors.npz"),
) -> None:
    """Which candidates of a catalogue are alike, and which feed each other: degrees and a picture."""
    from adapters.datasets import read_catalogue  # noqa: PLC0415
    from adapters.graph import build_graph, specification  # noqa: PLC0415
    from adapters.mining import CachedEmbedder  # noqa: PLC0415
    from adapters.synthesis_report import draw_graph, graph_section  # noqa: PLC0415  (matplotlib)
    from adapters.synthesise import write_edges  # noqa: PLC0415

    if out.suffix not in {".png", ".svg"}:
        fail(f"{out} is no picture that can be drawn: name a .png or .svg file", 2)
    profile = load_config(config)
    try:
        candidates = read_catalogue(catalogue)
        if not candidates:
            fail(f"{catalogue} holds no candidates", 2)
        embed = CachedEmbedder(profile.prefilter.embedder, vectors or out.with_suffix(".vectors.npz"))
        made = build_graph(candidates, embed(list(map(specification, candidates))), threshold=threshold)
        if edges is not None:
            write_edges(edges, made, candidates)
        draw_graph(made, candidates, out)
    except (LightRouterError, ValueError, OSError) as error:
        fail(error, 2)
    console.print(terminal(graph_section(made)))
    console.print(f"wrote {out}", highlight=False, soft_wrap=True)


def synthesise(
    catalogue: CatalogueOption,
    count: Annotated[int, typer.Option(help="Trajectories to keep.", min=1)],
    out: Annotated[Path, typer.Option(help="Folder for cases, report and all that lies between.", file_okay=False)],
    llm_url: Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint; by default the profile's.")] = None,
    llm_model: Annotated[str | None, typer.Option(help="Its model; by default the profile's.")] = None,
    mutants: Annotated[
        int | None, typer.Option("--mutations", help="Candidates to make; by default one for each trajectory.", min=0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed makes other data.")] = 0,
    threshold: ThresholdOption = 0.82,
    failures: Annotated[float, typer.Option(help="Share with a call that fails.", min=0, max=1)] = 0.2,
    empties: Annotated[float, typer.Option(help="Share with a call that finds nothing.", min=0, max=1)] = 0.15,
    changes: Annotated[float, typer.Option(help="Share in which the user changes their mind.", min=0, max=1)] = 0.25,
    score: Annotated[int, typer.Option(help="The judge's lowest grade that is kept.", min=1, max=5)] = 4,
    dev: Annotated[float, typer.Option(help="Share of the trajectories held out as dev.", min=0, max=1)] = 0.08,
    test: Annotated[float, typer.Option(help="Share held out as test.", min=0, max=1)] = 0.0,
    temperature: Annotated[float | None, typer.Option(help="By default the endpoint's.", min=0, max=2)] = None,
    concurrency: Annotated[int | None, typer.Option(help="Calls at once; by default the profile's.", min=1)] = None,
    retries: Annotated[int, typer.Option(help="Of a refused call, each after a longer pause.", min=0)] = 5,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=64)] = 2048,
    config: ConfigOption = DEFAULT_PROFILE,
    vectors: VectorsOption = None,
) -> None:
    """Make routing cases for a router of your own: new candidates, a graph, dialogues, and a case for every step.

    Stopped at any moment, the same command goes on; it asks nothing twice.
    """
    from adapters.supervision import Sides  # noqa: PLC0415
    from adapters.synthesise import Settings  # noqa: PLC0415
    from adapters.trajectories import Play  # noqa: PLC0415
    from serving.llm import LLM  # noqa: PLC0415  (openai)

    if dev + test >= 1:
        fail(f"--dev {dev} and --test {test} leave nothing to train on: together they must be less than 1", 2)
    profile = load_config(config)
    said = {"model": llm_model, "url": llm_url, "concurrency": concurrency}
    asked = profile.llm.model_copy(update={key: value for key, value in said.items() if value})
    if not asked.model:
        fail("no LLM is named: give --llm-model, or set llm.model in the profile", 2)
    play = Play(failures=failures, empties=empties, changes=changes, score=score)
    settings = Settings(count, count if mutants is None else mutants, threshold, play, Sides(dev=dev, test=test), seed)
    try:
        llm = LLM.of(asked, out / "journal.jsonl", retries=retries, max_tokens=max_tokens)
        asyncio.run(_synthesise(profile, llm, catalogue, out, settings, temperature, vectors))
    except (LightRouterError, ValueError, OSError) as error:
        fail(error)


async def _synthesise(
    profile: Config,
    llm: LLM,
    catalogue: Path,
    out: Path,
    settings: Settings,
    temperature: float | None,
    vectors: Path | None,
) -> None:
    from adapters.asking import Asker  # noqa: PLC0415
    from adapters.mining import CachedEmbedder  # noqa: PLC0415
    from adapters.synthesis_report import write_report  # noqa: PLC0415  (matplotlib)
    from adapters.synthesise import synthesise as run  # noqa: PLC0415
    from prompts import PromptTokenizer  # noqa: PLC0415
    from serving.catalog.enrich_report import progress_bar  # noqa: PLC0415
    from serving.llm import Prices  # noqa: PLC0415

    prices = Prices(profile.llm.input_price, profile.llm.output_price)
    asker = Asker(llm, temperature)
    embed = CachedEmbedder(profile.prefilter.embedder, vectors or out / "vectors.npz")
    try:
        with progress_bar() as bar:
            made = await run(catalogue, out, asker, embed, settings, prices=prices, progress=bar)
    finally:
        await llm.close()
    tokenizer = PromptTokenizer(profile.model.tokenizer or profile.model.path)
    report = write_report(made, out, llm, prices, lambda text: len(tokenizer.text(text)))
    kept, cases = len(made.trajectories.kept), len(made.dataset.cases)
    console.print(f"{kept:,} trajectories, {cases:,} cases; {report} tells more", highlight=False, soft_wrap=True)
    if asker.failures:
        why = next(iter(asker.failures.values()))
        console.print(f"{len(asker.failures)} questions got no answer; the first: {why}", markup=False, soft_wrap=True)
    if kept < settings.count:
        fail(
            f"only {kept} of {settings.count} trajectories passed the filter: {out / 'rejected.jsonl'} has the others "
            "with their reasons. A stronger LLM, or a lower --score, keeps more"
        )
