"""`light-router eval`: arguments, progress and files around `adapters.evaluate`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from serving.cli import DEFAULT_PROFILE, ConfigOption, console, fail, load_config
from serving.types import LightRouterError

if TYPE_CHECKING:
    from adapters.evaluate import Settings
    from adapters.questions import EvaluationSet
    from serving.config import Config

# A file or pipe has no width of its own.
_FILE_WIDTH = 150
_SWEEP = "10,20,30,40,50,100,all"


def evaluate(
    data: Annotated[Path, typer.Option(help="Folder of data sets.", exists=True, file_okay=False)],
    sets: Annotated[str, typer.Option(help="Sets of DATA, by comma; or TRAJECTORIES=CATALOGUE; or a training file.")],
    methods: Annotated[str, typer.Option(help="By comma: router, router-no-history, base, bm25, dense, fused, each of "
                       "these three with -query, repeat-last, openai:MODEL@URL.")] = "router,bm25,dense,fused",
    k: Annotated[int, typer.Option(help="Candidates that reach the model.", min=1)] = 10,
    splits: Annotated[str, typer.Option(help="Only cases of these splits, by comma.")] = "",
    limit: Annotated[int | None, typer.Option(help="At most so many cases of each set.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Draws cases, lists, orders and bootstrap samples.")] = 0,
    enrichment: Annotated[Path | None, typer.Option(help="Generated queries for the index.", exists=True)] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write the report; answers are kept beside it, and a "
                      "run that was interrupted continues.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots.")] = None,
    config: ConfigOption = DEFAULT_PROFILE,
    pool: Annotated[str, typer.Option(help="clean (gold's own servers), multi (all), mutation or external (all, and "
                    "--add).")] = "multi",
    add: Annotated[Path | None, typer.Option(help="Catalogue whose candidates are added.", exists=True)] = None,
    sweep_k: Annotated[bool, typer.Option(help=f"Selection among K candidates, K in {_SWEEP}.")] = False,
    repeat: Annotated[int, typer.Option(help="Answers drawn at temperature 1.", min=0)] = 0,
    abstention: Annotated[bool, typer.Option(help="Ask with gold surely on offer, and without it.")] = False,
    order: Annotated[int, typer.Option(help="Orders in which each kept list is shown again.", min=0)] = 0,
    audit: Annotated[list[Path] | None, typer.Option(help="Training cases to look for the queries in.")] = None,
    concurrency: Annotated[int, typer.Option(help="Questions in flight.", min=1)] = 1,
    api_key_file: Annotated[Path | None, typer.Option(help="Key for openai: methods.", exists=True)] = None,
) -> None:  # fmt: skip
    """Measure how well methods route, beside each other, on the same cases."""
    from adapters.evaluate import Settings  # noqa: PLC0415  (scikit-learn, ir-measures)
    from adapters.questions import PoolKind, read_extra, read_set  # noqa: PLC0415

    if pool not in get_args(PoolKind):
        fail(f"--pool is {pool!r}; it must be one of {', '.join(get_args(PoolKind))}", 2)
    if (pool in {"mutation", "external"}) != (add is not None):
        fail("--add names the candidates of --pool mutation and --pool external, and of no other pool", 2)
    asked = Settings(
        k=k,
        seed=seed,
        repeat=repeat,
        abstention=abstention,
        shuffles=order,
        sweep=tuple(None if size == "all" else int(size) for size in _SWEEP.split(",")) if sweep_k else (),
        concurrency=concurrency,
    )
    try:
        extra = read_extra(add)
        chosen = [
            read_set(data, name, splits=_listed(splits), limit=limit, seed=seed, kind=pool, extra=extra)
            for name in _listed(sets)
        ]
        report = asyncio.run(_report(load_config(config), chosen, _listed(methods), asked, output, _key(api_key_file)))
        report["overlap"] = _overlap(chosen, audit or (), enrichment)
    except (LightRouterError, ValueError) as error:
        fail(error)
    report["settings"] = {
        "data": str(data), "profile": str(config), "pool": pool, "limit": limit, **asked.model_dump()
    }  # fmt: skip
    _show(report, output, markdown, plots)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _key(path: Path | None) -> str:
    return path.read_text(encoding="utf-8").strip() if path else "unused"


async def _report(
    profile: Config, sets: list[EvaluationSet], names: list[str], asked: Settings, output: Path | None, api_key: str
) -> dict[str, Any]:
    from adapters.answers import AnswerStore  # noqa: PLC0415
    from adapters.chat_method import ChatModel  # noqa: PLC0415
    from adapters.evaluate import evaluate as run  # noqa: PLC0415
    from adapters.methods import Parts  # noqa: PLC0415

    parts = Parts(profile, lambda name, prefilter: ChatModel(name, prefilter, api_key=api_key))
    methods = [parts.method(name) for name in names]
    store = AnswerStore(output.with_suffix(".answers.jsonl") if output else None)
    try:
        await parts.start()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bars:

            def progress(title: str, count: int) -> Callable[[], None]:
                task = bars.add_task(title, total=count)
                return lambda: bars.advance(task)

            return await run(sets, methods, asked, store, progress)
    finally:
        store.close()
        await parts.close()


def _overlap(sets: list[EvaluationSet], training: Iterable[Path], enrichment: Path | None) -> list[dict[str, Any]]:
    from adapters.overlap import audit, enrichment_texts, training_texts  # noqa: PLC0415

    sources: dict[str, Callable[[], Iterable[str]]] = {
        str(path): lambda path=path: training_texts(path) for path in training
    }
    if enrichment:
        sources[str(enrichment)] = lambda: enrichment_texts(enrichment)
    return audit(sets, sources)


def _show(report: dict[str, Any], output: Path | None, markdown_file: Path | None, plots: Path | None) -> None:
    from adapters.report import markdown, sections, terminal  # noqa: PLC0415

    tables = sections(report)
    for table in tables:
        console.print(terminal(table), width=console.width if console.is_terminal else _FILE_WIDTH)
    if output:
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if markdown_file:
        markdown_file.write_text(markdown("Evaluation", tables), encoding="utf-8")
    if plots:
        from adapters.plots import draw  # noqa: PLC0415

        for file in draw(report, plots):
            console.print(f"wrote {file}")
