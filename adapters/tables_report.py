"""The tables of a catalogue's search for people: sections of text, and plots of what is exposed at what cost.

Knows the rows that `adapters.tables` and `adapters.tables_servers` return, and matplotlib. Does not compute anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.report import Section
from adapters.scores import Row

_SETS = {"set": "set", "method": "method"}
_FOUND = {"Hit@1": "hit@1", "R@10": "recall@10", "full@10": "full@10", "MRR": "mrr"}
_TABLES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "main": (
        "Methods, with the query alone and with history",
        {**_SETS, "reads": "shown", "n": "n", "Hit@1": "hit@1", "R@1": "recall@1", "R@5": "recall@5",
         "R@10": "recall@10", "full@5": "full@5", "full@10": "full@10", "MRR": "mrr", "ms": "ms"},
    ),
    "history": (
        "What history adds: paired differences",
        {**_SETS, "metric": "metric", "n": "n", "query": "query", "history": "history", "difference": "difference",
         "95%": "interval"},
    ),
    "fields": (
        "What is indexed: specification, generated queries (manual), both",
        {"set": "set", "field": "field", "method": "method", "n": "n", "Hit@1": "hit@1", "R@10": "recall@10",
         "R@50": "recall@50", "MRR": "mrr", "full@10": "full@10", "Hit@1 gain": "hit@1_gain",
         "R@10 gain": "recall@10_gain", "ms": "ms"},
    ),
    "queries": (
        "Generated queries of each candidate beside its specification",
        {"set": "set", "queries": "queries", "method": "method", "n": "n", "kept": "kept", "tokens": "query_tokens",
         **_FOUND},
    ),
    "verifier": (
        "Generated queries that a verifier keeps",
        {"set": "set", "filter": "filter", "verifier": "verifier", "method": "method", "n": "n", "written": "written",
         "kept": "kept", **_FOUND},
    ),
    "sweep": (
        "Candidates passed",
        {**_SETS, "K": "K", "n": "n", "recall": "recall", "full coverage": "full", "tokens": "tokens", "ms": "ms"},
    ),
    "popularity": (
        "The most frequent right candidates of other cases (held out in folds)",
        {"set": "set", "route": "route", "n": "n", "recall": "recall", "full coverage": "full"},
    ),
    "servers": (
        "Servers found: share of the right ones, all of them, any of them, among five",
        {"set": "set", "pool": "pool", "asked": "asked", "method": "method", "n": "n", "R@5": "recall@5",
         "full@5": "full@5", "hit@5": "hit@5", "MRR": "mrr"},
    ),
    "exposure": (
        "What is shown before a step: tokens against the share of steps with a right tool among it",
        {"set": "set", "pool": "pool", "shown": "shown", "k": "k", "n": "n", "tools": "tools", "tokens": "tokens",
         "recall": "recall"},
    ),
    "growth": (
        "A catalogue that grows: all of it against the best tools",
        {"set": "set", "k": "k", "n": "n", "tools in it": "pool_tools", "its tokens": "everything_tokens",
         "tokens shown": "tokens", "recall": "recall"},
    ),
}  # fmt: skip
# Counts and times, which no share between 0 and 1 is shown like.
_LARGE = frozenset({"tokens", "everything_tokens", "pool_tools", "tools", "ms"})


def sections(report: Mapping[str, Any]) -> list[Section]:
    """The tables of a report that have rows."""
    return [
        Section(title, tuple(columns), tuple(tuple(_cell(row, key) for key in columns.values()) for row in rows))
        for name, (title, columns) in _TABLES.items()
        if (rows := report.get(name))
    ]


def _cell(row: Row, key: str) -> str:
    """A value, with its interval where the row has one."""
    value = row.get(key)
    if isinstance(value, Mapping):
        return f"{value['difference']:+.3f} ({_bounds(value['interval'])})"
    if isinstance(value, (list, tuple)):
        return _bounds(value)
    if isinstance(value, float):
        if key in _LARGE:
            return f"{value:,.1f}" if key == "ms" else f"{value:,.0f}"
        bounds = row.get("intervals", {}).get(key)
        return f"{value:.3f}" + (f" ({_bounds(bounds)})" if bounds else "")
    return "-" if value is None else str(value)


def _bounds(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.2f} to {bounds[1]:.2f}"


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Plots of exposure, growth and the sweep, where the report has them; returns the files."""
    import matplotlib as mpl  # noqa: PLC0415  (slow)
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, drawing in {"exposure": _exposure, "growth": _growth, "sweep": _sweep}.items():
        if rows := report.get(name):
            figure = Figure(figsize=(9, 5), layout="constrained")
            axes = figure.add_subplot()
            drawing(axes, rows)
            axes.legend(fontsize="small")
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1], dpi=150)
    return files


def _lines(axes: Any, rows: Sequence[Row], by: Sequence[str], x: str, y: str) -> None:
    for line in dict.fromkeys(tuple(row[key] for key in by) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in by) == line]
        axes.plot([row[x] for row in own], [row[y] for row in own], marker="o", label=", ".join(line))


def _exposure(axes: Any, rows: Sequence[Row]) -> None:
    _lines(axes, rows, ("pool", "shown"), "tokens", "recall")
    axes.set(xscale="log", xlabel="tokens of the tools shown", ylabel="steps with a right tool among them", ylim=(0, 1))


def _growth(axes: Any, rows: Sequence[Row]) -> None:
    _lines(axes, [{**row, "line": "everything"} for row in rows], ("line",), "pool_tools", "everything_tokens")
    _lines(axes, [{**row, "line": f"best {row['k']}"} for row in rows], ("line",), "pool_tools", "tokens")
    axes.set(xscale="log", yscale="log", xlabel="tools in the catalogue", ylabel="tokens of the tools shown")


def _sweep(axes: Any, rows: Sequence[Row]) -> None:
    _lines(axes, rows, ("set",), "tokens", "recall")
    axes.set(xscale="log", xlabel="tokens of the candidates passed", ylabel="recall", ylim=(0, 1))
