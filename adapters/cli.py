"""The `light-router` command: serving's commands, a catalogue's, and those of an adapter's life."""

from adapters import commands
from adapters.commands_eval import evaluate
from adapters.commands_synthesise import graph, synthesise
from adapters.commands_tables import tables
from serving.cli import app
from serving.cli_agent import agent
from serving.cli_demo import demo
from serving.cli_key import app as key
from serving.cli_upkeep import app as catalog

app.command(name="eval")(evaluate)
app.command()(agent)
app.command()(demo)
for command in (graph, synthesise):
    commands.app.command()(command)
catalog.command()(tables)
app.add_typer(commands.app, name="adapter")
app.add_typer(catalog, name="catalog")
app.add_typer(key, name="key")


def main() -> None:
    """Entry point of the console script."""
    app()
