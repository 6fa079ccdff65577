"""Apache Spark: workers read the files of the tables by their paths."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import sqlglot

from ...errors import EndpointError, InputError, MissingExtraError, UsageError
from ..columns.schema import (
    BOOL,
    DOUBLE,
    INT32,
    INT64,
    MAP,
    MARKS,
    SPANS,
    STRING,
    TABLES,
    VALUE_FIELDS,
)
from .duckdb_engine import DuckDBEngine, relation_query
from .engine import SqlEngine, Table
from .spark_sql import ExactSparkCompiler

try:
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.functions import col
    from pyspark.sql.pandas.types import to_arrow_schema
except ImportError as _error:
    raise MissingExtraError("spark", "--engine spark://") from _error

PREFIX: Final = "spark://"
_URL: Final = re.compile(r"spark://[A-Za-z0-9.\-\[\]:]+:\d+(,[A-Za-z0-9.\-\[\]:]+:\d+)*", re.ASCII)
_USE: Final = "use spark://HOST:PORT"
_SETTINGS: Final = {
    "spark.app.name": "cirron-otel",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.variable.substitute": "false",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
}
"""Settings on which the figures and the meaning of texts depend; the driver has no pages."""
_GLOB: Final = frozenset("*?[]{}\\")
"""Characters of patterns, also in paths for which Spark's option switches patterns off."""
_RAW_LITERALS: Final = "spark.sql.parser.escapedStringLiterals"
"""Deprecated: setting it logs a warning."""
_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_LEAST_BYTES: Final = 1 << 20
_PARTITION_BYTES: Final = 64 << 20
"""The bytes of files a partition of a query: up to one partition for each core, and for more."""
_WORKERS_S: Final = 120.0
"""How long workers may take to start an executor, seconds."""
_PAUSE_S: Final = 0.2
_TYPES: Final = {
    STRING: "string", INT32: "int", INT64: "bigint", DOUBLE: "double", BOOL: "boolean",
}  # fmt: skip
_ERROR: Final = re.compile(r"(?:ERROR|WARN) (.*)|^(?:Caused by: )?[\w.]+(?:Exception|Error): .*")
_JAVA_CLASS: Final = re.compile(r"^: (?:[\w.$]+: )?")
_UNREAD_FILE: Final = re.compile(r"\[FAILED_READ_FILE.*")
_LONGEST: Final = 300
_COMPILER: Final = ExactSparkCompiler()


def masters_of(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of the masters. Raises UsageError if the URL is not valid."""
    if not _URL.fullmatch(url):
        raise UsageError(f"the URL of --engine is not valid: {_USE}")
    pairs = (each.rpartition(":") for each in url.removeprefix(PREFIX).split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


@contextlib.contextmanager
def spark_session(url: str, folder: Path) -> Iterator[SparkSession]:
    """Start an application on a cluster, and stop it at the end.

    `folder` is a temporary directory for the log of the driver. Raises UsageError without Java, and
    EndpointError if the cluster does not start the application.
    """
    log = folder / "spark.log"
    # It prints each error with its stack.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    conf = SparkConf().setMaster(url).setAll(_SETTINGS.items())
    with log.open("wb") as file:
        try:
            gateway = launch_gateway(conf, {"stdout": file, "stderr": file})
        except (PySparkException, OSError):
            raise UsageError(
                f"the driver of Spark does not start: {_last_problem(log)};"
                " install Java 17 or newer, or set JAVA_HOME"
            ) from None
    context = None
    try:
        try:
            context = SparkContext(conf=conf, gateway=gateway)
            session = SparkSession(context)
            _wait_for_workers(url, session)
        except (Py4JError, PySparkException) as error:
            reason = _last_problem(log) or _first_line(error)
            raise EndpointError(f"{url} does not start the application: {reason}") from None
        yield session
    finally:
        with contextlib.suppress(Exception):
            if context is not None:
                context.stop()
        with contextlib.suppress(Exception):
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait()


def _wait_for_workers(url: str, session: SparkSession) -> None:
    """Run a job. Raises EndpointError if no worker does it."""
    job = session.range(1)._jdf.toJavaRDD().countAsync()
    deadline = time.monotonic() + _WORKERS_S
    while not job.isDone():
        if time.monotonic() > deadline:
            job.cancel(True)
            raise EndpointError(
                f"{url} has not started an executor for {_WORKERS_S:.0f} s: check that workers are"
                " registered, have free cores and memory, and reach this host"
            )
        time.sleep(_PAUSE_S)
    job.get()


def spark(session: SparkSession) -> Callable[[DuckDBEngine], SparkEngine]:
    """Return the function that creates the relations of a run in an application."""
    return lambda files: SparkEngine(session.newSession(), files)


class SparkEngine(SqlEngine):
    """A session, whose temporary views no other session sees."""

    dialect: ClassVar[str] = "pyspark"

    def __init__(self, session: SparkSession, files: DuckDBEngine) -> None:
        """Create the relations. The workers must have the files at the same paths."""
        super().__init__()
        self._session = session
        self._stored_frames: list[DataFrame] = []
        if _GLOB & set(str(files.batches.directory.absolute())):
            raise UsageError(
                f"{files.batches.directory}: Spark cannot read its files; expected"
                f" a path without {' '.join(sorted(_GLOB))}: move the tables"
            )
        paths = {name: files.batches.files(table) for name, table in _QUERIES.items()}
        size = sum(map(_size_of, chain.from_iterable(paths.values())))
        cores = session.sparkContext.defaultParallelism
        parts = max(min(cores, size // _LEAST_BYTES), size // _PARTITION_BYTES, 1)
        session.conf.set("spark.sql.shuffle.partitions", str(parts))
        # The constraints of a stored table may name columns that it does not have (Spark 4.0.1):
        # "key not found" in a union.
        session.conf.set("spark.sql.constraintPropagation.enabled", "false")
        if session.conf.get(_RAW_LITERALS) == "true":
            session.conf.set(_RAW_LITERALS, "false")
        with _errors():
            self._view("place", session.createDataFrame(files.expanded("place")))
            repeated = session.createDataFrame(files.expanded("repeated"))
            for name, table in _QUERIES.items():
                reader = session.read.schema(_ddl(table))
                urls = (f"file://{Path(path).absolute()}" for path in paths[name])
                frame = reader.parquet(*urls)
                if files.batches.repeated:
                    frame = frame.select("*", col("_metadata.file_name").alias("file"))
                    frame = frame.join(repeated, ["file", "batch_key"], "left_anti").drop("file")
                self._view("files", frame)
                self._view("expanded", session.createDataFrame(files.expanded(name)))
                query = relation_query(table, "files", "expanded")
                [query] = sqlglot.transpile(query, read="duckdb", write="spark")
                self._view(name, session.sql(query))

    def compiler(self) -> Any:
        """Return the compiler of Ibis."""
        return _COMPILER

    def create(self, name: str, query: str) -> None:
        """Compute a query, and keep its rows in the memory and on the disks of the workers."""
        with _errors():
            frame = self._session.sql(query).localCheckpoint()
            self._stored_frames.append(frame)
            # Its columns would have the identities of those that they were computed from, which
            # a join of both confuses.
            self._view(name, frame.toDF(*frame.columns))

    def record_batches(self, expression: Table, size: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an expression, in its order, as record batches of at most `size`.

        The driver has the rows of one partition at a time.
        """
        with _errors():
            frame = self._session.sql(self.sql(expression))
            schema = to_arrow_schema(frame.schema)
            self._session.conf.set(_BATCH_ROWS, str(size))
            batches = frame._jdf.toArrowBatchRdd().toJavaRDD().toLocalIterator()
            while batches.hasNext():
                yield pa.ipc.read_record_batch(pa.py_buffer(batches.next()), schema)

    def rows(self, expression: Table) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an expression, in its order. The driver has them all."""
        with _errors():
            table = self._session.sql(self.sql(expression)).toArrow()
        for batch in table.to_batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def close(self) -> None:
        """Drop the views and the stored rows."""
        with contextlib.suppress(Py4JError, PySparkException):
            for view in self._session.catalog.listTables():
                self._session.catalog.dropTempView(view.name)
        self._stored_frames.clear()

    def _view(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)


_QUERIES: Final = {"span": SPANS, "mark": MARKS}


def _size_of(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}: run the command again"
        ) from None


def _ddl(table: str) -> str:
    """Return the columns of a table in Spark's types, except those that no query reads."""
    value = ", ".join(f"{name}: {_TYPES[type_]}" for name, type_ in VALUE_FIELDS)
    types = _TYPES | {MAP: f"map<string, struct<{value}>>"}
    return ", ".join(
        f"`{column.name}` {types[column.type]}" for column in TABLES[table] if column.type in types
    )


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, Py4JError | PySparkException | OSError):
            raise
        text = _first_line(error)
        unread = _UNREAD_FILE.search(str(error))
        if unread is not None or "FileNotFoundException" in str(error):
            text = text if unread is None else unread[0][:_LONGEST]
            raise InputError(
                f"Spark's workers cannot read the tables: {text}; each needs the same"
                " paths, and files without damage"
            ) from None
        raise EndpointError(
            f"Spark cannot compute the figures: {text}; run it again if an executor was lost, or"
            " see the logs of the workers"
        ) from None


def _first_line(error: Exception) -> str:
    """Return the first line of a message; that of Java without the call and the class."""
    lines = [each for each in str(error).splitlines() if each.strip()] or [type(error).__name__]
    line = lines[0]
    if isinstance(error, Py4JJavaError) and len(lines) > 1:
        line = _JAVA_CLASS.sub("", lines[1])
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"


def _last_problem(log: Path) -> str:
    """Return the last line of the driver's log that names a problem, or its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    problems = [line for line in lines if _ERROR.search(line)]
    line = (problems or lines or [""])[-1]
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "…"
