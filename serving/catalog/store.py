"""The catalogue: what can be read of it and written to it, every write one transaction with one version.

Knows SQL, but not which database answers it. Does not know where entries come from, how they are searched or who asks.

A catalogue's version rises by one with every transaction that changes something, and the rows it wrote carry it: a
replica that remembers a version asks `changes` for what came after. Writers of one catalogue wait for each other, so
versions become visible in their order.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from serving.catalog.database import Database, IfMatch, Write
from serving.catalog.entry import Bearer, CatalogInfo, Chain, Changes, Entry, Page, Server, SyncResult
from serving.catalog.tables import (
    CANDIDATES,
    CATALOGS,
    CHAINS,
    EMBEDDINGS,
    KEY_BYTES,
    SERVERS,
    TOMBSTONES,
    check_text,
    entry_of,
    json_text,
    row_of,
    select_entries,
    server_of,
    server_row,
    texts_of,
)
from serving.catalog.tenants import SEPARATOR
from serving.types import InvalidRequestError

__all__ = ["IfMatch", "Store"]

T = TypeVar("T")

# Rows of one statement: their conversion holds up the event loop for some milliseconds.
_ROWS = 500
# Keys in one IN (...): SQLite binds at most 32,766 values in a statement.
_KEYS = 5_000
_SETTINGS = ("pinned", "enabled", "principals")
_ENRICHMENT = ("queries", "intentions")


class Store(Database):
    """Catalogues, servers, candidates, embeddings and chains.

    Args:
        url: `sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST/DATABASE`.

    Every method but `close` raises StoreError where the database cannot be used. Those that name a catalogue raise
    NotFoundError where there is none of that name, and those that write raise InvalidRequestError for what no database
    can hold, and ConflictError where `if_match` does not hold.
    """

    # Catalogues

    async def catalogs(self, tenant: str | None = None) -> list[CatalogInfo]:
        """All catalogues, or those of one tenant, by name."""
        name = CATALOGS.c.name
        statement = (
            sa.select(name, CATALOGS.c.version, sa.func.count(CANDIDATES.c.id))
            .outerjoin(CANDIDATES, CANDIDATES.c.catalog == CATALOGS.c.name)
            .where(~CATALOGS.c.dropped)
            .group_by(CATALOGS.c.name, CATALOGS.c.version)
            .order_by(CATALOGS.c.name)
        )
        if tenant is not None:
            own = name.startswith(f"{tenant}{SEPARATOR}", autoescape=True) if tenant else ~name.contains(SEPARATOR)
            statement = statement.where(own)
        async with self._reading() as connection:
            return [CatalogInfo(*row) for row in await connection.execute(statement)]

    async def create(self, name: str) -> int:
        """Make an empty catalogue, or leave the one there is; its version."""
        async with self._writing(name, create=True) as write:
            pass
        return write.version

    async def drop(self, name: str, *, if_match: int | IfMatch | None = None) -> None:
        """Remove a catalogue and everything in it; embeddings stay, for they belong to contents."""
        async with self._writing(name, if_match) as write:
            await self._delete(write, sa.true())
            for table in (SERVERS, CHAINS):
                await write.connection.execute(sa.delete(table).where(table.c.catalog == name))
            await write.connection.execute(sa.update(CATALOGS).where(CATALOGS.c.name == name).values(dropped=True))
            write.changed = True

    async def version(self, catalog: str) -> int:
        """The catalogue's version: cheap enough to be asked every second."""
        async with self._reading() as connection:
            return await self._version(connection, catalog)

    async def versions(self) -> dict[str, int]:
        """Every catalogue's version, by name: as cheap."""
        async with self._reading() as connection:
            rows = await connection.execute(sa.select(CATALOGS.c.name, CATALOGS.c.version).where(~CATALOGS.c.dropped))
            return {row.name: row.version for row in rows}

    # Candidates

    async def upsert(
        self, catalog: str, entries: Sequence[Entry], *, if_match: int | IfMatch | None = None, create: bool = True
    ) -> int:
        """Write all entries or none; the catalogue's version afterwards.

        What is written already keeps its version. The enrichment of a candidate that exists is kept where its entry
        brings none. A catalogue that does not exist is made, unless `create` is off.
        """
        async with self._writing(catalog, if_match, create=create) as write:
            await self._put(write, entries)
        return write.version

    async def remove(self, catalog: str, ids: Sequence[str], *, if_match: int | IfMatch | None = None) -> int:
        """Remove candidates; ids that are not there are passed over. The catalogue's version afterwards."""
        _check_ids(ids)
        async with self._writing(catalog, if_match) as write:
            for some in _parts(ids, _KEYS):
                await self._delete(write, CANDIDATES.c.id.in_(some))
        return write.version

    async def get(self, catalog: str, ids: Sequence[str]) -> list[Entry]:
        """The candidates of these ids, in the ids' order; those that are not there are left out."""
        _check_ids(ids)
        found: dict[str, Entry] = {}
        async with self._reading() as connection:
            await self._version(connection, catalog)
            for some in _parts(ids, _KEYS):
                rows = await connection.execute(select_entries(catalog).where(CANDIDATES.c.id.in_(some)))
                found |= {row.id: entry_of(row) for row in rows}
        return [found[id] for id in ids if id in found]

    async def bearers(self, catalog: str) -> list[Bearer]:
        """The names of all candidates: some ten milliseconds for twenty thousand."""
        columns = CANDIDATES.c.id, CANDIDATES.c.server, CANDIDATES.c.name
        async with self._reading() as connection:
            await self._version(connection, catalog)
            rows = await connection.execute(sa.select(*columns).where(CANDIDATES.c.catalog == catalog))
            return [Bearer(*row) for row in rows]

    async def page(
        self,
        catalog: str,
        *,
        after: str | None = None,
        limit: int = 100,
        server: str | None = None,
        type: str | None = None,
        tag: str | None = None,
        text: str | None = None,
    ) -> Page:
        """At most `limit` candidates in the order of ids, those after `after`.

        `text` is looked for in names and descriptions, whatever its case; server, type and tag must be the same.
        """
        for where, value in {"after": after, "server": server, "type": type, "tag": tag, "text": text}.items():
            check_text(value or "", where)
        statement = select_entries(catalog).order_by(CANDIDATES.c.id).limit(limit + 1)
        if after is not None:
            statement = statement.where(CANDIDATES.c.id > after)
        if server is not None:
            statement = statement.where(CANDIDATES.c.server == server)
        if type is not None:
            statement = statement.where(CANDIDATES.c.type == type)
        if tag is not None:
            # As it stands in a JSON list: neither a part of a tag nor one with quotes inside can look the same. LIKE
            # would not do, for SQLite's knows no case.
            written = json_text([tag], "tag")[1:-1]
            first, later = (sa.func.replace(CANDIDATES.c.tags, mark + written, "") for mark in "[,")
            statement = statement.where((first != CANDIDATES.c.tags) | (later != CANDIDATES.c.tags))
        if text is not None:
            statement = statement.where(CANDIDATES.c.folded.contains(text.casefold(), autoescape=True))
        async with self._reading() as connection:
            await self._version(connection, catalog)
            entries = [entry_of(row) for row in await connection.execute(statement)]
        more = len(entries) > limit
        return Page(tuple(entries[:limit]), entries[limit - 1].candidate.id if more else None)

    async def changes(self, catalog: str, since: int = 0) -> Changes:
        """Everything written after version `since`; since 0 everything there is, by id."""
        async with contextlib.aclosing(self.stream_changes(catalog, since)) as parts:
            read = [part async for part in parts]
        entries = tuple(entry for part in read for entry in part.entries)
        return Changes(read[0].version, entries, read[0].removed)

    async def stream_changes(self, catalog: str, since: int = 0) -> AsyncGenerator[Changes, None]:
        """As `changes`, a part at a time: the first has what was removed, the others some hundred entries each.

        All parts are of one read. Close the iterator (`contextlib.aclosing`) where it is not read to its end.
        """
        statement = select_entries(catalog).order_by(CANDIDATES.c.id)
        async with self._reading() as connection:
            version = await self._version(connection, catalog)
            removed: tuple[str, ...] = ()
            if since:
                statement = statement.where(CANDIDATES.c.version > since)
                back = sa.exists().where(
                    CANDIDATES.c.catalog == TOMBSTONES.c.catalog, CANDIDATES.c.id == TOMBSTONES.c.id
                )
                gone = sa.select(TOMBSTONES.c.id).where(
                    TOMBSTONES.c.catalog == catalog, TOMBSTONES.c.version > since, ~back
                )
                removed = tuple((await connection.scalars(gone)).all())
            yield Changes(version, (), removed)
            result = await connection.stream(statement, execution_options={"yield_per": _ROWS})
            async for rows in result.partitions():
                yield Changes(version, tuple(map(entry_of, rows)), ())

    # Servers

    async def servers(self, catalog: str) -> list[Server]:
        """The catalogue's servers, by name."""
        statement = sa.select(SERVERS).where(SERVERS.c.catalog == catalog).order_by(SERVERS.c.name)
        async with self._reading() as connection:
            await self._version(connection, catalog)
            return [server_of(row) for row in await connection.execute(statement)]

    async def put_server(self, catalog: str, server: Server) -> int:
        """Write a server; the catalogue's version afterwards. Its candidates are stale while it has an error."""
        async with self._writing(catalog, create=True) as write:
            await self._put_server(write, server)
        return write.version

    async def replace_server(
        self, catalog: str, server: Server, entries: Sequence[Entry], *, quarantine: Collection[str] = ()
    ) -> SyncResult:
        """Write a server, and make these its only candidates.

        Those in `quarantine` that are new or have changed are disabled.

        A candidate that exists keeps who may see it, whether it is enabled and pinned, and its enrichment where the
        entry brings none: these are the catalogue's own. One that is the same is not touched.
        """
        for position, entry in enumerate(entries):
            if entry.candidate.server != server.name:
                where = f"entries[{position}].server"
                raise InvalidRequestError(f"{where} is {entry.candidate.server!r}, not {server.name!r}", where)
        own = (CANDIDATES.c.catalog == catalog) & (CANDIDATES.c.server == server.name)
        async with self._writing(catalog, create=True) as write:
            connection = write.connection
            before = set(await connection.scalars(sa.select(CANDIDATES.c.id).where(own)))
            await self._put(write, entries, keep=_SETTINGS)
            for some in _parts(sorted(quarantine), _KEYS):
                changed = own & (CANDIDATES.c.version == write.version) & CANDIDATES.c.id.in_(some)
                await connection.execute(sa.update(CANDIDATES).where(changed).values(enabled=False))
            written = set(
                await connection.scalars(sa.select(CANDIDATES.c.id).where(own, CANDIDATES.c.version == write.version))
            )
            removed = sorted(before.difference(entry.candidate.id for entry in entries))
            for some in _parts(removed, _KEYS):
                await self._delete(write, CANDIDATES.c.id.in_(some))
            await self._put_server(write, server)
        return SyncResult(
            added=tuple(sorted(written - before)),
            changed=tuple(sorted(written & before)),
            removed=tuple(removed),
            version=write.version,
        )

    async def remove_server(self, catalog: str, name: str) -> int:
        """Remove a server and its candidates; the catalogue's version afterwards."""
        check_text(name, "server", KEY_BYTES)
        async with self._writing(catalog) as write:
            await self._delete(write, CANDIDATES.c.server == name)
            gone = sa.delete(SERVERS).where(SERVERS.c.catalog == catalog, SERVERS.c.name == name)
            write.changed |= (await write.connection.execute(gone)).rowcount > 0
        return write.version

    # What is made of candidates

    async def put_enrichment(self, catalog: str, enrichment: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> int:
        """Write (queries, intentions) of these ids; those that are not there are passed over."""
        statement = (
            sa.update(CANDIDATES)
            .where(
                CANDIDATES.c.catalog == catalog,
                CANDIDATES.c.id == sa.bindparam("key"),
                (CANDIDATES.c.queries != sa.bindparam("q")) | (CANDIDATES.c.intentions != sa.bindparam("i")),
            )
            .values(queries=sa.bindparam("q"), intentions=sa.bindparam("i"), version=sa.bindparam("v"))
        )
        _check_ids(list(enrichment))
        async with self._writing(catalog) as write:
            for some in _parts(list(enrichment.items()), _ROWS):
                rows = [
                    {"key": id, "q": json_text(list(queries), id), "i": json_text(list(intentions), id)}
                    | {"v": write.version}
                    for id, (queries, intentions) in some
                ]
                await write.connection.execute(statement, rows)
        return write.version

    async def chains(self, catalog: str) -> list[Chain]:
        """The catalogue's chains, in an order that stays."""
        statement = sa.select(CHAINS).where(CHAINS.c.catalog == catalog).order_by(CHAINS.c.digest)
        async with self._reading() as connection:
            await self._version(connection, catalog)
            return [Chain(row.query, texts_of(row.tools)) for row in await connection.execute(statement)]

    async def put_chains(self, catalog: str, chains: Sequence[Chain]) -> int:
        """Add chains; one that is there already is passed over. The catalogue's version afterwards."""
        statement = self._insert(CHAINS).on_conflict_do_nothing()
        count = sa.select(sa.func.count()).where(CHAINS.c.catalog == catalog)
        async with self._writing(catalog) as write:
            before = await write.connection.scalar(count)
            for some in _parts(chains, _ROWS):
                rows = []
                for chain in some:
                    query, tools = check_text(chain.query, "query"), json_text(chain.tools, "tools")
                    digest = hashlib.blake2b(f"{tools}{query}".encode(), digest_size=16).hexdigest()
                    rows.append({"catalog": catalog, "digest": digest, "query": query, "tools": tools})
                await write.connection.execute(statement, rows)
            write.changed |= await write.connection.scalar(count) != before
        return write.version

    async def embeddings(self, embedder: str, hashes: Sequence[str]) -> dict[str, NDArray[np.float16]]:
        """The vectors that this embedder made of contents, by content hash; those not known are left out."""
        vectors: dict[str, NDArray[np.float16]] = {}
        async with self._reading() as connection:
            for some in _parts(hashes, _KEYS):
                statement = sa.select(EMBEDDINGS.c.hash, EMBEDDINGS.c.vector).where(
                    EMBEDDINGS.c.embedder == embedder, EMBEDDINGS.c.hash.in_(some)
                )
                vectors |= {key: np.frombuffer(data, "<f2") for key, data in await connection.execute(statement)}
        return vectors

    async def put_embeddings(self, embedder: str, vectors: Mapping[str, NDArray[Any]]) -> None:
        """Keep vectors as float16, by content hash; one that is there already stays."""
        # In one order, so that two replicas which write the same cannot wait for each other.
        ordered = sorted(vectors.items(), key=lambda item: item[0])
        statement = self._insert(EMBEDDINGS).on_conflict_do_nothing()
        with self._available():
            async with self._writers.begin() as connection:
                for some in _parts(ordered, _ROWS):
                    rows = [
                        {"embedder": embedder, "hash": key, "vector": vector.astype("<f2").tobytes()}
                        for key, vector in some
                    ]
                    await connection.execute(statement, rows)

    async def _put(self, write: Write, entries: Sequence[Entry], keep: Sequence[str] = ()) -> None:
        """Write those entries that differ from their rows; columns in `keep` are for new rows only."""
        statement = self._insert(CANDIDATES)
        new = statement.excluded
        values: dict[str, Any] = {
            column.name: new[column.name]
            for column in CANDIDATES.c
            if not column.primary_key and column.name not in {"version", *keep}
        }
        for name in _ENRICHMENT:
            values[name] = sa.case((new[name] == "[]", CANDIDATES.c[name]), else_=new[name])
        differs = sa.or_(*(CANDIDATES.c[name] != value for name, value in values.items()))
        statement = statement.on_conflict_do_update(
            index_elements=[CANDIDATES.c.catalog, CANDIDATES.c.id],
            set_={**values, "version": new.version},
            where=differs,
        )
        position = 0
        for some in _parts(entries, _ROWS):
            rows = [
                row_of(write.catalog, entry, write.version, f"candidates[{number}]")
                for number, entry in enumerate(some, position)
            ]
            await write.connection.execute(statement, rows)
            position += len(rows)

    async def _delete(self, write: Write, condition: sa.ColumnElement[bool]) -> None:
        """Turn the catalogue's candidates that fit into tombstones."""
        gone = sa.delete(CANDIDATES).where(CANDIDATES.c.catalog == write.catalog, condition)
        ids = (await write.connection.scalars(gone.returning(CANDIDATES.c.id))).all()
        statement = self._insert(TOMBSTONES)
        statement = statement.on_conflict_do_update(
            index_elements=[TOMBSTONES.c.catalog, TOMBSTONES.c.id], set_={"version": statement.excluded.version}
        )
        for some in _parts(ids, _ROWS):
            rows = [{"catalog": write.catalog, "id": id, "version": write.version} for id in some]
            await write.connection.execute(statement, rows)

    async def _put_server(self, write: Write, server: Server) -> None:
        """Write a server. When it was last asked is no change; whether it could be is one of all its candidates."""
        row = server_row(write.catalog, server)
        own = (SERVERS.c.catalog == write.catalog) & (SERVERS.c.name == server.name)
        known = (await write.connection.execute(sa.select(SERVERS).where(own))).first()
        shown = ("description", "source", "error")
        write.changed |= known is None or any(getattr(known, name) != row[name] for name in shown)
        if (known is None or known.error is None) != (server.error is None):
            flipped = sa.update(CANDIDATES).where(
                CANDIDATES.c.catalog == write.catalog, CANDIDATES.c.server == server.name
            )
            await write.connection.execute(flipped.values(version=write.version))
        statement = self._insert(SERVERS).values(row)
        statement = statement.on_conflict_do_update(
            index_elements=[SERVERS.c.catalog, SERVERS.c.name],
            set_={name: value for name, value in row.items() if name not in {"catalog", "name"}},
        )
        await write.connection.execute(statement)


def _check_ids(ids: Sequence[str]) -> None:
    for position, id in enumerate(ids):
        check_text(id, f"ids[{position}]", KEY_BYTES)


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
