"""`--engine`: the engine that computes the figures of a command."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import click

from ...errors import EndpointError, UsageError
from . import output
from .progress import progress
from .sources import OpenedSource, shown_source

if TYPE_CHECKING:
    from ...core.engines.source import Connect, OpenedTables
    from ...core.records.problems import ReadingProblem
    from ...core.spool.reader import SpoolReader
    from ..convert.formats import PathSpec

T = TypeVar("T")

PYTHON, DUCKDB = "python", "duckdb"
_POSTGRES = ("postgresql://", "postgres://")
_SPARK = "spark://"
_PARQUET = "parquet"
_CONNECT_S = 10.0


class _Engine(click.ParamType):  # type: ignore[type-arg]
    """The name of an engine, or the URL of its server, which messages do not repeat."""

    name = "engine"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in (PYTHON, DUCKDB) and not value.startswith((*_POSTGRES, _SPARK)):
            self.fail(
                f"expected {PYTHON}, {DUCKDB}, {_POSTGRES[0]}HOST/DATABASE or {_SPARK}HOST:PORT",
                param, ctx,
            )  # fmt: skip
        return value


engine_option: Callable[[Any], Any] = click.option(
    "--engine",
    type=_Engine(),
    default=PYTHON,
    show_default=True,
    metavar="ENGINE",
    help="What computes the figures of a spool, or of parquet:DIR: python, duckdb,"
    " postgresql://HOST/DATABASE or spark://HOST:PORT; they are the same.",
)


class EngineSource(NamedTuple):
    """A source of a command."""

    name: str
    format: str | None
    """The value of `--from`."""
    run: str | None = None
    """The value of `--run`."""


@dataclass(frozen=True, slots=True)
class EngineResult(Generic[T]):
    """The result for one source."""

    value: T
    _reader: SpoolReader | None
    """The reader of the spool; None for columnar tables."""

    @property
    def findings(self) -> list[ReadingProblem]:
        """The files of a spool that cannot be read."""
        return [] if self._reader is None else list(self._reader.findings)

    def report_problems(self) -> int:
        """Report these files on stderr; return the exit code, 0 or 1."""
        reader = self._reader
        return 0 if reader is None else OpenedSource(str(reader.paths.root)).report_problems(reader)


def computed_by(
    engine: str,
    sources: Sequence[EngineSource],
    compute: Callable[[OpenedTables, str | None], T],
    product: str,
) -> list[EngineResult[T]] | None:
    """Return the result of `compute` for the tables and the wanted run of each source.

    None, with a message that names the `product`, if a run needs Python. Raises UsageError for
    sources that engines do not read, and the errors of reading them and of the engine.
    """
    from ...core.engines.extra import require

    places = [_place(engine, each) for each in sources]
    require(_shown(engine))
    from ...core.engines.unsupported import NeedsPythonError

    try:
        with progress("connecting"), _connecting(engine) as connect:
            return [
                _computed(place, each.run, connect, compute)
                for place, each in zip(places, sources, strict=True)
            ]
    except NeedsPythonError as reason:
        output.message(f"note: {reason}; --engine {PYTHON} computes the {product}")
        return None


def _place(engine: str, source: EngineSource) -> PathSpec:
    """Return the place of a source. Raises UsageError if engines do not read its format."""
    from ..convert.formats import source_place
    from ..convert.tables import SOURCES

    place = source_place(source.name, source.format)
    if not SOURCES[place.format].is_spool and place.format != _PARQUET:
        raise UsageError(
            f"--engine {_shown(engine)} reads a spool, or columnar tables: convert"
            f" {shown_source(source.name)} to parquet:DIR first"
        )
    return place


def _computed(
    place: PathSpec,
    wanted: str | None,
    connect: Connect | None,
    compute: Callable[[OpenedTables, str | None], T],
) -> EngineResult[T]:
    from ...core.engines.cache import cached_batches
    from ...core.engines.columnar_batches import ColumnarBatches
    from ...core.engines.source import opened_tables
    from ...core.spool.reader import SpoolReader

    if place.format == _PARQUET:
        stored = ColumnarBatches(Path(place.path))
        with progress("computing"), opened_tables(stored, None, connect) as tables:
            return EngineResult(compute(tables, wanted), None)
    reader = SpoolReader(place.path)
    with progress("reading batches") as shown:
        batches = cached_batches(reader, shown)
    with progress("computing"), opened_tables(batches, reader, connect) as tables:
        return EngineResult(compute(tables, wanted), reader)


def _shown(engine: str) -> str:
    """Return an engine without the address of its server."""
    return f"{engine.partition('://')[0]}://" if "://" in engine else engine


@contextlib.contextmanager
def _connecting(engine: str) -> Iterator[Connect | None]:
    """Yield the function that connects to an engine; None for DuckDB."""
    if engine.startswith(_POSTGRES):
        from ...core.engines.postgres_engine import postgres

        yield postgres(engine)
    elif engine.startswith(_SPARK):
        from ...core.engines.spark_engine import masters_of, spark, spark_session
        from ...core.temporary import temporary_folder

        _check_reachable(engine, masters_of(engine))
        with temporary_folder() as folder, spark_session(engine, Path(folder)) as session:
            yield spark(session)
    else:
        yield None


def _check_reachable(url: str, masters: list[tuple[str, int]]) -> None:
    """Raise EndpointError if no master accepts a connection: Spark would try for a minute."""
    for number, address in enumerate(masters, 1):
        try:
            socket.create_connection(address, _CONNECT_S).close()
        except OSError as error:
            if number == len(masters):
                raise EndpointError(
                    f"{url} cannot be reached: {error.strerror or error}; check the host and the"
                    " port of the master"
                ) from None
        else:
            return
