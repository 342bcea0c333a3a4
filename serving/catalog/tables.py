"""The database's tables, and entries as rows of them.

Knows SQL types, and what a database can hold: PostgreSQL's text has no NUL, UTF-8 no lone surrogate, and an index of
PostgreSQL no key of more than about 2,700 bytes. Does not know transactions or versions.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from pydantic_core import from_json, to_json
from sqlalchemy import BigInteger, Boolean, Column, Float, Index, LargeBinary, MetaData, Table, Text
from sqlalchemy.engine import Row

from serving.catalog.entry import Entry, Server
from serving.types import Candidate, InvalidRequestError

# Bytes of UTF-8 in an id or a server's name: two of them and a catalogue's name fit into PostgreSQL's index.
KEY_BYTES = 1024
# Levels of nesting that every JSON reader here takes.
_JSON_LEVELS = 190
_SPECIFICATION = ("input_schema", "output_schema", "annotations", "tools")

METADATA = MetaData()
# Ordered by code point in every database, so that a page's end means the same in all of them.
_KEY = Text().with_variant(Text(collation="C"), "postgresql")


def _key(name: str) -> Column[str]:
    return Column(name, _KEY, primary_key=True)


CATALOGS = Table(
    "catalogs",
    METADATA,
    _key("name"),
    Column("version", BigInteger, nullable=False),
    # A dropped catalogue keeps its row: its versions go on where they ended if it is made again.
    Column("dropped", Boolean, nullable=False),
)

SERVERS = Table(
    "servers",
    METADATA,
    _key("catalog"),
    _key("name"),
    Column("description", Text, nullable=False),
    Column("source", Text),
    Column("synced_at", Float),
    Column("ttl_ms", BigInteger),
    Column("error", Text),
)

CANDIDATES = Table(
    "candidates",
    METADATA,
    _key("catalog"),
    _key("id"),
    Column("version", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("server", _KEY, nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False),
    # This and the following lists are JSON as text, which keeps the order of a schema's properties.
    Column("specification", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("principals", Text, nullable=False),
    Column("queries", Text, nullable=False),
    Column("intentions", Text, nullable=False),
    # Name and description without case: databases disagree about the case of anything but ASCII.
    Column("folded", Text, nullable=False),
)
Index("candidates_version", CANDIDATES.c.catalog, CANDIDATES.c.version)
Index("candidates_server", CANDIDATES.c.catalog, CANDIDATES.c.server, CANDIDATES.c.id)

# When an id was last removed; it may be back.
TOMBSTONES = Table(
    "tombstones",
    METADATA,
    _key("catalog"),
    _key("id"),
    Column("version", BigInteger, nullable=False),
)
Index("tombstones_version", TOMBSTONES.c.catalog, TOMBSTONES.c.version)

EMBEDDINGS = Table(
    "embeddings",
    METADATA,
    _key("embedder"),
    _key("hash"),
    Column("vector", LargeBinary, nullable=False),
)

CHAINS = Table(
    "chains",
    METADATA,
    _key("catalog"),
    _key("digest"),
    Column("query", Text, nullable=False),
    Column("tools", Text, nullable=False),
)


def check_text(text: str, where: str, most_bytes: int | None = None) -> str:
    """`text`, if every database can hold it.

    Raises:
        InvalidRequestError: it holds NUL or a lone surrogate, or is longer than `most_bytes`.
    """
    if "\0" in text:
        raise InvalidRequestError(f"{where} holds the character NUL, which no database stores; leave it out", where)
    if most_bytes is None and text.isascii():
        return text
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{where} holds a lone surrogate at character {error.start}, which is no text; leave it out", where
        ) from None
    if most_bytes is not None and not 0 < size <= most_bytes:
        raise InvalidRequestError(f"{where} has {size} bytes of UTF-8; 1 to {most_bytes} are right", where)
    return text


def json_text(value: Any, where: str) -> str:
    """`value` as JSON.

    Raises:
        InvalidRequestError: it is not JSON, which NaN is not either, or too deep to be read again.
    """
    try:
        text = to_json(value).decode()
        # Read again only where it may be that deep, or hold such a number.
        if text.count("{") + text.count("[") > _JSON_LEVELS or "NaN" in text or "Infinity" in text:
            from_json(text, allow_inf_nan=False, cache_strings=False)
    except ValueError as error:
        raise InvalidRequestError(f"{where} is no JSON that can be stored: {error}", where) from None
    return text


def row_of(catalog: str, entry: Entry, version: int, where: str) -> dict[str, Any]:
    """An entry as values for CANDIDATES. `where` is its path in the request, for messages."""
    candidate = entry.candidate
    specification = {field: getattr(candidate, field) for field in _SPECIFICATION}
    return {
        "catalog": catalog,
        "id": check_text(candidate.id, f"{where}.id", KEY_BYTES),
        "version": version,
        "type": candidate.type,
        "server": candidate.server and check_text(candidate.server, f"{where}.server", KEY_BYTES),
        "name": check_text(candidate.name, f"{where}.name"),
        "description": check_text(candidate.description, f"{where}.description"),
        "specification": json_text(specification, where),
        "tags": json_text(candidate.tags, f"{where}.tags"),
        "pinned": entry.pinned,
        "enabled": entry.enabled,
        "principals": json_text(entry.principals, f"{where}.principals"),
        "queries": json_text(entry.queries, f"{where}.queries"),
        "intentions": json_text(entry.intentions, f"{where}.intentions"),
        "folded": f"{candidate.name}\n{candidate.description}".casefold(),
    }


def select_entries(catalog: str) -> sa.Select[Any]:
    """The catalogue's candidates, each with whether its server could not be reached."""
    columns = [column for column in CANDIDATES.c if column.name not in {"catalog", "folded"}]
    return (
        sa.select(*columns, SERVERS.c.error.is_not(None).label("stale"))
        .outerjoin(SERVERS, (SERVERS.c.catalog == CANDIDATES.c.catalog) & (SERVERS.c.name == CANDIDATES.c.server))
        .where(CANDIDATES.c.catalog == catalog)
    )


def entry_of(row: Row[Any]) -> Entry:
    """The entry of a row of CANDIDATES with `stale`."""
    specification = from_json(row.specification)
    candidate = Candidate(
        id=row.id,
        name=row.name,
        description=row.description,
        type=row.type,
        server=row.server,
        input_schema=specification["input_schema"],
        output_schema=specification["output_schema"],
        annotations=specification["annotations"],
        tools=tuple(specification["tools"]),
        tags=texts_of(row.tags),
    )
    return Entry(
        candidate,
        pinned=row.pinned,
        enabled=row.enabled,
        principals=texts_of(row.principals),
        queries=texts_of(row.queries),
        intentions=texts_of(row.intentions),
        version=row.version,
        stale=bool(row.stale),
    )


def server_row(catalog: str, server: Server) -> dict[str, Any]:
    """A server as values for SERVERS."""
    return {
        "catalog": catalog,
        "name": check_text(server.name, "server.name", KEY_BYTES),
        "description": check_text(server.description, "server.description"),
        "source": None if server.source is None else json_text(server.source, "server.source"),
        "synced_at": server.synced_at,
        "ttl_ms": server.ttl_ms,
        "error": None if server.error is None else check_text(server.error, "server.error"),
    }


def server_of(row: Row[Any]) -> Server:
    """The server of a row of SERVERS."""
    source = None if row.source is None else from_json(row.source)
    return Server(row.name, row.description, source, row.synced_at, row.ttl_ms, row.error)


def texts_of(text: str) -> tuple[str, ...]:
    """A list of texts that `json_text` wrote."""
    return tuple(from_json(text)) if text != "[]" else ()
