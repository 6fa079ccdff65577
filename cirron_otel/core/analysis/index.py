"""An index of a complete spool in a temporary database on disk, so that memory stays bounded.

Records that refer to each other are in different files: a scope is written when it ends, so its
children precede it, often by many files. `verify` and the search for sessions query the records of
all files. The database is an unnamed file that SQLite itself removes.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from ...errors import TargetError
from ...ids import is_id
from ..records.memory_marks import kind_of, memory_mark
from ..records.rows import IndexedBatch, IndexedSpan, device_of, rows_of, shown
from ..records.run_summary import values_of_marks, values_of_spans
from ..records.step_summaries import ExpandedSpan, expand, may_have_summaries
from ..spool.reader import BatchFile
from ..state_database import open_database

_SCHEMA = """
CREATE TABLE file (
    no INTEGER PRIMARY KEY, name TEXT, size INTEGER, batch_id BLOB, has_summaries INTEGER,
    first_span INTEGER
);
CREATE TABLE span (
    no INTEGER PRIMARY KEY, file INTEGER, position INTEGER, id BLOB, parent BLOB, name TEXT,
    idx TEXT, start_ns INTEGER, end_ns INTEGER, pid INTEGER, rank INTEGER, thread_id INTEGER,
    error TEXT, gpu_ns INTEGER, memory_peak INTEGER, device_peak INTEGER,
    reserved_peak INTEGER, is_peak_sampled INTEGER, phases_are_sums INTEGER, training INTEGER,
    origin BLOB
);
CREATE TABLE mark (
    no INTEGER PRIMARY KEY, file INTEGER, position INTEGER, id BLOB, span BLOB, name TEXT,
    value TEXT, kind TEXT, ts_ns INTEGER, device TEXT, is_text INTEGER
);
CREATE TABLE snapshot (
    no INTEGER PRIMARY KEY, file INTEGER, position INTEGER, id BLOB, span BLOB, name TEXT,
    blob_uri BLOB
);
CREATE TABLE sample (
    file INTEGER, position INTEGER, kind TEXT, device TEXT, allocated INTEGER, reserved INTEGER,
    device_used INTEGER, device_total INTEGER, resident INTEGER, memory_limit INTEGER,
    limit_used INTEGER, detail TEXT, PRIMARY KEY (file, position)
) WITHOUT ROWID;
CREATE TABLE summary (name TEXT, rank INTEGER, value REAL);
CREATE TABLE listed (file INTEGER, span BLOB, mark BLOB);
"""
_INDEXES = """
CREATE INDEX span_id ON span (id);
CREATE INDEX span_parent ON span (parent);
CREATE INDEX mark_span ON mark (span);
CREATE INDEX snapshot_span ON snapshot (span);
ANALYZE;
"""
_ADD_FILE = """
INSERT INTO file VALUES (?, ?, ?, ?, ?, (SELECT coalesce(max(no), 0) + 1 FROM span))
"""
_ADD_SPAN = (
    "INSERT INTO span VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_ADD_MARK = "INSERT INTO mark VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_SNAPSHOT = "INSERT INTO snapshot VALUES (NULL, ?, ?, ?, ?, ?, ?)"
_ADD_SAMPLE = "INSERT INTO sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_SUMMARY = "INSERT INTO summary VALUES (?, ?, ?)"
_ADD_LISTED = "INSERT INTO listed VALUES (?, ?, ?)"
_CACHE_KIB = 32 * 1024
_NO_ATTRIBUTES = None, None, False, False, 0
# The prefix is longer than an id, so that no other string has the same key as an id.
_TEXT = b"\0" * 16 + b"t"


def key_of(value: Any) -> bytes | None:
    """Return the index key of an id (16 bytes) or of any other string (longer); else None."""
    if is_id(value):
        return bytes.fromhex(value)
    return _TEXT + value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None


def id_of(key: bytes) -> str:
    """Return the id or other string from which `key_of` made `key`."""
    if len(key) == 16:
        return key.hex()
    return key[len(_TEXT) :].decode("utf-8", "surrogatepass")


class SpoolIndex:
    """A spool's records in a temporary database; a context manager that removes it."""

    def __init__(self) -> None:
        """Create an empty index."""
        # With an empty name, SQLite creates a temporary file and unlinks it at once.
        self.connection = open_database(
            "", "journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"
        )
        self.connection.executescript(_SCHEMA)
        self.connection.execute("BEGIN")
        self.files = 0
        self.has_summaries = False
        """Whether some steps are summaries, because of an export budget."""

    def __enter__(self) -> SpoolIndex:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.connection.close()

    def add(self, batch: BatchFile) -> None:
        """Add one batch."""
        rows = rows_of(batch.data)
        spans: Iterable[tuple[int, IndexedSpan]] = enumerate(rows.spans)
        has_summaries = False
        if may_have_summaries(batch.data):
            expanded = expand(rows)
            has_summaries = any(isinstance(span, ExpandedSpan) for _, span in expanded)
            self.has_summaries |= has_summaries
            spans = expanded
        number = self.files
        self.files += 1
        add = self.connection.executemany
        name = shown(batch.name)
        with disk_errors():
            file = (number, name, len(batch.data), key_of(rows.batch_id), has_summaries)
            add(_ADD_FILE, [file])
            add(_ADD_SPAN, _spans(number, spans, has_summaries=has_summaries))
            add(_ADD_MARK, _mark_rows(number, rows))
            add(_ADD_SAMPLE, _samples(number, rows))
            add(_ADD_SNAPSHOT, _snapshots(number, rows))
            add(_ADD_LISTED, _listed(number, rows))
            add(_ADD_SUMMARY, values_of_spans(rows.spans))
            add(_ADD_SUMMARY, values_of_marks(rows.marks))

    def ready(self) -> SpoolIndex:
        """Make the added records searchable."""
        with disk_errors():
            self.connection.execute("COMMIT")
            self.connection.executescript(_INDEXES)
        return self

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; each call has its own cursor."""
        with disk_errors():
            yield from self.connection.execute(query, values)

    def script(self, statements: str) -> None:
        """Run statements that create tables."""
        with disk_errors():
            self.connection.executescript(statements)

    def change(self, statement: str, values: Iterable[tuple[Any, ...]]) -> None:
        """Run an INSERT for each of `values`, as one transaction."""
        with disk_errors():
            self.connection.execute("BEGIN")
            self.connection.executemany(statement, values)
            self.connection.execute("COMMIT")

    def one(self, query: str, *values: Any) -> Any:
        """Return the first value of the first row, or None."""
        return next(self.rows(query, *values), (None,))[0]


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Convert an error of a temporary database in the block to a TargetError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise TargetError(
            f"the temporary index cannot be written: {error};"
            " free some space, or set SQLITE_TMPDIR to a directory with enough space"
        ) from None


def _spans(
    file: int, spans: Iterable[tuple[int, IndexedSpan]], *, has_summaries: bool
) -> Iterator[tuple[Any, ...]]:
    for position, span in spans:
        yield (
            file, position, key_of(span.id), key_of(span.parent_id), shown(span.name),
            shown(span.index), _int64(span.start_ns), _int64(span.end_ns), _int64(span.pid),
            _int64(span.rank), _int64(span.thread_id),
            shown(span.error) if span.otel is not None else None, _int64(span.gpu_ns),
            _int64(span.memory_peak_bytes),
            *(_of_attributes(span) if span.has_attributes else _NO_ATTRIBUTES),
            key_of(span.origin) if has_summaries and isinstance(span, ExpandedSpan) else None,
        )  # fmt: skip


def _of_attributes(span: IndexedSpan) -> tuple[int | bool | None, ...]:
    """Return the columns `device_peak` to `training`."""
    peaks = map(_int64, span.device_peaks)
    return *peaks, span.is_peak_sampled, span.phases_are_sums, span.training


def _mark_rows(file: int, rows: IndexedBatch) -> Iterator[tuple[Any, ...]]:
    for position, mark in enumerate(rows.marks):
        value = mark.value if mark.value is not None else mark.value_nonfinite
        yield (
            file, position, key_of(mark.id), key_of(mark.span_id), shown(mark.name), shown(value),
            shown(mark.kind), _int64(mark.ts_ns), device_of(mark), isinstance(mark.value, str),
        )  # fmt: skip


def _samples(file: int, rows: IndexedBatch) -> Iterator[tuple[Any, ...]]:
    for position, mark in enumerate(rows.marks):
        if kind_of(mark.name) is not None:
            memory = memory_mark(mark.name, mark.value, mark.attributes)
            if memory is not None:
                kind, device, *sizes, detail = memory
                yield (file, position, kind, shown(device), *sizes, shown(detail))


def _snapshots(file: int, rows: IndexedBatch) -> Iterator[tuple[Any, ...]]:
    for position, each in enumerate(rows.snapshots):
        blob = None if each.blob_uri is None else each.blob_uri.encode("utf-8", "surrogatepass")
        yield (
            file, position, key_of(each.id), key_of(each.span_id), shown(each.tensor_name), blob,
        )  # fmt: skip


def _listed(file: int, rows: IndexedBatch) -> Iterator[tuple[Any, ...]]:
    for span in rows.spans:
        for mark_id in span.mark_ids:
            yield file, key_of(span.id), key_of(mark_id)


def _int64(value: int | None) -> int | None:
    return value if value is not None and -(2**63) <= value < 2**63 else None
