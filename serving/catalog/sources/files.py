"""Candidates from files: our catalogue's lines, and the tool lists of OpenAI, Anthropic and MCP.

Knows JSON, JSON lines and gzip. The shapes are read by `serving.catalog.shapes`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import TypeAdapter

from serving.catalog.entry import Server
from serving.catalog.shapes import Shape
from serving.catalog.sources.base import Collector, Limits, Listing, Source, SourceError, candidate_id
from serving.catalog.tables import KEY_BYTES, check_text
from serving.types import InvalidRequestError
from serving.validation import parse_json, validated

# A file is its owner's: it may be as large as the largest catalogue.
FILE_LIMITS = Limits(candidates=1_000_000, total_size=2**30)
_SHAPE: TypeAdapter[Shape] = TypeAdapter(Shape)


class FileSource(Source):
    """A JSON or JSON-lines file, `.gz` or not.

    Lines name their server or do not; those that do not belong to a server with this source's name. A line of type
    `server` describes one. An item without an id gets `server/name`.

    Args:
        name: by default the file's name up to its first dot.
    """

    def __init__(self, path: Path, *, name: str | None = None, limits: Limits = FILE_LIMITS) -> None:
        self.name = name or path.name.partition(".")[0] or path.name
        self.record = {"kind": "file", "path": str(path.resolve())}
        self._path = path
        self._limits = limits

    async def read(self) -> list[Listing]:
        """Reads the whole file, in a thread."""
        try:
            return await anyio.to_thread.run_sync(self._read)
        except InvalidRequestError as error:
            raise SourceError(str(error)) from None

    def _read(self) -> list[Listing]:
        collectors: dict[str, Collector] = {}
        descriptions: dict[str, str] = {}
        ids: dict[str, str] = {}
        for where, item in read_items(self._path, self._limits):
            shape = validated(_SHAPE.validate_python, item, where)
            if shape.type == "server":
                name = check_text(shape.server or shape.name, f"{where}.name", KEY_BYTES)
                descriptions[name] = shape.description or ""
                collectors.setdefault(name, Collector(name, self._limits))
                continue
            candidate = shape.candidate()
            server = candidate.server or self.name
            collector = collectors.setdefault(server, Collector(server, self._limits))
            own = "id" in item
            candidate = replace(
                candidate, server=server, id=candidate.id if own else candidate_id(server, candidate.name)
            )
            if ids.setdefault(candidate.id, server) != server:
                collector.report(
                    f"{where}: the id {candidate.id[:100]!r} is a candidate's of {ids[candidate.id]!r}; it is left out"
                )
                continue
            collector.add(candidate)
        return [
            collector.listing(Server(name, descriptions.get(name, ""), self.record))
            for name, collector in (collectors or {self.name: Collector(self.name, self._limits)}).items()
        ]


def read_items(path: Path, limits: Limits = FILE_LIMITS) -> Iterator[tuple[str, Any]]:
    """The objects in a file, each with where it stands.

    A file is one JSON list, an object with a list of `tools`, one object, or an object a line.

    Raises:
        InvalidRequestError: it cannot be read, is too large or no JSON.
    """
    data = _read_bytes(path, limits.total_size)
    first = data.lstrip()[:1]
    try:
        value = parse_json(data, str(path)) if first in {b"[", b"{"} else None
    except InvalidRequestError:
        if first == b"[" or b"\n" not in data.strip():
            raise
        value = None
    if isinstance(value, dict) and isinstance(value.get("tools"), list) and "name" not in value:
        value = value["tools"]
    if value is None:
        for number, line in enumerate(data.splitlines(), 1):
            if line.strip():
                yield f"{path}:{number}", parse_json(line, f"{path}:{number}")
    elif isinstance(value, list):
        yield from ((f"{path}[{position}]", item) for position, item in enumerate(value))
    else:
        yield str(path), value


def _read_bytes(path: Path, limit: int) -> bytes:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            data: bytes = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidRequestError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > limit:
        raise InvalidRequestError(f"{path} holds more than {limit:,} bytes")
    return data
