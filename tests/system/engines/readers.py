"""Engines that read many columnar tables, one after the other, with their servers.

```python
with opened("spark") as reader:
    reader.start(folder)
    documents = reader.documents()
```
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.source import Connect
from cirron_otel.core.engines.unsupported import NeedsPythonError
from cirron_otel.core.run.opening import open_run
from tests.kit.backends.postgres import postgres
from tests.kit.environments import Environment

from . import documents, relations
from .documents import CHDB
from .spark import PYSPARK, cluster

DUCKDB: Final = "duckdb"
TABLES: Final = "tables"
"""Python, which reads the batches of the tables."""
ENGINES: Final = (DUCKDB, "postgresql", "chdb", "spark")
NAMES: Final = ("report", relations.RELATIONS)
_ROOT: Final = Path(__file__).parents[3]
_SPARK: Final = "spark://"


class ReadError(Exception):
    """A process with an engine has not read the tables; the message is that of its error."""


class Reader(Protocol):
    """An engine that is connected."""

    is_plain: bool
    """Whether the relations are as of `relations.plain`."""

    def start(self, folder: Path) -> None:
        """Start to read tables."""

    def documents(self) -> dict[str, Any]:
        """Return the documents of these tables. Raises the errors of the engine, and ReadError.

        Raises SystemExit if the engine has ended.
        """


class InProcess:
    """An engine in this process, which reads the tables when their documents are needed."""

    is_plain = False

    def __init__(self, connect: Connect | None) -> None:
        self._connect = connect
        self._folder: Path

    def start(self, folder: Path) -> None:
        """Note the folder of the tables."""
        self._folder = folder

    def documents(self) -> dict[str, Any]:
        """Return the documents of the tables."""
        return documents.in_engine(self._folder, self._connect, NAMES, is_shared=True)


class InTables(InProcess):
    """Python, for the recordings that engines leave to it."""

    def documents(self) -> dict[str, Any]:
        """Return the documents of the tables."""
        batches = ColumnarBatches(self._folder)
        contents = [each for _, each in batches.contents(range(len(batches.batches)))]
        with open_run(contents, slowest=documents.SLOWEST, in_columns=True) as run:
            return documents.with_relations(run)


class InChild:
    """An engine in a process of its own, which reads while this one works."""

    is_plain = True

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, folder: Path) -> None:
        """Send the folder of the tables to the process."""
        assert self._process.stdin is not None
        print(f"{','.join(NAMES)}:{folder}", file=self._process.stdin, flush=True)

    def documents(self) -> dict[str, Any]:
        """Return the documents of the tables."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args} has ended: {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "needs_python" in found:
            raise NeedsPythonError(found["needs_python"])
        if "error" in found:
            raise ReadError(found["error"])
        return found


@contextlib.contextmanager
def opened(name: str) -> Iterator[Reader]:
    """Start an engine of `ENGINES`, or connect to the server with a URL.

    Raises BackendError and EnvironmentUnavailableError if it cannot be started.
    """
    with contextlib.ExitStack() as stack:
        if name == TABLES:
            yield InTables(None)
        elif name == DUCKDB:
            yield InProcess(None)
        elif name.startswith("postgresql"):
            from cirron_otel.core.engines.postgres_engine import postgres as connected

            is_url = ":" in name
            url = name if is_url else stack.enter_context(postgres()).new_database()
            yield InProcess(connected(url))
        elif name == "chdb":
            yield stack.enter_context(_child(CHDB, "tests.system.engines.chdb_engine"))
        else:
            variables: Mapping[str, str] = {}
            if not name.startswith(_SPARK):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-"))
                running = stack.enter_context(cluster(Path(folder)))
                name, variables = running.url, running.variables
            module = "tests.system.engines.spark_reports"
            yield stack.enter_context(_child(PYSPARK, module, [name], variables))


@contextlib.contextmanager
def _child(
    environment: Environment,
    module: str,
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[InChild]:
    command = [str(environment.make()), "-m", module, *arguments, documents.FROM_INPUT]
    with subprocess.Popen(
        command, cwd=_ROOT, env={**os.environ, **(variables or {})}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield InChild(process)
        finally:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
