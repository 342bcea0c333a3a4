"""`light-router key create`: a new API key, shown once, and the entry that lets it in.

Knows terminals. What a key is stands in `serving.keys`.
"""

from __future__ import annotations

from typing import Annotated

import typer
import yaml
from pydantic import ValidationError

from serving.cli import fail
from serving.keys import SCOPES, create_key

app = typer.Typer(no_args_is_help=True, help="Make API keys.")


@app.callback()
def _key() -> None:
    """Make API keys."""


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whom it is for; the audit log shows it.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"What it may do: {', '.join(sorted(SCOPES))}; repeatable. By default route and search."),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose catalogues it sees.")] = "",
    principal: Annotated[
        list[str] | None, typer.Option(help="As whom it sees candidates that not everyone may see; repeatable.")
    ] = None,
) -> None:
    """Print a new key once, to the standard error, and its entry for `server.keys_file`, to the standard output.

    `light-router key create NAME >> keys.yaml` appends the entry below a first line `keys:`.
    """
    try:
        key, entry = create_key(name, scope or ("route", "search"), tenant, principal or ())
    except ValidationError as error:
        fail("; ".join(f"{fault['loc'][0]} {fault['input']!r}: {fault['msg']}" for fault in error.errors()), 2)
    line = {"name": entry.name, "sha256": entry.sha256, "scopes": sorted(entry.scopes)}
    line |= {"tenant": entry.tenant} if entry.tenant else {}
    line |= {"principals": sorted(entry.principals)} if entry.principals else {}
    typer.echo(f"{key}\n(this is the only time that it is shown)", err=True)
    typer.echo(yaml.safe_dump([line], sort_keys=False, default_flow_style=None).rstrip())
