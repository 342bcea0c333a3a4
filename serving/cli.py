"""The `light-router` command of this room: serve, route, engine, bench.

Knows arguments and terminals. Every decision it shows is made by `Router.route`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serving import logs, tracing
from serving.api.app import create_app
from serving.api.drain import DrainingServer
from serving.api.route import RouteBody, answer_of, messages_of, offered, request_of
from serving.assembly import build_router, with_manifest
from serving.catalog.shapes import candidates_from
from serving.config import Config
from serving.engine.command import supervise, vllm_command
from serving.router import Router
from serving.telemetry import Telemetry
from serving.types import Decision, LightRouterError, RouteRequest
from serving.validation import parse_object

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console()
errors = Console(stderr=True)

DEFAULT_PROFILE = Path("configs/cpu.yaml")
ConfigOption = Annotated[Path, typer.Option("--config", help="Deployment profile (YAML).")]


def fail(error: Exception | str, code: int = 1) -> NoReturn:
    """Say what was wrong, without a traceback, and end."""
    errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def load_config(path: Path) -> Config:
    """The profile, or an error that names what is wrong in it."""
    try:
        return Config.load(path)
    except ValueError as error:
        fail(error, 2)


@app.command()
def serve(
    config: ConfigOption = DEFAULT_PROFILE,
    port: Annotated[int | None, typer.Option(help="Port; by default the profile's.")] = None,
    host: Annotated[str | None, typer.Option(help="Address; by default the profile's.")] = None,
) -> None:
    """Serve the API. /health/ready answers 200 once the model is warm and has made a decision."""
    profile = load_config(config)
    if host is not None:  # on which it depends whom the application trusts
        profile = profile.model_copy(update={"server": profile.server.model_copy(update={"host": host})})
    logs.configure(profile.server.log_format)
    try:
        tracing.configure()
        service = create_app(profile, build_router(profile), Telemetry())
    except ValueError as error:
        fail(error, 2)
    server = DrainingServer(
        service, profile, service.state.service.readiness, profile.server.port if port is None else port
    )
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise typer.Exit(3)  # as uvicorn's own command


@app.command()
def route(
    query: Annotated[str, typer.Argument(help="What the user wants.")],
    tools: Annotated[Path, typer.Option(help="JSON list of tools, or catalogue lines.", exists=True, dir_okay=False)],
    history: Annotated[
        Path | None, typer.Option(help="JSON list of the messages so far.", exists=True, dir_okay=False)
    ] = None,
    config: ConfigOption = DEFAULT_PROFILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as /v1/route would.")] = False,
) -> None:
    """Make one decision in this process."""
    profile = load_config(config)
    try:
        sent = {"query": query, "candidates": read_items(tools), "history": read_items(history) if history else []}
        body = parse_object(RouteBody, json.dumps(sent))
        messages, truncated = messages_of(body)
        candidates = offered(body, candidates_from)
        router = build_router(profile)
        decision = asyncio.run(_decide(router, request_of(body, messages, candidates, router.max_k)))
    except (LightRouterError, ValueError) as error:
        fail(error)
    answer = answer_of(decision, truncated, None)
    if as_json:
        typer.echo(answer.model_dump_json(indent=2))
        return
    table = Table("candidate", "probability", title=f"{decision.model}: {decision.timings_ms['total']:.0f} ms")
    for ranked in decision.ranking:
        table.add_row(ranked.candidate.id, f"{ranked.probability:.3f}")
    table.add_row("none of these", f"{decision.none_probability:.3f}", style="dim")
    console.print(table)
    console.print(f"decision: [bold]{decision.chosen.candidate.id if decision.chosen else 'none of these'}[/]")


def read_items(path: Path) -> list[object]:
    """A JSON list, or JSON lines.

    Raises:
        ValueError: the file is neither; the message names it and the line.
    """
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        try:
            items: list[object] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no JSON list: {error}") from error
        return items
    items = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                items.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
    return items


async def _decide(router: Router, request: RouteRequest) -> Decision:
    await router.start()
    try:
        return await router.route(request)
    finally:
        await router.close()


@app.command()
def engine(
    config: ConfigOption,
    run: Annotated[bool, typer.Option("--run", help="Start it and keep it running.")] = False,
) -> None:
    """Print the vLLM command of a profile, and with --run start and supervise it."""
    profile = load_config(config)
    try:
        command = vllm_command(with_manifest(profile)[0])
    except ValueError as error:
        fail(error, 2)
    typer.echo(shlex.join(command))
    if run:
        raise typer.Exit(supervise(command))


@app.command()
def bench(
    config: ConfigOption = DEFAULT_PROFILE,
    output: Annotated[Path | None, typer.Option("--json", help="Write the numbers as JSON.")] = None,
    requests: Annotated[int, typer.Option(help="Requests of each shape, one after the other.", min=5)] = 30,
    catalogue: Annotated[
        int | None, typer.Option(help="Measure a catalogue of so many candidates in place of the server.", min=1)
    ] = None,
    candidates: Annotated[
        Path | None, typer.Option(help="Catalogue lines that it holds, and variants of them.", exists=True)
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where its database stays: a second run embeds nothing.")] = Path(
        ".work"
    ),
    agent: Annotated[
        bool, typer.Option("--agent", help="Measure the agent and the gateway in place of the server.")
    ] = False,
    load: Annotated[str | None, typer.Option(help="Overload the running server at this URL in place of that.")] = None,
    seconds: Annotated[float, typer.Option(help="With --load: for so long.", min=1)] = 120,
    factor: Annotated[float, typer.Option(help="With --load: so many times as much as it can do.", min=0.1)] = 4,
    key: Annotated[str | None, typer.Option(help="With --load: the server's key.", envvar="LIGHT_ROUTER_KEY")] = None,
) -> None:
    """Measure a live server of this profile, and the engine against the bare model; or a catalogue; or the agent."""
    from serving import bench_agent, bench_catalog, bench_load  # noqa: PLC0415
    from serving.bench import measure, report  # noqa: PLC0415  (torch)

    profile = load_config(config)
    if catalogue is not None:
        numbers = asyncio.run(bench_catalog.measure(catalogue, profile.prefilter.embedder, candidates, folder))
    elif load is not None:
        try:
            numbers = asyncio.run(bench_load.Load(load, profile.engine.timeout_s, key).run(seconds, factor))
        except (ValueError, httpx.HTTPError) as error:
            fail(f"{load}: {error}")
    elif agent:
        numbers = asyncio.run(bench_agent.measure(profile, config, requests))
    else:
        numbers = asyncio.run(measure(profile, config, requests))
    console.print(report(numbers))
    if output:
        output.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")


@app.command()
def doctor(
    config: ConfigOption = DEFAULT_PROFILE,
    port: Annotated[int | None, typer.Option(help="Port to look at; by default the profile's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Say what is wrong with a profile on this machine, and how to mend it. Exit code 1 where it cannot be served."""
    from serving.doctor import examine  # noqa: PLC0415

    findings = examine(config, port)
    if as_json:
        typer.echo(json.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
        for finding in findings:
            console.print(
                f"[{colours[finding.status]}]{finding.status:>4}[/] {finding.check:<10} {escape(finding.found)}",
                highlight=False,
                soft_wrap=True,
            )
            if finding.mend:
                console.print(f"{'':15} {escape(finding.mend)}", style="dim", highlight=False, soft_wrap=True)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
