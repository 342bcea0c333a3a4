"""The `light-router` command: serving's commands, and those of an adapter's life."""

from adapters import commands
from adapters.commands_eval import evaluate
from serving.cli import app

app.command(name="eval")(evaluate)
app.add_typer(commands.app, name="adapter")


def main() -> None:
    """Entry point of the console script."""
    app()
