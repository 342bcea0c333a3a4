"""What the measuring commands share: lists on the command line, bars, and a report's way to the terminal and to files.

Knows the terminal and sections. Does not know what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from adapters.report import Section, markdown, terminal
from serving.cli import console

if TYPE_CHECKING:
    from adapters.evaluate import Progress


def listed(text: str) -> list[str]:
    """The parts between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar for each stretch of work, gone at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:

        def announce(title: str, count: int) -> Callable[[], None]:
            task = bars.add_task(title, total=count)
            return lambda: bars.advance(task)

        yield announce


def show(
    report: Mapping[str, Any],
    title: str,
    sections: Sequence[Section],
    width: int,
    output: Path | None,
    markdown_file: Path | None,
    draw: Callable[[], Iterable[Path]],
) -> None:
    """The sections on the terminal and, where asked for, as Markdown; the report as JSON; what `draw` has drawn.

    A file or pipe in the terminal's place has no width of its own: there it is `width` columns.
    """
    screen = console if console.is_terminal else Console(width=width)
    for section in sections:
        screen.print(terminal(section))
    if output:
        output.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if markdown_file:
        markdown_file.write_text(markdown(title, sections), encoding="utf-8")
    for file in draw():
        screen.print(f"wrote {file}")
