"""An evaluation's report for people: the same tables for the terminal and as Markdown.

Knows the rows that `evaluate` returns. Does not compute anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

Row = Mapping[str, Any]
Show = Callable[[Row], str]


@dataclass(frozen=True, slots=True)
class Section:
    """A table: what it shows, and text in rows under a header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def _text(key: str) -> Show:
    return lambda row: str(row.get(key, ""))


def _number(key: str, digits: int = 3) -> Show:
    return lambda row: _short(row.get(key), digits)


def _short(value: float | None, digits: int = 3) -> str:
    """Without the zero in front of the point; a dash where there is no value."""
    return "-" if value is None else f"{value:.{digits}f}".replace("0.", ".", 1 if abs(value) < 1 else 0)


def _bounds(find: Callable[[Row], Any]) -> Show:
    def show(row: Row) -> str:
        bounds = find(row)
        return f"{_short(bounds[0], 2)} to {_short(bounds[1], 2)}" if bounds else "-"

    return show


_RANKING = {
    "n": _text("n"),
    "Hit@1": _number("hit@1"),
    "95%": _bounds(lambda row: row.get("intervals", {}).get("hit@1")),
    **{f"R@{k}": _number(f"recall@{k}") for k in (5, 10, 50)},
    "MRR@10": _number("mrr@10"),
    "nDCG@10": _number("ndcg@10"),
    "full@10": _number("full@10"),
}
_WHO = {"set": _text("set"), "method": _text("method")}
_TABLES: Mapping[str, tuple[str, Mapping[str, Show]]] = {
    "results": (
        "Ranking, with 95% bootstrap intervals",
        {**_WHO, **_RANKING, "ms": _number("ms_per_query", 1), "tokens": _number("prompt_tokens", 0)},
    ),
    "averages": ("Average over the sets", {"method": _text("method"), "sets": _text("sets"), **_RANKING}),
    "comparisons": (
        "Hit@1, paired differences with 95% bootstrap intervals",
        {**_WHO, "against": _text("baseline"), "n": _text("n"),
         "difference": _number("hit@1_difference"), "95%": _bounds(lambda row: row["interval"])},
    ),
    "results/parts": (
        "Decisions: none of these, history, repeated calls",
        {**_WHO, "accuracy": _number("accuracy"), "gold kept": _number("gold_kept"),
         "n with history": _text("n_history"), "Hit@1": _number("hit@1_history"),
         "n repeats": _text("n_repeats"), "Hit@1 ": _number("hit@1_repeats"), "Hit@1, others": _number("hit@1_others"),
         "n none": _text("n_none"), "none said": _number("none_accuracy")},
    ),
    "repeats": (
        "Accuracy of answers drawn at temperature 1",
        {**_WHO, "n": _text("n"), "runs": _text("runs"), "accuracy": _number("accuracy"),
         "deviation": _number("deviation")},
    ),
    "abstention": (
        "Abstention: a right candidate, or none",
        {**_WHO, "kind": _text("kind"), "present": _text("n_present"), "absent": _text("n_absent"),
         "AUROC": _number("auroc"), "95%": _bounds(lambda row: row["interval"]), "accuracy": _number("accuracy"),
         "false none": _number("false_none"), "missed none": _number("missed_none")},
    ),
    "calibration": (
        "Calibration of decisions, and prediction sets at 90%",
        {**_WHO, "candidates": _text("length"), "n": _text("n"), "accuracy": _number("accuracy"),
         "confidence": _number("confidence"), "ECE": _number("ece"), "Brier": _number("brier"),
         "coverage": _number("coverage"), "set size": _number("set_size", 2)},
    ),
    "order": (
        "The same candidates in other orders",
        {**_WHO, "n": _text("n"), "orders": _text("orders"), "flips": _number("flips"),
         "largest change": _number("moved", 6),
         "accuracy by slot": lambda row: " ".join(f"{accuracy:.2f}" for _, _, accuracy in row["slots"])},
    ),
    "poisoning": (
        "Attacks: a wrong candidate whose description asks to be chosen",
        {**_WHO, "n": _text("n"), "clean error": _number("clean_error"), "chosen before": _number("before"),
         "chosen": _number("success"), "beyond clean error": _number("gain"),
         "95%": _bounds(lambda row: row["interval"]), "error": _number("error"),
         "by kind": lambda row: ", ".join(f"{kind} {_short(share, 2)}" for kind, share in row["kinds"].items())},
    ),
    "sweep": (
        "Selection among K candidates, gold one of them",
        {**_WHO, "K": _text("K"), "model reads": _text("read"), "n": _text("n"), "Hit@1": _number("hit@1"),
         "accuracy": _number("accuracy"), "tokens": _number("prompt_tokens", 0), "ms": _number("ms_per_query", 1)},
    ),
    "agent": (
        "Tasks done again: every recorded tool called, in any order, and a final answer given; means of a task",
        {**_WHO, "n": _text("n"), "success": _number("success"), "95%": _bounds(lambda row: row["interval"]),
         "gold called": _number("gold_called"), "steps": _number("steps", 1), "calls": _number("calls", 1),
         "discoveries": _number("discoveries", 1), "callable": _number("accessible", 1),
         "tokens read": _number("prompt_tokens", 0), "written": _number("completion_tokens", 0),
         "router's": _number("router_tokens", 0)},
    ),
    "agent/failures": (
        "Failures by their earliest cause (SING, appendix A.1)",
        {**_WHO, "query formulation": _text("query_formulation"), "discovery": _text("discovery"),
         "tool use": _text("tool_use"), "reasoning / other": _text("other")},
    ),
    "agent_comparisons": (
        "Success, paired differences with 95% bootstrap intervals",
        {**_WHO, "against": _text("baseline"), "n": _text("n"), "difference": _number("difference"),
         "95%": _bounds(lambda row: row["interval"])},
    ),
    "agent_context": (
        "All tools in the executing model's context: as many as fit it, drawn by the seed",
        {"set": _text("set"), "tools": _text("tools"), "given": _text("given"), "tasks": _text("tasks"),
         "tokens of all": _text("tokens_of_all"), "context": _text("context")},
    ),
    "overlap": (
        "Overlap of queries with other text",
        {"set": _text("set"), "source": _text("source"), "queries": _text("queries"), "texts": _text("texts"),
         "exact": _text("exact"), "13-grams": _text("shared_13"), "max 5-gram Jaccard": _number("max_jaccard")},
    ),
}  # fmt: skip


def sections(report: Mapping[str, Any]) -> list[Section]:
    """The tables of a report that have rows."""
    return [
        Section(title, tuple(columns), tuple(tuple(show(row) for show in columns.values()) for row in rows))
        for name, (title, columns) in _TABLES.items()
        if (rows := report.get(name.partition("/")[0]))
    ]


def terminal(section: Section) -> Table:
    """For the terminal."""
    shown = Table(title=section.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(section.header):
        shown.add_column(name, justify="left" if number < 2 else "right", no_wrap=number < 2)
    for row in section.rows:
        shown.add_row(*row)
    return shown


def markdown(title: str, parts: Sequence[Section]) -> str:
    """As Markdown."""
    lines = [f"# {title}", ""]
    for part in parts:
        lines += table(part)
    return "\n".join(lines)


def table(part: Section) -> list[str]:
    """Lines of Markdown."""
    return [f"## {part.title}", "", _line(part.header), _line("---" for _ in part.header), *map(_line, part.rows), ""]


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).strip().replace("|", "\\|") for cell in cells) + " |"
