"""`light-router eval`: arguments, progress and files around `adapters.evaluate`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adapters.terminal import listed, progress, show
from serving.cli import DEFAULT_PROFILE, ConfigOption, fail, load_config
from serving.types import LightRouterError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from adapters.evaluate import Settings
    from adapters.methods import Parts
    from adapters.questions import EvaluationSet

DEFAULT_METHODS = "router,bm25,dense,fused"
AGENT_METHODS = "router,dense,all"
DEFAULT_RECIPE = Path("adapters/recipes/cases.yaml")
SWEEP = (10, 20, 30, 40, 50, 100, None)
# A file or pipe has no width of its own.
_FILE_WIDTH = 150


def _option(what: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=what, rich_help_panel="An agent at work", **more)


def evaluate(
    data: Annotated[Path, typer.Option(help="Folder of data sets.", exists=True, file_okay=False)],
    sets: Annotated[str, typer.Option(help="Sets of DATA, by comma; or TRAJECTORIES=CATALOGUE; or training cases. "
                    "With --agent the trajectories of DATA by default.")] = "",
    methods: Annotated[str, typer.Option(help="By comma: router, router-no-history, router-no-blend, base, bm25, "
                       f"dense, fused, these three with -query, repeat-last, openai:MODEL@URL; {DEFAULT_METHODS} by "
                       f"default. With --agent: router, retrieval, all; {AGENT_METHODS} by default.")] = "",
    k: Annotated[int, typer.Option(help="Candidates that reach the model.", min=1)] = 10,
    splits: Annotated[str, typer.Option(help="Only cases of these splits, by comma.")] = "",
    limit: Annotated[int | None, typer.Option(help="At most so many cases of each set.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Draws cases, lists, orders and bootstrap samples.")] = 0,
    enrichment: Annotated[Path | None, typer.Option(help="Generated queries for the search.", exists=True)] = None,
    output: Annotated[Path | None, typer.Option("--json", help="Write the report; answers are kept beside it, so that "
                      "an interrupted run continues.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the tables as Markdown.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots.")] = None,
    config: ConfigOption = DEFAULT_PROFILE,
    pool: Annotated[Literal["clean", "multi", "mutation", "external"], typer.Option(
                    help="clean: gold's own servers; multi: all; mutation, external: all, and --add.")] = "multi",
    add: Annotated[Path | None, typer.Option(help="Catalogue whose candidates are added.", exists=True)] = None,
    sweep_k: Annotated[bool, typer.Option(help="Selection among K candidates: "
                       f"{', '.join(str(size or 'all') for size in SWEEP)}.")] = False,
    repeat: Annotated[int, typer.Option(help="Answers drawn at temperature 1.", min=0)] = 0,
    abstention: Annotated[bool, typer.Option(help="Ask with gold surely on offer, and without it.")] = False,
    order: Annotated[int, typer.Option(help="Orders in which each kept list is shown again.", min=0)] = 0,
    poison: Annotated[int, typer.Option(help="Attacks on each case: descriptions that ask to be chosen.", min=0)] = 0,
    audit: Annotated[list[Path] | None, typer.Option(help="Training cases to look for the queries in.")] = None,
    concurrency: Annotated[int, typer.Option(help="Questions in flight.", min=1)] = 1,
    api_key_file: Annotated[Path | None, typer.Option(help="Key for openai: and --llm-url.", exists=True)] = None,
    agent: Annotated[bool, _option("Do held-out trajectories again, tools found by each method, results replayed. "
                                   "Then --splits are groups of the file.", "--agent")] = False,
    llm: Annotated[str, _option("`oracle`: a script that knows the trajectory executes.")] = "",
    llm_url: Annotated[str, _option("Endpoint of the model that executes, with its /v1.")] = "",
    llm_model: Annotated[str, _option("Its name there.")] = "",
    llm_context: Annotated[int, _option("Tokens that it reads at most.", min=1024)] = 32_768,
    alternatives: Annotated[int, _option("Tools that become callable beside the one chosen.", min=0)] = 3,
    steps: Annotated[int, _option("Actions of a run at most.", min=1)] = 30,
    recipe: Annotated[Path, _option("Of the training cases: says what is held out.", exists=True)] = DEFAULT_RECIPE,
) -> None:  # fmt: skip
    """Measure how well methods route, beside each other, on the same cases."""
    # scikit-learn and ir-measures: seconds to import, and not there without the extra `train`.
    from adapters.chat_method import ChatModel  # noqa: PLC0415
    from adapters.evaluate import Settings  # noqa: PLC0415
    from adapters.methods import Parts  # noqa: PLC0415
    from adapters.questions import read_extra, read_set  # noqa: PLC0415
    from adapters.retrieval import read_enrichment  # noqa: PLC0415

    if (pool in {"mutation", "external"}) != (add is not None):
        fail("--add names the candidates of --pool mutation and --pool external, and goes with no other pool", 2)
    if agent and (sweep_k or repeat or abstention or order or poison or audit or plots or concurrency > 1):
        fail("--agent goes without --sweep-k, --repeat, --abstention, --order, --poison, --audit, --plots and "
             "--concurrency", 2)  # fmt: skip
    if not agent and (llm or llm_url or llm_model or not sets):
        fail("--sets names the sets of --data; --llm, --llm-url and --llm-model go with --agent", 2)
    said = {"data": str(data), "profile": str(config), "pool": pool, "add": str(add or ""), "limit": limit}
    api_key = api_key_file.read_text(encoding="utf-8").strip() if api_key_file else "unused"
    try:
        extra = read_extra(add)
        queries = read_enrichment(enrichment) if enrichment else {}
        parts = Parts(
            load_config(config),
            queries=queries,
            make_chat=lambda name, retriever: ChatModel(name, retriever, api_key=api_key),
        )
        asked: BaseModel
        if agent:
            from adapters import commands_agent as agents  # noqa: PLC0415

            asked = runs = agents.settings(
                llm, llm_url, llm_model, context=llm_context, steps=steps, alternatives=alternatives, k=k, seed=seed
            )
            tasks = agents.tasks(
                data, listed(sets), recipe, groups=listed(splits), limit=limit, seed=seed, kind=pool, extra=extra
            )
            report = asyncio.run(agents.measured(parts, tasks, listed(methods or AGENT_METHODS), runs, api_key, output))
            said |= {"sets": sets, "recipe": str(recipe)}
        else:
            asked = questions = Settings(
                k=k,
                seed=seed,
                repeat=repeat,
                abstention=abstention,
                shuffles=order,
                poison=poison,
                sweep=SWEEP if sweep_k else (),
                concurrency=concurrency,
            )
            chosen = [
                read_set(data, name, splits=listed(splits), limit=limit, seed=seed, kind=pool, extra=extra)
                for name in listed(sets)
            ]
            report = asyncio.run(_measured(parts, chosen, listed(methods or DEFAULT_METHODS), questions, output))
            report["overlap"] = _audited(chosen, audit or (), queries)
    except (LightRouterError, ValueError) as error:
        fail(error)
    report["settings"] = {**said, "enrichment": str(enrichment or ""), **asked.model_dump()}
    _show(report, output, markdown, plots)


async def _measured(
    parts: Parts, sets: list[EvaluationSet], names: list[str], asked: Settings, output: Path | None
) -> dict[str, Any]:
    from adapters.answers import AnswerStore  # noqa: PLC0415
    from adapters.evaluate import evaluate as run  # noqa: PLC0415

    methods = [parts.method(name) for name in names]
    store = AnswerStore(output.with_suffix(".answers.jsonl") if output else None)
    try:
        await parts.start()
        with progress() as announce:
            return await run(sets, methods, asked, store, announce)
    finally:
        store.close()
        await parts.close()


def _audited(
    sets: list[EvaluationSet], training: Iterable[Path], queries: Mapping[str, tuple[str, ...]]
) -> list[dict[str, Any]]:
    from adapters.overlap import audit, training_texts  # noqa: PLC0415

    sources: dict[str, Callable[[], Iterable[str]]] = {path.name: partial(training_texts, path) for path in training}
    if queries:
        sources["enrichment"] = lambda: chain.from_iterable(queries.values())
    return audit(sets, sources)


def _show(report: dict[str, Any], output: Path | None, markdown: Path | None, plots: Path | None) -> None:
    from adapters.report import sections  # noqa: PLC0415

    def drawn() -> list[Path]:
        from adapters.plots import draw  # noqa: PLC0415  (matplotlib)

        return draw(report, plots) if plots else []

    show(report, "Evaluation", sections(report), _FILE_WIDTH, output, markdown, drawn)
