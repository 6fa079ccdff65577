"""A PostgreSQL that goes away and comes back: a real one, stopped and started at one address."""

from __future__ import annotations

import contextlib
import os
import signal

import psycopg

from tests.kit.backends import postgres
from tests.kit.backends.process import Process
from tests.kit.servers.away import until


class Cluster:
    """A PostgreSQL that can be stopped at once, and started again where it was."""

    def __init__(self, server: postgres.Postgres) -> None:
        self._server = server
        with psycopg.connect(server.url("postgres")) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
        assert row is not None
        self._data = str(row[0])
        self._process = server.process

    def stop(self) -> None:
        """As a restart of the server does: clients are not waited for."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGINT)
        self._process.stop()

    def start(self) -> None:
        settings = postgres.SETTINGS | {
            "listen_addresses": "127.0.0.1", "port": self._server.endpoint.split(":")[1]
        }  # fmt: skip
        options = [part for item in settings.items() for part in ("-c", "{}={}".format(*item))]
        command = [postgres.program("postgres") or "", "-D", self._data, *options]
        self._process = Process(postgres._as_nobody(command), {}, self._server.process.log)
        until(lambda: self.count("SELECT 1", self._server.url("postgres")) == 1)

    def count(self, statement: str, url: str) -> int | None:
        """The number that a statement gives; None where nobody answers, or too early."""
        try:
            with psycopg.connect(url, connect_timeout=5) as connection:
                row = connection.execute(statement.encode()).fetchone()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            return None
        assert row is not None
        return int(row[0])

    def new_database(self) -> str:
        """The URL of an empty database."""
        return self._server.new_database()
