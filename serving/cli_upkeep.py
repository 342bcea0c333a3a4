"""`light-router catalog sync`, `enrich` and `stats`: what keeps a catalogue true, found and lean.

Knows terminals and profiles. The work is done in `serving.catalog`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from prompts import PromptTokenizer
from serving.catalog.embeddings import TextVectors
from serving.catalog.store import Store
from serving.cli import DEFAULT_PROFILE, ConfigOption, console, fail, load_config
from serving.cli_catalog import (
    DEFAULT_DATABASE,
    CatalogArgument,
    DatabaseOption,
    QuarantineOption,
    app,
    print_noticed,
    with_store,
)
from serving.config import Config
from serving.prefilter.embedder import Embedder, LocalEmbedder

if TYPE_CHECKING:
    from serving.catalog.sync import Report

__all__ = ["app"]

# What a table shows of a list of ids.
_SHOWN = 3


@app.command()
def sync(
    catalog: CatalogArgument,
    places: Annotated[
        list[str], typer.Argument(help="mcp.json, server.json, URLs of MCP servers or agent cards, folders of skills.")
    ],
    database: DatabaseOption = DEFAULT_DATABASE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: read again when a server changes, and now and then.")
    ] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two readings with --watch.", min=1)] = 300.0,
    quarantine: QuarantineOption = False,
) -> None:
    """Read the tools, agents and skills of servers into a catalogue. What cannot be reached keeps what is known."""
    reports = with_store(database, lambda store: _sync(store, catalog, places, watch, interval, quarantine))
    if any(report.error for report in reports):
        raise typer.Exit(1)


async def _sync(
    store: Store, catalog: str, places: list[str], watch: bool, interval: float, quarantine: bool
) -> list[Report]:
    from serving.catalog.sources.locate import sources_at  # noqa: PLC0415  (the SDKs of MCP and A2A)
    from serving.catalog.sync import Synchroniser  # noqa: PLC0415

    sources = [source for place in places for source in sources_at(place, os.environ)]

    def told(report: Report) -> None:
        if watch:
            console.print(_line(report))
            print_noticed(report.findings, report.redescribed, quarantined=quarantine)

    synchroniser = Synchroniser(store, catalog, sources, interval_s=interval, quarantine=quarantine, report=told)
    if watch:
        await synchroniser.run()
        return []
    reports = await synchroniser.once()
    table = Table("server", "added", "changed", "removed", "problems")
    for report in reports:
        counts = map(str, map(len, (report.added, report.changed, report.removed)))
        problems = [*([report.error] if report.error else []), *report.problems]
        table.add_row(escape(report.server), *counts, escape("; ".join(problems)))
    console.print(table)
    findings = [finding for report in reports for finding in report.findings]
    redescribed = [change for report in reports for change in report.redescribed]
    print_noticed(findings, redescribed, quarantined=quarantine)
    return reports


def _line(report: Report) -> str:
    counts = f"{len(report.added)} added, {len(report.changed)} changed, {len(report.removed)} removed"
    return f"{escape(report.server)}: {escape(report.error) if report.error else counts}"


@contextlib.asynccontextmanager
async def _embedder(profile: Config) -> AsyncIterator[Embedder]:
    embedder: Embedder = LocalEmbedder(profile.prefilter.embedder, profile.prefilter.threads)
    await embedder.start()
    try:
        yield embedder
    finally:
        await embedder.close()


@app.command()
def enrich(
    catalog: CatalogArgument,
    database: DatabaseOption = DEFAULT_DATABASE,
    config: ConfigOption = DEFAULT_PROFILE,
    queries: Annotated[int, typer.Option(help="User queries for each candidate.", min=0)] = 3,
    intentions: Annotated[int, typer.Option(help="Intentions of each.", min=0)] = 3,
    distractors: Annotated[int, typer.Option(help="Others among which the verifier must find it.", min=0)] = 8,
    hard: Annotated[bool, typer.Option("--hard", help="The most similar others instead of random ones.")] = False,
    chains: Annotated[bool, typer.Option("--chains", help="Also chains of candidates.")] = False,
    everything: Annotated[bool, typer.Option("--everything", help="Also what is enriched already.")] = False,
    journal: Annotated[Path, typer.Option(help="Finished calls: a second run repeats none of them.")] = Path(
        ".work/enrichment.jsonl"
    ),
) -> None:
    """Have an LLM (the profile's `llm`) write queries, intentions and missing descriptions."""
    from serving.catalog.enrich import Options  # noqa: PLC0415
    from serving.catalog.enrich import enrich as run  # noqa: PLC0415
    from serving.catalog.enrich_report import progress_bar, report_tables  # noqa: PLC0415
    from serving.llm import LLM, Prices  # noqa: PLC0415  (openai)

    profile = load_config(config)
    options = Options(queries, intentions, distractors, hard=hard, chains=chains, everything=everything)
    prices = Prices(profile.llm.input_price, profile.llm.output_price)
    try:
        llm = LLM.of(profile.llm, journal)
    except ValueError as error:
        fail(error, 2)

    async def work(store: Store) -> None:
        name = Path(profile.prefilter.embedder).name
        async with _embedder(profile) as embedder:
            with progress_bar() as bar:
                report = await run(store, catalog, llm, embedder, name, options, prices=prices, progress=bar)
        console.print(report_tables(report, prices))
        if report.stopped:
            fail(report.stopped)

    with_store(database, work)


@app.command()
def stats(
    catalog: CatalogArgument,
    database: DatabaseOption = DEFAULT_DATABASE,
    config: ConfigOption = DEFAULT_PROFILE,
    out: Annotated[Path | None, typer.Option("--json", help="Also write everything as JSON.")] = None,
) -> None:
    """Tokens of the whole catalogue against those of a decision, twins, tools to merge, and poor descriptions."""
    from serving.catalog.advice import advise  # noqa: PLC0415
    from serving.catalog.advice_report import advice_tables  # noqa: PLC0415

    profile = load_config(config)

    async def work(store: Store) -> None:
        candidates = [entry.candidate for entry in (await store.changes(catalog)).entries]
        tokenizer = PromptTokenizer(profile.model.tokenizer or profile.model.path)
        name = Path(profile.prefilter.embedder).name
        async with _embedder(profile) as embedder:
            with Progress(console=console, transient=True) as bar:
                task = bar.add_task("embedding", total=2 * len(candidates))
                vectors = TextVectors(store, embedder, name, lambda count: bar.advance(task, count))
                advice = await advise(candidates, vectors, tokenizer, profile.prefilter.k)
        console.print(advice_tables(advice))
        if out is not None:
            await asyncio.to_thread(out.write_text, json.dumps(advice.as_json(), indent=1), "utf-8")

    with_store(database, work)
