"""An adapter's model card: its manifest and its measured report as README.md, and the results into the manifest.

Knows manifests and the rows of an evaluation's report. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.methods import RETRIEVAL
from adapters.report import Section, sections, table
from serving.manifest import Manifest, ResultPart

# Metrics of a row that the manifest keeps.
_METRICS = ("hit@1", "recall@10", "mrr@10")


def results(report: Mapping[str, Any]) -> tuple[ResultPart, ...]:
    """The router's numbers of each set beside the best retrieval method's on the same cases."""
    parts: list[ResultPart] = []
    rows = [row for row in report["results"] if row["n"]]
    for row in (row for row in rows if row["method"] == "router"):
        rivals = [
            other
            for other in rows
            if other["set"] == row["set"] and other["method"].removesuffix("-query") in RETRIEVAL
        ]
        for metric in _METRICS:
            best = max(rivals, key=lambda other: other[metric], default=None)
            parts.append(
                ResultPart(
                    dataset=row["set"],
                    split=row["split"],
                    metric=metric,
                    value=round(row[metric], 4),
                    interval=tuple(round(bound, 4) for bound in row["intervals"][metric]),
                    baseline=best and best["method"],
                    baseline_value=best and round(best[metric], 4),
                )
            )
    return tuple(parts)


def card(manifest: Manifest, report: Mapping[str, Any], notes: str) -> str:
    """README.md in the shape of Hugging Face's model cards.

    Args:
        report: an evaluation's JSON.
        notes: what the numbers mean and what the adapter is not good at, in Markdown.
    """
    licences = sorted({part.licence for part in manifest.trained_on})
    settings = report["settings"]
    data = Section(
        "Trained on",
        ("data", "licence", "cases"),
        tuple((part.name, part.licence, str(part.cases)) for part in manifest.trained_on),
    )
    values = [f"rank {manifest.lora.rank}", f"alpha {manifest.lora.alpha:g}"]
    values += [f"{key} {value}" for key, value in manifest.hyperparameters.get("training", {}).items()]
    lines = [
        "---",
        f"base_model: {manifest.base_model.name}",
        "library_name: peft",
        "license: apache-2.0",
        "tags: [tool-selection, routing, lora]",
        "---",
        "",
        f"# {manifest.name}",
        "",
        f"A LoRA adapter for {manifest.base_model.name} that chooses which tool, agent or skill acts next, read "
        f"{manifest.template.readout}: one probability for every candidate and for none of these.",
        "",
        notes.strip(),
        "",
        *table(data),
        f"Licences of the data: {', '.join(licences)}. The data itself is not part of this repository.",
        "",
        f"How: {', '.join(values)}; `{manifest.command}`. Calibrated on {manifest.calibrated_on or 'nothing'}.",
        "",
        f"# Measured: the best {settings['k']} candidates of the prefilter, seed {settings['seed']}"
        + (f", {settings['limit']} cases of each set" if settings.get("limit") else ""),
        "",
    ]
    for section in sections(report):
        lines += table(section)
    return "\n".join(lines).rstrip() + "\n"
