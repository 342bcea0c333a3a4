"""`light-router catalog`: arguments and tables around a catalogue.

Knows terminals, files and the store. What files hold is read by `serving.catalog`.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic_core import to_json
from rich.markup import escape
from rich.table import Table

from serving.catalog.entry import Changes, Entry, Server
from serving.catalog.exchange import (
    chains_from_trajectories,
    import_chains,
    import_enrichment,
    read_chains,
    write_chains,
    write_enrichment,
    write_json_lines,
)
from serving.catalog.lines import EntryLine, line_of, read_lines, write_lines
from serving.catalog.names import Names, collisions
from serving.catalog.scan import Finding
from serving.catalog.screening import Redescribed, screen
from serving.catalog.sources.files import read_items
from serving.catalog.store import Store
from serving.cli import console, fail
from serving.types import InvalidRequestError, LightRouterError
from serving.validation import parse_json

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Keep candidates in a catalogue.")

CatalogArgument = Annotated[str, typer.Argument(metavar="CATALOG", help="The catalogue's name.")]
FileArgument = Annotated[Path, typer.Argument(help="JSON, or JSON lines; with .gz compressed.")]
DatabaseOption = Annotated[
    str, typer.Option("--database", help="sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME")
]
QuarantineOption = Annotated[
    bool, typer.Option("--quarantine", help="Disable what looks like poison until it is enabled.")
]
DEFAULT_DATABASE = "sqlite:///light-router.db"

# What a message shows of a longer list, and a table of a longer text.
_SHOWN = 5
_SHOWN_CHARACTERS = 80


@app.callback()
def _catalog() -> None:
    """Keep candidates in a catalogue."""


def with_store(database: str, work: Callable[[Store], Awaitable[T]]) -> T:
    """What `work` makes of the store at this URL; its errors end the command with their message."""

    async def run() -> T:
        store = Store(database)
        await store.start()
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (LightRouterError, ValueError, OSError) as error:
        fail(error)


@app.command()
def add(
    catalog: CatalogArgument,
    file: FileArgument,
    database: DatabaseOption = DEFAULT_DATABASE,
    quarantine: QuarantineOption = False,
) -> None:
    """Write the candidates of a file, all or none: OpenAI, Anthropic or MCP tools, or catalogue lines."""
    with_store(database, lambda store: _add(store, catalog, file, quarantine))


async def _add(store: Store, catalog: str, file: Path, quarantine: bool) -> None:
    lines = read_lines([item for _, item in read_items(file)], str(file))
    screened = await screen(store, catalog, lines.entries, quarantine=quarantine)
    version = await write_lines(store, catalog, replace(lines, entries=screened.entries))
    console.print(f"{len(lines.entries)} candidates are in {catalog}, now at version {version}", highlight=False)
    shared = collisions([entry.candidate for entry in (await store.changes(catalog)).entries])
    if shared:
        names = escape(_some(list(shared)))
        console.print(f"[yellow]names that several candidates share, and that carry a hash therefore:[/] {names}")
    print_noticed(screened.findings, screened.redescribed, quarantined=quarantine)


def print_noticed(findings: Sequence[Finding], redescribed: Sequence[Redescribed], *, quarantined: bool) -> None:
    """What was noticed in candidates that are new or say something else than before."""
    from serving.catalog.advice_report import findings_table  # noqa: PLC0415  (tokenizers, numpy)

    for change in redescribed:
        console.print(f"[yellow]{escape(change.id)} says something else now:[/] {escape(change.after[:200])}")
    for table in findings_table(findings):
        console.print(table)
    if findings and quarantined:
        console.print("[yellow]these are disabled; once you have looked at them:[/] light-router catalog enable")


@app.command()
def enable(
    catalog: CatalogArgument,
    ids: Annotated[list[str], typer.Argument(help="Ids of candidates.")],
    database: DatabaseOption = DEFAULT_DATABASE,
) -> None:
    """Let candidates be chosen that were disabled, such as those in quarantine."""
    with_store(database, lambda store: _enable(store, catalog, ids))


async def _enable(store: Store, catalog: str, ids: list[str]) -> None:
    entries = await store.get(catalog, ids)
    if unknown := [id for id in ids if id not in {entry.candidate.id for entry in entries}]:
        fail(f"{catalog} has no {_some(unknown)}; nothing was enabled")
    version = await store.upsert(catalog, [replace(entry, enabled=True) for entry in entries])
    console.print(f"{catalog} is now at version {version}", highlight=False)


@app.command(name="list")
def list_(
    catalog: Annotated[str | None, typer.Argument(metavar="[CATALOG]", help="Lists its candidates.")] = None,
    database: DatabaseOption = DEFAULT_DATABASE,
    server: Annotated[str | None, typer.Option(help="Only those of this server.")] = None,
    type: Annotated[str | None, typer.Option(help="Only those of this type: tool, agent or skill.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only those with this tag.")] = None,
    text: Annotated[str | None, typer.Option(help="Only those with this in name or description.")] = None,
    after: Annotated[str | None, typer.Option(help="Only those whose ids come after this one.")] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1)] = 50,
) -> None:
    """List all catalogues, or the candidates of one."""
    if catalog is None:
        table = Table("catalogue", "version", "candidates")
        for info in with_store(database, Store.catalogs):
            table.add_row(info.name, str(info.version), str(info.candidates))
        console.print(table)
        return
    asked = {"server": server, "type": type, "tag": tag, "text": text, "after": after}
    page = with_store(database, lambda store: store.page(catalog, limit=limit, **asked))
    table = Table("id", "type", "server", "description")
    for entry in page.entries:
        shown = entry.candidate
        about = " ".join(shown.description.split())[:_SHOWN_CHARACTERS]
        style = None if entry.enabled and not entry.stale else "dim"
        table.add_row(*map(escape, (shown.id, shown.type, shown.server, about)), style=style)
    console.print(table)
    if page.next:
        console.print(f"there are more: --after {escape(page.next)!r}")


@app.command()
def show(
    catalog: CatalogArgument,
    candidate: Annotated[str | None, typer.Argument(help="An id, or a name where only one has it.")] = None,
    database: DatabaseOption = DEFAULT_DATABASE,
) -> None:
    """Show what is in a catalogue, or one candidate as JSON."""
    if candidate is not None:
        entry = with_store(database, lambda store: _find(store, catalog, candidate))
        more = {"version": entry.version, "stale": entry.stale}
        typer.echo(to_json({**line_of(entry), **more}, indent=2).decode())
        return
    changes, servers = with_store(database, lambda store: _everything(store, catalog))
    entries = changes.entries
    table = Table("server", "candidates", "last read", "error", title=f"{catalog}, version {changes.version}")
    count = Counter(entry.candidate.server for entry in entries)
    known = {server.name: server for server in servers}
    for name in sorted({*count, *known}):
        server = known.get(name, Server(name))
        read = "" if server.synced_at is None else f"{server.synced_at:.0f}"
        table.add_row(escape(name) or "(none)", str(count[name]), read, escape(server.error or ""))
    console.print(table)
    kinds = ", ".join(f"{number} {kind}s" for kind, number in Counter(e.candidate.type for e in entries).items())
    disabled, pinned = sum(not entry.enabled for entry in entries), sum(entry.pinned for entry in entries)
    enriched = sum(bool(entry.queries or entry.intentions) for entry in entries)
    console.print(f"{kinds or 'empty'}; {pinned} pinned, {disabled} disabled, {enriched} enriched", highlight=False)


async def _find(store: Store, catalog: str, text: str) -> Entry:
    found = await store.get(catalog, [text])
    if not found:
        everything = await store.changes(catalog)
        found = await store.get(catalog, [Names([entry.candidate for entry in everything.entries]).resolve(text)])
    return found[0]


async def _everything(store: Store, catalog: str) -> tuple[Changes, list[Server]]:
    return await store.changes(catalog), await store.servers(catalog)


@app.command()
def remove(
    catalog: CatalogArgument,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of candidates.")] = None,
    database: DatabaseOption = DEFAULT_DATABASE,
    server: Annotated[str | None, typer.Option(help="A server with all its candidates.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="The catalogue with everything in it.")] = False,
) -> None:
    """Remove candidates, a server, or a catalogue."""
    if (bool(ids) + (server is not None) + everything) != 1:
        fail("say what to remove: ids, --server NAME or --all", 2)
    with_store(database, lambda store: _remove(store, catalog, ids or [], server, everything))


async def _remove(store: Store, catalog: str, ids: list[str], server: str | None, everything: bool) -> None:
    if everything:
        await store.drop(catalog)
        console.print(f"{catalog} is gone", highlight=False)
        return
    before = await store.version(catalog)
    if server is not None:
        version = await store.remove_server(catalog, server)
    else:
        known = {entry.candidate.id for entry in await store.get(catalog, ids)}
        unknown = [id for id in ids if id not in known]
        if unknown:
            fail(f"{catalog} has no {_some(unknown)}; nothing was removed")
        version = await store.remove(catalog, ids)
    if version == before:
        fail(f"{catalog} has no server {server!r}")
    console.print(f"{catalog} is now at version {version}", highlight=False)


@app.command()
def export(
    catalog: CatalogArgument,
    file: FileArgument,
    database: DatabaseOption = DEFAULT_DATABASE,
    enrichment: Annotated[bool, typer.Option("--enrichment", help="Only queries and intentions, by id.")] = False,
    chains: Annotated[bool, typer.Option("--chains", help="Only chains.")] = False,
) -> None:
    """Write a catalogue as JSON lines: servers, and candidates with everything known of them."""
    if enrichment and chains:
        fail("--enrichment and --chains go into a file each", 2)
    if chains:
        count = write_chains(file, with_store(database, lambda store: store.chains(catalog)))
    else:
        changes, servers = with_store(database, lambda store: _everything(store, catalog))
        if enrichment:
            count = write_enrichment(file, changes.entries)
        else:
            lines: list[dict[str, Any]] = [
                {"id": server.name, "type": "server", "server": server.name, "name": server.name,
                 "description": server.description}
                for server in servers
            ]  # fmt: skip
            for entry in changes.entries:
                lines.append(EntryLine.model_construct(**line_of(entry)).model_dump(exclude_defaults=True))
            count = write_json_lines(file, lines)
    console.print(f"{count} lines are in {file}", highlight=False)


@app.command(name="import")
def import_(
    catalog: CatalogArgument,
    file: FileArgument,
    database: DatabaseOption = DEFAULT_DATABASE,
    quarantine: QuarantineOption = False,
) -> None:
    """Read JSON lines into a catalogue: candidates, enrichment, chains, or trajectories, from which chains are read.

    The first line says which: enrichment has an id without a name, a chain a query and tools, a trajectory messages.
    """
    with_store(database, lambda store: _import(store, catalog, file, quarantine))


async def _import(store: Store, catalog: str, file: Path, quarantine: bool) -> None:
    fields = _first_fields(file)
    if "messages" in fields:
        done = await import_chains(store, catalog, chains_from_trajectories(file))
        what = "chains"
    elif {"query", "tools"} <= fields:
        done = await import_chains(store, catalog, read_chains(file))
        what = "chains"
    elif fields.isdisjoint({"name", "function", "custom"}) and not fields.isdisjoint({"queries", "intentions"}):
        done = await import_enrichment(store, catalog, file)
        what = "candidates' enrichment"
    else:
        await _add(store, catalog, file, quarantine)
        return
    console.print(f"{done.taken} {what} taken over", highlight=False)
    if done.unknown:
        console.print(f"[yellow]ids that {catalog} does not have:[/] {escape(_some(done.unknown))}")


def _first_fields(file: Path) -> set[str]:
    """The fields of the object in a file's first line; none where that is no JSON by itself."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
        try:
            first = parse_json(next((line for line in lines if line.strip()), b""))
        except (InvalidRequestError, EOFError, zlib.error):  # whoever reads the whole file says what is wrong
            first = None
    return set(first) if isinstance(first, dict) else set()


def _some(texts: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(map(repr, texts[:_SHOWN])) + more
