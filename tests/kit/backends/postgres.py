"""The real PostgreSQL, started for tests and stopped after them; Debian's package `postgresql`.

```python
with postgres() as server:
    url = server.new_database()
```
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psycopg

from .process import (
    ATTEMPTS,
    READY_SECONDS,
    BackendError,
    Process,
    free_endpoints,
)

USER = "cirron"
PASSWORD = "p@ss/word%20:x"
# The tests kill clients, never the machine: the disk need not be waited for.
SETTINGS = {
    "fsync": "off", "full_page_writes": "off", "unix_socket_directories": "", "timezone": "UTC",
    "shared_buffers": "32MB", "max_connections": "40",
    "jit": "off",  # it takes seconds for a view of a hundred rows
}  # fmt: skip


@dataclass
class Postgres:
    """A running server."""

    process: Process
    endpoint: str
    """`127.0.0.1:port`."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str, user: str = USER, password: str = PASSWORD) -> str:
        """A URL with a password."""
        return f"postgresql://{user}:{quote(password, safe='')}@{self.endpoint}/{database}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test{os.getpid()}_{next(self._numbers)}_{secrets.token_hex(3)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove it, whoever is connected."""
        name = url.rpartition("/")[2]
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def program(name: str) -> str | None:
    """Where a program of the server is: on the PATH, or where Debian puts it."""
    found = shutil.which(name)
    if found is not None and Path(found).resolve().with_name("initdb").exists():
        return str(Path(found).resolve())
    versions = sorted(
        Path("/usr/lib/postgresql").glob(f"*/bin/{name}"),
        key=lambda path: int("0" + "".join(filter(str.isdigit, path.parts[-3]))),
    )
    return str(versions[-1]) if versions else None


def missing() -> str | None:
    """Why PostgreSQL cannot be run here, in a few words; None where it can."""
    if program("initdb") is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "setpriv is not installed: PostgreSQL does not run as root"
    return None


@contextlib.contextmanager
def postgres(home: Path | None = None) -> Iterator[Postgres]:
    """Run a server on loopback, with passwords.

    Its cluster is below `home`, which every user must be able to reach, and is made if it is
    missing. By default it is in a temporary directory.
    """
    if reason := missing():
        raise BackendError(reason)
    with contextlib.ExitStack() as stack:
        if home is None:
            # Not below pytest's directories, which only their owner may enter.
            home = Path(tempfile.mkdtemp(prefix="cirron-otel-postgres-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
        if not (home / "data").exists():
            _make_cluster(home)
        yield stack.enter_context(_running(home / "data", home / "log"))


def _make_cluster(home: Path) -> None:
    new = home / "new"
    shutil.rmtree(new, ignore_errors=True)  # of a start that was interrupted
    new.mkdir(mode=0o700, parents=True)
    (home / "password").write_text(PASSWORD)
    if os.geteuid() == 0:
        for path in (home, new, home / "password"):
            shutil.chown(path, "nobody", "nogroup")
    _initdb(home, new)
    new.rename(home / "data")


def _as_nobody(command: Sequence[str]) -> list[str]:
    if os.geteuid() != 0:
        return list(command)
    who = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]
    return [*who, *command]


def _initdb(home: Path, data: Path) -> None:
    command = [
        program("initdb") or "", "-D", str(data), "-U", USER, "--no-sync", "--encoding=UTF8",
        "--locale=C", "--auth=scram-sha-256", f"--pwfile={home / 'password'}",
    ]  # fmt: skip
    done = subprocess.run(
        _as_nobody(command), capture_output=True, text=True, check=False, cwd=home
    )
    if done.returncode:
        raise BackendError(f"initdb failed:\n{done.stderr[-2000:]}")


@contextlib.contextmanager
def _running(data: Path, log: Path) -> Iterator[Postgres]:
    for attempt in range(ATTEMPTS):
        [endpoint] = free_endpoints(1)
        settings = SETTINGS | {"listen_addresses": "127.0.0.1", "port": endpoint.split(":")[1]}
        options = [part for item in settings.items() for part in ("-c", "{}={}".format(*item))]
        command = _as_nobody([program("postgres") or "", "-D", str(data), *options])
        process = Process(command, {}, log)
        try:
            server = Postgres(process, endpoint)
            try:
                _wait_ready(server)
            except BackendError:
                # Somebody may have taken the port meanwhile.
                if process.running() or attempt == ATTEMPTS - 1:
                    raise
                continue
            yield server
            return
        finally:
            if process.running():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)  # without waiting for clients
            process.stop()


def _wait_ready(server: Postgres) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            psycopg.connect(server.url("postgres"), connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if not server.process.running() or time.monotonic() > deadline:
                raise BackendError(f"not ready: {error}\n{server.process.tail()}") from None
            time.sleep(0.02)
