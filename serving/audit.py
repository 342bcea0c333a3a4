"""The audit log: one JSON line for every decision, written behind the requests' backs and before the process ends.

Knows decisions and files. Does not know HTTP. A line is in memory before its decision is answered; a thread appends it
to the file, which is opened for every batch, so that it may be rotated by renaming. Where it cannot be written, lines
wait; where too many wait, no decision is answered any more: what is not on record has not happened.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from prompts.question import query_position
from serving.types import AuditError, Decision, RouteRequest

logger = logging.getLogger(__name__)

STDOUT = "-"
# Bytes of lines that may wait: some ten thousand decisions.
WAITING_BYTES = 16 * 2**20
# Between two attempts to write.
_RETRY_S = 1.0


class AuditLog:
    """An audit log, started by whoever serves and closed when the last decision has been answered.

    Args:
        path: the file, which is made where there is none; `-` for the standard output.
        texts: whether queries are recorded as they are, and not only how long they are.

    Raises:
        ValueError: the file cannot be written to.
    """

    def __init__(self, path: str, *, texts: bool = False) -> None:
        self._path = path
        self._texts = texts
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        try:
            self._append(memoryview(b""))
        except OSError as error:
            raise ValueError(f"server.audit.path {path} cannot be written to: {error.strerror}") from error

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write everything that was recorded, and end."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join()

    def record(
        self,
        request: RouteRequest,
        decision: Decision,
        *,
        surface: str,
        request_id: str | None = None,
        key: str = "",
        tenant: str = "",
        catalog: str | None = None,
    ) -> None:
        """Put a decision on record.

        Args:
            surface: where it was asked for, such as the path.
            key: the caller's, by its name.
            catalog: what the caller calls the catalogue.

        Raises:
            AuditError: too many lines wait to be written.
        """
        chosen = decision.chosen
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "surface": surface,
            "key": key,
            "tenant": tenant,
            "principals": sorted(request.principals),
            "messages": len(request.messages),
            "query": self._query(request),
            "offered": _offered(request, decision, catalog),
            "kept": [{"id": one.candidate.id, "probability": round(one.probability, 4)} for one in decision.ranking],
            "chosen": chosen and chosen.candidate.id,
            "probability": chosen and round(chosen.probability, 4),
            "none_probability": round(decision.none_probability, 4),
            "why_none": None if chosen else "none_fits" if decision.prefilter.considered else "nothing_offered",
            "model": decision.model,
        }
        self._put(to_json(line) + b"\n")

    def _query(self, request: RouteRequest) -> dict[str, Any]:
        position = query_position(request.messages)
        text = "" if position is None else request.messages[position].content
        return {"characters": len(text), **({"text": text} if self._texts else {})}

    def _put(self, line: bytes) -> None:
        with self._changed:
            if self._bytes > WAITING_BYTES:
                raise AuditError("the audit log cannot be written, and no decision is answered without it; see its log")
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify()

    # Below, everything runs in the log's own thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._closing.is_set())
                lines, self._lines = self._lines, []
            if not lines:
                return
            data = b"".join(lines)
            self._write(memoryview(data))
            with self._changed:
                self._bytes -= len(data)

    def _write(self, data: memoryview) -> None:
        """Write all of it, however often that must be tried; while closing once."""
        told = False
        while True:
            last = self._closing.is_set()
            try:
                while data:
                    data = data[self._append(data) :]
            except OSError as error:
                if last:
                    logger.critical("%d bytes of the audit log %s are lost: %s", len(data), self._path, error.strerror)
                    return
                if not told:
                    logger.error("the audit log %s cannot be written, trying again: %s", self._path, error.strerror)
                    told = True
                self._closing.wait(_RETRY_S)
            else:
                return

    def _append(self, data: memoryview) -> int:
        """Append some of it; how many bytes."""
        if self._path == STDOUT:
            return os.write(sys.stdout.fileno(), data)
        file = os.open(Path(self._path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            return os.write(file, data)
        finally:
            os.close(file)


def _offered(request: RouteRequest, decision: Decision, catalog: str | None) -> dict[str, Any]:
    """Of a request's candidates the ids; of a catalogue its name and the filters, which say the same in one line."""
    considered = decision.prefilter.considered
    if catalog is None:
        return {"considered": considered, "ids": [candidate.id for candidate in request.candidates]}
    filters = {"include": request.include, "exclude": request.exclude}
    named = {name: asdict(one) for name, one in filters.items() if one is not None}
    return {"considered": considered, "catalog": catalog, **named}
