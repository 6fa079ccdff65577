"""`cirron_otel.read`: a recording as tables."""

# ruff: noqa: PLC0415 - imports in functions, so that pyarrow is needed only for tables

from __future__ import annotations

import contextlib
import os
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ...core.analysis.run_selection import select_runs
from ...core.analysis.runs import Run
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import SpoolReader
from .content import RecordingContent
from .lazy_table import LazyTable

if TYPE_CHECKING:
    import pyarrow as pa


def read(
    source: str | os.PathLike[str] = ".cirron",
    *,
    run: str | None = None,
    source_format: str | None = None,
) -> Recording:
    """Open a recording for analysis in a notebook: its steps, spans, marks and sessions as tables.

    `source` is any source of `cirron-otel convert`: a spool, a file of OTLP, `parquet:DIR`,
    `jaeger:URL?…`, a database and others. `source_format` overrides what follows from its name, as
    `--from` does. `run` selects one run by its name, its id or a prefix of it, or `"last"`; by
    default all runs are read.

    Batches that cannot be read are left out with a warning; `findings` lists them. Raises
    UsageError, InputError or EndpointError if the source or the run cannot be found, and
    TargetError if a temporary file cannot be written.
    """
    from ..convert.as_spool import opened_as_spool
    from ..convert.formats import is_spool

    place = os.fspath(source)
    with contextlib.ExitStack() as stack:
        findings: list[ReadingProblem] = []
        directory = place
        if not is_spool(place, source_format):
            directory, report = stack.enter_context(opened_as_spool(place, source_format, run=run))
            findings += report.skipped
            findings += (ReadingProblem(place, "incomplete", text) for text in report.incomplete)
            findings += (ReadingProblem(place, "not-kept", text) for text in report.losses)
        reader = SpoolReader(directory)
        runs = select_runs(reader, run)
        findings += reader.findings
        if findings:
            warnings.warn(
                f"{place} is incomplete: {findings[0].message}; `findings` lists"
                f" {'it' if len(findings) == 1 else f'all {len(findings):,} problems'}",
                stacklevel=2,
            )
        content = RecordingContent(reader, runs, findings, place)
        # The tables keep the content, also after the last use of the recording.
        close = weakref.finalize(content, stack.pop_all().close)
        return Recording(place, content, close)


class Recording:
    """The tables of one recording; `read` returns it.

    The tables are read when they are first used. A source that is not a spool is kept as a
    temporary spool until the recording is closed, or no longer used.
    """

    def __init__(self, source: str, content: RecordingContent, close: Callable[[], object]) -> None:
        """`close` removes temporary files."""
        self.source = source
        self._content, self._close = content, close
        self._tables: dict[str, LazyTable] = {}

    @property
    def findings(self) -> list[ReadingProblem]:
        """The batches that cannot be read, and other data that is incomplete or has no column."""
        return self._content.findings

    @property
    def runs(self) -> list[Run]:
        """The runs of the recording, in order of their start."""
        return self._content.runs.runs

    def steps(self) -> LazyTable:
        """Return the steps: a row for each step and rank, a column for each phase and mark."""
        return self._table("steps", self._content.steps)

    def sessions(self) -> LazyTable:
        """Return the sessions: a row for each process."""
        return self._table("sessions", self._content.sessions)

    def spans(self) -> LazyTable:
        """Return all spans, with the columns of docs/columns.md."""
        return self._table("spans", lambda: self._content.records("spans"))

    def marks(self) -> LazyTable:
        """Return all marks, with the columns of docs/columns.md."""
        return self._table("marks", lambda: self._content.records("marks"))

    def close(self) -> None:
        """Remove temporary files. Tables that were not read before cannot be read any more."""
        self._close()

    def _table(self, name: str, read_rows: Callable[[], pa.Table]) -> LazyTable:
        if name not in self._tables:
            self._tables[name] = LazyTable(name, read_rows)
        return self._tables[name]

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        count = len(self.runs)
        return f"<{type(self).__name__} {self.source}: {count} {'run' if count == 1 else 'runs'}>"
