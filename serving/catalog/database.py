"""Transactions on SQLite or PostgreSQL: how a catalogue is read in one state, and written with one version.

Knows the two databases' locks and the table of catalogues. Does not know what else is read or written.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from serving.catalog.tables import CANDIDATES, CATALOGS, METADATA, TOMBSTONES
from serving.catalog.tenants import missing, shown_name
from serving.types import ConflictError, InvalidRequestError, StoreError

# With its tenant's name before it, where it has one.
_NAME = re.compile(r"(?:[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}/)?[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,63}")
_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
# What a database says of statements that this program got wrong; everything else is the database's own trouble.
_FAULTS = (DataError, IntegrityError, InternalError, NotSupportedError, ProgrammingError)
_CONNECT_SECONDS = 10
# How long a writer waits for SQLite's one lock; the longest bulk upsert is some seconds.
_LOCK_SECONDS = 60
_LOCK_RETRY_SECONDS = 0.02
# Any number that is ours: replicas that start together make the tables one after the other.
_TABLES_LOCK = 0x11E67


@dataclass(frozen=True, slots=True)
class IfMatch:
    """A condition on a write: the version of the catalogue, or of one candidate in it, is one of `versions`."""

    versions: Container[int]
    candidate: str | None = None


@dataclass(slots=True)
class Write:
    """A transaction that writes. `version` is the new one until it turns out that nothing has changed."""

    connection: AsyncConnection
    catalog: str
    version: int
    changed: bool = False


class Database:
    """One database, and the transactions that a store makes of it."""

    def __init__(self, url: str) -> None:
        parsed = _database(url)
        self._shown = parsed.render_as_string(hide_password=True)
        self._sqlite = parsed.get_backend_name() == "sqlite"
        # Without an isolation level of its own, sqlite3 leaves BEGIN to us.
        sqlite_options = {"timeout": _LOCK_SECONDS, "isolation_level": None}
        connect = sqlite_options if self._sqlite else {"connect_timeout": _CONNECT_SECONDS}
        self._engine = create_async_engine(parsed, connect_args=connect, pool_pre_ping=not self._sqlite)
        reading = {} if self._sqlite else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._readers = self._engine.execution_options(**reading)
        self._writers = self._engine.execution_options(begin="BEGIN IMMEDIATE")
        self._insert: Any = sqlite.insert if self._sqlite else postgresql.insert
        self.on_write: Callable[[str], Awaitable[None]] | None = None
        """Called with a catalogue's name once a change of it is committed here."""
        if self._sqlite:
            sa.event.listen(self._engine.sync_engine, "begin", _begin)

    async def start(self) -> None:
        """Connect, and make the tables that are not there yet."""
        database = self._engine.url.database or ""
        # Asked here, because the driver leaves a thread behind when it cannot open a file.
        if self._sqlite and not Path(database).parent.is_dir():
            raise StoreError(f"the catalogue's database {self._shown} cannot be used: its folder does not exist")
        with self._available():
            if self._sqlite:
                await self._log_ahead()
            async with self._writers.begin() as connection:
                if not self._sqlite:
                    await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TABLES_LOCK)))
                await connection.run_sync(METADATA.create_all)

    async def _log_ahead(self) -> None:
        """Let readers go on while one writes: SQLite's write-ahead log, which a database file keeps once it is set.

        To set it SQLite needs the file for itself and, alone among its statements, does not wait for it.
        """
        # In place of BEGIN, for it must stand outside a transaction.
        setting = self._engine.execution_options(begin="PRAGMA journal_mode = WAL")
        deadline = anyio.current_time() + _LOCK_SECONDS
        while True:
            try:
                async with setting.begin():
                    return
            except OperationalError as error:
                if not _is_busy(error) or anyio.current_time() > deadline:
                    raise
            await anyio.sleep(_LOCK_RETRY_SECONDS)

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()

    @contextlib.contextmanager
    def _available(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeoutError) as error:
            if isinstance(error, _FAULTS):
                raise
            reason = str(getattr(error, "orig", error)).partition("\n")[0]
            raise StoreError(f"the catalogue's database {self._shown} cannot be used: {reason}") from error

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        """A transaction whose statements all see the same state."""
        with self._available():
            async with self._readers.begin() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def _writing(
        self, catalog: str, if_match: int | IfMatch | None = None, *, create: bool = False
    ) -> AsyncIterator[Write]:
        """A transaction that holds the catalogue's lock, and raises its version if something has changed."""
        if create and not _NAME.fullmatch(catalog):
            raise InvalidRequestError(
                f"{shown_name(catalog)[:100]!r} is no name for a catalogue; 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-' "
                "are, not beginning with '.'",
                "catalog",
            )
        condition = IfMatch((if_match,)) if isinstance(if_match, int) else if_match
        with self._available():
            async with self._writers.begin() as connection:
                write = await self._locked(connection, catalog, create=create)
                if condition:
                    await _check(write, condition)
                yield write
                # What the rows say counts: upserts and updates pass over what is the same.
                for table in (CANDIDATES, TOMBSTONES):
                    rows = sa.select(table.c.id).where(table.c.catalog == catalog, table.c.version == write.version)
                    write.changed = write.changed or (await connection.execute(rows.limit(1))).first() is not None
                if write.changed:
                    raised = sa.update(CATALOGS).where(CATALOGS.c.name == catalog).values(version=write.version)
                    await connection.execute(raised)
                else:
                    write.version -= 1
        if write.changed and self.on_write is not None:
            await self.on_write(catalog)

    async def _locked(self, connection: AsyncConnection, catalog: str, *, create: bool) -> Write:
        if not create:
            return Write(connection, catalog, await self._version(connection, catalog, lock=True) + 1)
        made = self._insert(CATALOGS).values(name=catalog, version=0, dropped=True).on_conflict_do_nothing()
        await connection.execute(made)
        known = await connection.execute(
            sa.select(CATALOGS.c.version, CATALOGS.c.dropped).where(CATALOGS.c.name == catalog).with_for_update()
        )
        version, dropped = known.one()
        if dropped:
            await connection.execute(sa.update(CATALOGS).where(CATALOGS.c.name == catalog).values(dropped=False))
        return Write(connection, catalog, version + 1, changed=dropped)

    @staticmethod
    async def _version(connection: AsyncConnection, catalog: str, *, lock: bool = False) -> int:
        statement = sa.select(CATALOGS.c.version).where(CATALOGS.c.name == catalog, ~CATALOGS.c.dropped)
        if lock:
            statement = statement.with_for_update()
        version = await connection.scalar(statement) if _NAME.fullmatch(catalog) else None
        if version is None:
            raise missing(shown_name(catalog))
        return int(version)


def _database(url: str) -> URL:
    """The URL with the driver that this project uses.

    Raises:
        ValueError: it is no URL of SQLite or PostgreSQL.
    """
    try:
        parsed = make_url(url)
        return parsed.set(drivername=_DRIVERS[parsed.get_backend_name()])
    except (ArgumentError, KeyError):
        raise ValueError(
            "the catalogue's database must be a URL like sqlite:///light-router.db or "
            "postgresql://user:password@host/database"
        ) from None


def _is_busy(error: OperationalError) -> bool:
    """Whether another connection has SQLite's file; the low byte is the error, the rest says more of it."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _begin(connection: sa.Connection) -> None:
    """A writer of SQLite takes the lock at once: one that has read first could not wait for it."""
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


async def _check(write: Write, condition: IfMatch) -> None:
    found: int | None = write.version - 1
    what = f"the catalogue {shown_name(write.catalog)!r}"
    if condition.candidate is not None:
        row = (CANDIDATES.c.catalog == write.catalog) & (CANDIDATES.c.id == condition.candidate)
        found = await write.connection.scalar(sa.select(CANDIDATES.c.version).where(row))
        what = f"the candidate {condition.candidate[:100]!r}"
    if found is None:
        raise ConflictError(f"{what} is not there (any more); read it again before changing it")
    if found not in condition.versions:
        raise ConflictError(f"{what} has version {found} by now; read it again before changing it")
