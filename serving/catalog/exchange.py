"""Enrichment, chains and trajectories as JSON lines, plain or .gz: what other programs write for us, or read of us.

Knows the files' formats and the store. Every fault names its file and line.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from serving.catalog.entry import Chain, Entry
from serving.types import Message

if TYPE_CHECKING:
    from serving.catalog.store import Store


class _Line(BaseModel):
    """Fields of others may stand beside those that are read."""

    model_config = ConfigDict(strict=True)


class EnrichmentLine(_Line):
    """What was made for one candidate."""

    id: str = Field(min_length=1)
    queries: list[str] = []
    intentions: list[str] = []


class _ChainLine(_Line):
    query: str
    tools: list[str] = Field(min_length=1)


class _TrajectoryLine(BaseModel):
    task: str = ""
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did: how many lines were taken over, and the ids that the catalogue does not have."""

    taken: int
    unknown: tuple[str, ...]


async def import_enrichment(store: Store, catalog: str, path: Path) -> Imported:
    """Take over queries and intentions for the candidates that the catalogue has, in place of those they have.

    Raises:
        ValueError: the file cannot be read, or a line is wrong.
        NotFoundError: there is no such catalogue.
    """
    lines = {line.id: (line.queries, line.intentions) for line in read_enrichment(path)}
    known = {entry.candidate.id for entry in await store.get(catalog, list(lines))}
    await store.put_enrichment(
        catalog, {id_: (tuple(made[0]), tuple(made[1])) for id_, made in lines.items() if id_ in known}
    )
    return Imported(len(known), tuple(id_ for id_ in lines if id_ not in known))


async def import_chains(store: Store, catalog: str, chains: Sequence[Chain]) -> Imported:
    """Add the chains whose every step the catalogue has. Raises NotFoundError where there is no such catalogue."""
    steps = list(dict.fromkeys(step for chain in chains for step in chain.tools))
    known = {entry.candidate.id for entry in await store.get(catalog, steps)}
    whole = [chain for chain in chains if known.issuperset(chain.tools)]
    if whole:
        await store.put_chains(catalog, whole)
    return Imported(len(whole), tuple(step for step in steps if step not in known))


def read_enrichment(path: Path) -> Iterator[EnrichmentLine]:
    """The lines of an enrichment file. Raises ValueError where it cannot be read, or a line is wrong."""
    return _parsed(path, EnrichmentLine)


def read_chains(path: Path) -> list[Chain]:
    """The chains of a file. Raises ValueError where it cannot be read, or a line is wrong."""
    return [Chain(line.query, tuple(line.tools)) for line in _parsed(path, _ChainLine)]


def chains_from_trajectories(path: Path) -> list[Chain]:
    """What each trajectory of a file called, in order, for what its user asked first.

    A tool called again and again stands once; a trajectory that leaves only one is no chain.

    Raises:
        ValueError: the file cannot be read, or a line is wrong.
    """
    chains = []
    for line in _parsed(path, _TrajectoryLine):
        calls = [call.name for message in line.messages for call in message.tool_calls]
        tools = tuple(name for name, _ in groupby(calls))
        asked = next((message.content for message in line.messages if message.role == "user"), line.task)
        if len(tools) > 1:
            chains.append(Chain(asked, tools))
    return chains


def write_enrichment(path: Path, entries: Iterable[Entry]) -> int:
    """Write what was made for these; candidates without any are left out. Returns how many lines there are."""
    made = (entry for entry in entries if entry.queries or entry.intentions)
    return write_json_lines(
        path,
        ({"id": entry.candidate.id, "queries": entry.queries, "intentions": entry.intentions} for entry in made),
    )


def write_chains(path: Path, chains: Iterable[Chain]) -> int:
    """Write chains; returns how many."""
    return write_json_lines(path, ({"query": chain.query, "tools": chain.tools} for chain in chains))


def write_json_lines(path: Path, lines: Iterable[dict[str, Any]]) -> int:
    """JSON lines, gzipped without a time stamp where the name ends in .gz; the file appears when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    count = 0
    with contextlib.ExitStack() as files:
        file: IO[bytes] | gzip.GzipFile = files.enter_context(partial.open("wb"))
        if path.suffix == ".gz":
            file = files.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        for line in lines:
            file.write(to_json(line) + b"\n")
            count += 1
    partial.replace(path)
    return count


_Read = TypeVar("_Read", bound=BaseModel)


def _parsed(path: Path, line_type: type[_Read]) -> Iterator[_Read]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _read(f"{path}:{number}", line, line_type)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def _read(place: str, line: bytes, line_type: type[_Read]) -> _Read:
    try:
        return line_type.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {where or 'the line'}: {first['msg']}") from error
