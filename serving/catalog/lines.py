"""A catalogue's candidates as JSON: any shape of the field with the catalogue's own fields beside it, and back.

Knows shapes and entries. Does not know whether the JSON came by HTTP or from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, Field, Tag, TypeAdapter

from prompts.question import CandidateType
from serving.catalog.entry import Entry, Server
from serving.catalog.shapes import CustomTool, FlatTool, FunctionTool, Texts, candidates_of, shape_of
from serving.catalog.sources.base import candidate_id
from serving.catalog.store import IfMatch, Store
from serving.types import Candidate, InvalidRequestError
from serving.validation import validated


class _Own(BaseModel):
    """What a catalogue adds to a candidate."""

    pinned: Annotated[bool, Field(description="Always passes the prefilter.")] = False
    enabled: Annotated[bool, Field(description="Whether it may be chosen at all.")] = True
    principals: Annotated[Texts, Field(description="Who may see it; empty means everyone.")] = []
    queries: Annotated[Texts, Field(description="Enrichment: user queries. Empty keeps those there are.")] = []
    intentions: Annotated[Texts, Field(description="Enrichment: intentions. Empty keeps those there are.")] = []

    def entry(self, candidate: Candidate) -> Entry:
        """The entry of this candidate."""
        return Entry(
            candidate,
            pinned=self.pinned,
            enabled=self.enabled,
            principals=tuple(self.principals),
            queries=tuple(self.queries),
            intentions=tuple(self.intentions),
        )


class FunctionEntry(FunctionTool, _Own):
    """OpenAI's nested tool in a catalogue."""


class CustomEntry(CustomTool, _Own):
    """OpenAI's tool that takes free text in a catalogue."""


class FlatEntry(FlatTool, _Own):
    """A catalogue line, or an MCP, Anthropic or Responses tool. Without an id it is `server/name`, or the name."""

    def candidate(self) -> Candidate:
        """The candidate this describes: two servers may have tools of one name."""
        candidate = super().candidate()
        if self.id is None and candidate.server:
            return replace(candidate, id=candidate_id(candidate.server, candidate.name))
        return candidate


def _entry_shape(item: Any) -> str:
    """A tag must not be a field's name too: in the location of a fault they could not be told apart."""
    return f"{shape_of(item)} entry"


EntryShape = Annotated[
    Annotated[FunctionEntry, Tag("function entry")]
    | Annotated[CustomEntry, Tag("custom entry")]
    | Annotated[FlatEntry, Tag("flat entry")],
    Discriminator(_entry_shape),
]
_SHAPE: TypeAdapter[EntryShape] = TypeAdapter(EntryShape)
_SHAPES: TypeAdapter[list[EntryShape]] = TypeAdapter(Annotated[list[EntryShape], Field(fail_fast=True)])


@dataclass(frozen=True, slots=True)
class Lines:
    """What a list describes: entries in its order, and the servers that some lines of it describe."""

    entries: tuple[Entry, ...]
    servers: tuple[Server, ...]


def read_lines(items: Any, where: str = "candidates") -> Lines:
    """The entries and servers of a parsed JSON list, whose path in the request is `where`.

    Raises:
        InvalidRequestError: not a list of known shapes, or two candidates with one id.
    """
    shapes = validated(_SHAPES.validate_python, items, where)
    candidates = candidates_of(shapes, where)
    own = [shape for shape in shapes if shape.type != "server"]
    servers = [shape for shape in shapes if isinstance(shape, FlatEntry) and shape.type == "server"]
    return Lines(
        tuple(shape.entry(candidate) for shape, candidate in zip(own, candidates, strict=True)),
        tuple(Server(shape.name, shape.description or "") for shape in servers),
    )


def read_line(item: Any, id: str) -> Entry:
    """The entry that a parsed JSON object describes, under an id that its place has given.

    Raises:
        InvalidRequestError: no known shape, a server, or another id inside.
    """
    shape = validated(_SHAPE.validate_python, item, "")
    if shape.type == "server":
        raise InvalidRequestError("type is 'server', which is no candidate; send it in a list of candidates", "type")
    if isinstance(shape, FlatEntry) and shape.id not in {None, id}:
        raise InvalidRequestError(f"id is {shape.id[:100]!r}, not {id[:100]!r} as in the path", "id")
    return shape.entry(replace(shape.candidate(), id=id))


async def write_lines(
    store: Store, catalog: str, lines: Lines, *, if_match: int | IfMatch | None = None, create: bool = True
) -> int:
    """Upsert the entries in one transaction, then the servers' descriptions; the catalogue's version afterwards.

    Raises:
        LightRouterError: as `Store.upsert` and `Store.put_server`.
    """
    version = await store.upsert(catalog, lines.entries, if_match=if_match, create=create)
    known = {server.name: server for server in await store.servers(catalog)} if lines.servers else {}
    for server in lines.servers:
        described = replace(known.get(server.name, server), description=server.description)
        version = await store.put_server(catalog, described)
    return version


class EntryLine(BaseModel):
    """An entry as a catalogue line, which reads as the same entry again."""

    id: str
    type: CandidateType
    server: str
    name: str
    description: str
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    tools: Sequence[str] = ()
    tags: Sequence[str] = ()
    pinned: bool = False
    enabled: bool = True
    principals: Sequence[str] = ()
    queries: Sequence[str] = ()
    intentions: Sequence[str] = ()


def line_of(entry: Entry) -> dict[str, Any]:
    """The values of an entry's line."""
    candidate = entry.candidate
    return {
        "id": candidate.id,
        "type": candidate.type,
        "server": candidate.server,
        "name": candidate.name,
        "description": candidate.description,
        "input_schema": candidate.input_schema,
        "output_schema": candidate.output_schema,
        "annotations": candidate.annotations,
        "tools": candidate.tools,
        "tags": candidate.tags,
        "pinned": entry.pinned,
        "enabled": entry.enabled,
        "principals": entry.principals,
        "queries": entry.queries,
        "intentions": entry.intentions,
    }
