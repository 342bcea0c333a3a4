"""An evaluation's plots as PNG: Hit@1, reliability, length of the list, order of the candidates.

Knows the rows that `evaluate` returns, and matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

mpl.use("Agg")


def draw(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write a plot for each experiment of a report that has rows; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings = {"results": _hits, "calibration": _reliability, "sweep": _sweep, "order": _slots}
    files = []
    for name, drawing in drawings.items():
        rows = [row for row in report.get(name, ()) if _drawable(name, row)]
        if not rows:
            continue
        figure = Figure(figsize=(10, 5), layout="constrained")
        axes = figure.add_subplot()
        drawing(axes, rows)
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=150)
    return files


def _drawable(name: str, row: Mapping[str, Any]) -> bool:
    return {
        "results": bool(row.get("n")),
        "calibration": row.get("length") == "all",
        "order": bool(row.get("slots")),
    }.get(name, True)


def _hits(axes: Axes, rows: list[Mapping[str, Any]]) -> None:
    sets, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("set", "method"))
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        own = [row for row in rows if row["method"] == method]
        places = np.array([sets.index(row["set"]) for row in own]) + number * width
        hits = np.array([row["hit@1"] for row in own])
        bounds = np.array([row["intervals"]["hit@1"] for row in own]).T
        axes.bar(places, hits, width, label=method, yerr=np.abs(bounds - hits), capsize=2)
    axes.set_xticks(np.arange(len(sets)) + 0.4 - width / 2, sets, rotation=20, ha="right")
    axes.set(ylabel="Hit@1", ylim=(0, 1))


def _reliability(axes: Axes, rows: list[Mapping[str, Any]]) -> None:
    axes.plot([0, 1], [0, 1], color="0.7", linestyle="--")
    for row in rows:
        _, confidence, accuracy = np.array(row["bins"]).T
        axes.plot(confidence, accuracy, marker="o", label=f"{row['set']}, {row['method']} (ECE {row['ece']:.3f})")
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))


def _sweep(axes: Axes, rows: list[Mapping[str, Any]]) -> None:
    sizes = list(dict.fromkeys(row["K"] for row in rows))
    for line in dict.fromkeys((row["set"], row["method"], row["read"]) for row in rows):
        own = [row for row in rows if (row["set"], row["method"], row["read"]) == line]
        name = f"{line[0]}, {line[1]}" + ("" if line[2] == "all" else f", reads {line[2]}")
        axes.plot([sizes.index(row["K"]) for row in own], [row["hit@1"] for row in own], marker="o", label=name)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set(xlabel="candidates, gold one of them", ylabel="Hit@1", ylim=(0, 1))


def _slots(axes: Axes, rows: list[Mapping[str, Any]]) -> None:
    for row in rows:
        slot, _, accuracy = np.array(row["slots"]).T
        axes.plot(slot + 1, accuracy, marker="o", label=f"{row['set']}, {row['method']} ({row['flips']:.1%} flips)")
    axes.set(xlabel="place of the right candidate", ylabel="accuracy", ylim=(0, 1))
