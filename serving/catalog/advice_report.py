"""How the terminal shows advice on a catalogue. Knows what was found, not how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from serving.catalog.advice import Advice
from serving.catalog.scan import Finding

# Rows of each table; all of them are in the JSON.
SHOWN = 20
# Ids in one row.
SHOWN_IDS = 6


def advice_tables(advice: Advice) -> Group:
    """For the terminal."""
    parts = [_summary(advice)]
    criteria = advice.criteria
    duplicates = [(f"{group.similarity:.3f}", _ids(group.ids)) for group in advice.near_duplicates]
    parts += _table(f"Near-duplicates (similarity of at least {criteria.near_duplicate})", ("least", "ids"), duplicates)
    merges = [(one.server, f"{one.name}({' | '.join(one.values)})", _ids(one.ids)) for one in advice.consolidations]
    parts += _table("Tools that may be one with a parameter", ("server", "one tool", "ids"), merges)
    faults = [(fault.fault, fault.id, fault.why) for fault in advice.descriptions]
    parts += _table("Descriptions that do not tell what to expect", ("fault", "id", "why"), faults)
    names = [(name, _ids(ids)) for name, ids in advice.collisions.items()]
    parts += _table("Names of several candidates, shown with a hash", ("name", "ids"), names)
    parts += findings_table(advice.findings)
    return Group(*parts)


def findings_table(findings: Sequence[Finding]) -> list[Table]:
    """What looks like poison; nothing where nothing does."""
    rows = [(finding.rule, finding.id, finding.where, finding.excerpt) for finding in findings]
    return _table("What looks like poison", ("rule", "id", "where", "excerpt"), rows)


def _summary(advice: Advice) -> Table:
    table = Table("Catalogue", "", title_justify="left", box=SIMPLE_HEAD)
    table.columns[1].justify = "right"
    tokens = advice.tokens
    saved = 1 - tokens.exposed / tokens.catalogue if tokens.catalogue else 0.0
    faults = Counter(fault.fault for fault in advice.descriptions)
    rows = {
        "candidates": f"{advice.candidates:,}",
        "servers": f"{advice.servers:,}",
        "tokens of all schemas": f"{tokens.catalogue:,}",
        f"tokens of {tokens.k} average ones": f"{tokens.exposed:,} ({saved:.1%} less)",
        f"tokens of the {tokens.k} longest": f"{tokens.most:,}",
        "groups of near-duplicates": f"{len(advice.near_duplicates):,}",
        "groups of tools that may be one": f"{len(advice.consolidations):,}",
        "descriptions that tell too little": ", ".join(f"{n:,} {fault}" for fault, n in sorted(faults.items())) or "0",
        "names of several candidates": f"{len(advice.collisions):,}",
        "candidates that look poisoned": f"{len({finding.id for finding in advice.findings}):,}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _table(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[Table]:
    """The first rows; nothing where there are none."""
    if not rows:
        return []
    shown = f"{title}: {len(rows):,}" + (f", the first {SHOWN}" if len(rows) > SHOWN else "")
    table = Table(*header, title=shown, title_justify="left", box=SIMPLE_HEAD)
    for row in rows[:SHOWN]:
        table.add_row(*map(Text, row))  # as Text: a name may hold what rich takes for markup
    return [table]


def _ids(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
    return ", ".join(ids[:SHOWN_IDS]) + more
