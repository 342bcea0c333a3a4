"""The `light-router` command: serving's commands, and those of an adapter's life."""

from serving.cli import app


def main() -> None:
    """Entry point of the console script."""
    app()
