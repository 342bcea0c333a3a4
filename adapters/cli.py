"""The `light-router` command: serving's commands, and those of an adapter's life."""

from adapters.commands_eval import evaluate
from serving.cli import app

app.command(name="eval")(evaluate)


def main() -> None:
    """Entry point of the console script."""
    app()
