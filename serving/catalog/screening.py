"""What is looked at before candidates are written: poison in them, and what they said before.

Knows the store and the scanner. Writes nothing. In quarantine a candidate with findings is disabled until somebody
enables it; what was enabled stays so for as long as it says the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from serving.catalog.entry import Entry
from serving.catalog.lookalikes import Known
from serving.catalog.scan import Finding, scan
from serving.catalog.store import Store
from serving.types import InvalidRequestError, NotFoundError


@dataclass(frozen=True, slots=True)
class Redescribed:
    """A candidate that was known and is now described in other words: its server may have changed what it does."""

    id: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Screened:
    """Entries as they should be written, and what was noticed about them.

    Attributes:
        findings: about those that are new or say something else than before.
        redescribed: those whose description is another.
    """

    entries: tuple[Entry, ...]
    findings: tuple[Finding, ...]
    redescribed: tuple[Redescribed, ...]

    @property
    def flagged(self) -> frozenset[str]:
        """Ids of those with findings."""
        return frozenset(finding.id for finding in self.findings)


async def screen(
    store: Store, catalog: str, entries: Sequence[Entry], *, quarantine: bool = False, enabling: bool = False
) -> Screened:
    """Look at entries before they are written to a catalogue, which need not exist yet.

    Args:
        quarantine: disables those with findings. One that is known, says the same and was disabled stays disabled.
        enabling: whether an entry that says the same as before may enable it: somebody has looked at this very one.

    Raises:
        StoreError: the database cannot be used.
    """
    ids = [entry.candidate.id for entry in entries]
    try:
        known = {entry.candidate.id: entry for entry in await store.get(catalog, ids)}
        bearers = await store.bearers(catalog)
    except NotFoundError:
        known, bearers = {}, []
    except InvalidRequestError:  # an id that no database can hold: the write refuses it, and says which
        return Screened(tuple(entries), (), ())
    fresh = [
        entry.candidate
        for entry in entries
        if entry.candidate.id not in known or known[entry.candidate.id].candidate != entry.candidate
    ]
    new = {candidate.id for candidate in fresh}
    others = [bearer for bearer in bearers if bearer.id not in new]
    findings = await asyncio.to_thread(lambda: scan(fresh, Known(others))) if fresh else []
    flagged = {finding.id for finding in findings}

    def settled(entry: Entry) -> Entry:
        before = known.get(entry.candidate.id)
        held = before is not None and not before.enabled and not enabling and entry.candidate.id not in new
        return replace(entry, enabled=False) if entry.candidate.id in flagged or held else entry

    redescribed = tuple(
        Redescribed(candidate.id, known[candidate.id].candidate.description, candidate.description)
        for candidate in fresh
        if candidate.id in known and known[candidate.id].candidate.description != candidate.description
    )
    written = tuple(map(settled, entries)) if quarantine else tuple(entries)
    return Screened(written, tuple(findings), redescribed)
