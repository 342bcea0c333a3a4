"""What an enrichment run did and cost, and how the terminal shows it.

Knows counts and prices. Does not know how anything was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from serving.llm import Prices, Usage

# Failures that are shown one by one; all of them are in the report.
SHOWN_FAILURES = 5


@dataclass(slots=True)
class Report:
    """What a run did. Of the queries that were written, kept ones were neither near-duplicates nor refused."""

    considered: int = 0
    current: int = 0
    """Candidates left alone: enriched before, and the same since."""
    enriched: int = 0
    descriptions: int = 0
    queries_written: int = 0
    queries_near_duplicate: int = 0
    queries_refused: int = 0
    queries_kept: int = 0
    intentions: int = 0
    chains: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by the candidate's id; the next run tries again."""
    stopped: str = ""
    """Why the run ended early: the LLM answers nobody."""
    spent: Usage = field(default_factory=Usage)
    replayed: Usage = field(default_factory=Usage)
    """What the answers that came from the journal had cost when they were given."""


def progress_bar() -> Progress:
    """The bar that `enrich` moves, with what has been spent."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[spent]}"),
    )


def report_tables(report: Report, prices: Prices) -> Group:
    """For the terminal."""
    counts = Table("Enrichment", "", title_justify="left", box=SIMPLE_HEAD)
    rows = {
        "candidates": report.considered,
        "enriched before, and the same since": report.current,
        "enriched now": report.enriched,
        "failed": len(report.failed),
        "descriptions written": report.descriptions,
        "queries written": report.queries_written,
        "  near-duplicates dropped": report.queries_near_duplicate,
        "  refused by the verifier": report.queries_refused,
        "  kept": report.queries_kept,
        "intentions kept": report.intentions,
        "chains": report.chains,
    }
    counts.columns[1].justify = "right"
    for name, count in rows.items():
        counts.add_row(name, f"{count:,}")
    cost = Table("LLM", "calls", "prompt tokens", "of them cached", "answer tokens", "US$", box=SIMPLE_HEAD)
    for column in cost.columns[1:]:
        column.justify = "right"
    for name, usage in (("this run", report.spent), ("earlier runs, replayed", report.replayed)):
        numbers = (usage.calls, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        cost.add_row(name, *(f"{number:,}" for number in numbers), f"{usage.cost(prices):.2f}")
    failures = [f"{id_}: {why}" for id_, why in list(report.failed.items())[:SHOWN_FAILURES]]
    if report.stopped:
        failures.append(f"stopped: {report.stopped}\nStart again to go on; no finished call is repeated.")
    return Group(counts, cost, *map(Text, failures))  # as Text: an id may hold what rich takes for markup
