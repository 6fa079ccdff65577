"""The storage interface: a writer and a reader of batches, independent of the database.

`Storage` implements the interface for SQLite and PostgreSQL. A column store such as ClickHouse
would be another implementation, with its own tables. Column stores have neither the transactions
nor the unique constraints that `Database` requires. So that implementation would recognise repeated
batches by name and hash on reading (a ReplacingMergeTree does), and place late spans in queries
rather than by updates. To add an implementation, add a row to `STORES` and, for its URL, to
`url.SCHEMES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, cast

from ....errors import InputError
from ...delivery.batch_target import SealedBatch
from ...records.columns import TraceBatch, column_of_name, name_of_column
from .database import Database, quoted
from .ownership import OwnerContext
from .rows import COLUMNS, data_of, record_of
from .url import parse_url

STORES = {
    "sqlite": "cirron_otel.core.targets.sql.storage:open_sql",
    "postgresql": "cirron_otel.core.targets.sql.storage:open_sql",
}
"""The function that opens a storage, as `module:function`, by URL scheme.

The function is called with a Location and `create`.
"""


class WriteResult(NamedTuple):
    """The result of `BatchStore.write`."""

    new: int
    known: int
    """The number of batches that the storage already contained, with the same name and content."""
    rows: int
    """The number of spans, marks and snapshots that were added."""


class Expired(NamedTuple):
    """The number of batches that `BatchStore.retain` would remove."""

    old: int
    batches: int
    """The total number of stored batches."""


class Retained(NamedTuple):
    """The numbers of batches and rows that `BatchStore.retain` removed."""

    batches: int
    rows: int
    """The rows of batches that were removed one by one. Those of whole partitions are not counted.
    """


@dataclass(frozen=True, slots=True)
class Select:
    """Criteria that select batches; None matches all. Batches are never returned in part."""

    workspace_id: str | None = None
    run_id: str | None = None
    """Batches that belong to this run, or that contain one of its spans, marks or snapshots.
    """
    since_ns: int | None = None
    """Batches created at this time (Unix ns) or later."""
    until_ns: int | None = None
    """Batches created before this time (Unix ns)."""
    name: str | None = None
    """Batches with this file name."""


class BatchWriter(Protocol):
    """The writing half of a storage."""

    def write(self, batches: Sequence[SealedBatch], context: OwnerContext = ...) -> WriteResult:
        """Store all batches, or none if an error is raised.

        A batch that is already stored, with the same name and content, is left unchanged. If only
        the name is the same, the batch is stored in addition to the first one. Parts of a
        collector's batch that another batch already contains are omitted (see `received`). Raises
        RefusedError if the data is not a batch, and TargetError if a name is not a valid file name.
        """


class BatchReader(Protocol):
    """The reading half of a storage."""

    def batches(self, select: Select = ...) -> Iterator[tuple[str, bytes]]:
        """Yield (file name, bytes) of the stored batches, in the order of their names.

        Each batch equals, as a JSON value, the batch that was written. All batches are read from
        one snapshot of the storage. Raises InputError if a batch is damaged.
        """


class BatchStore(BatchWriter, BatchReader, Protocol):
    """A storage of batches. Only one thread may use it, but any thread may call `interrupt`.

    Methods raise UnreachableError if the storage is not available now (MisconfiguredError if the
    configuration seems wrong), RefusedError if the storage will never accept the data, and
    StoppedError after `interrupt`. After UnreachableError, close the storage and open it again.
    """

    @property
    def shown(self) -> str:
        """The address as shown in messages: without user, password and parameters."""

    def expired(self, older_than_ns: int) -> Expired:
        """Count the batches that `retain` would remove, and all batches."""

    def retain(self, older_than_ns: int) -> Retained:
        """Remove the batches that were created before a time (Unix ns), with all their rows.

        If a creation time is missing or impossible, the time at which the batch was stored is used.
        A time before the year 2000 (as results from a wrong unit) or later than tomorrow is
        impossible. A storage with partitions may keep a batch until its complete day (UTC) is older
        than the time.
        """

    def run_of_span(self, workspace_id: str, span_id: str) -> str | None:
        """Return the id of a stored span's run; None if the span is not stored."""

    def set_blob_uris(self, name: str, data: bytes | None, uris: Mapping[int, str]) -> bool:
        """Set the URIs of a batch's snapshots, by index; return False if the batch is not stored.

        `batches` still yields the batch unchanged. If several batches have this name, the one with
        the content `data` is changed.
        """

    def limit_statements(self, seconds: float) -> None:
        """Let later statements raise UnreachableError if they take longer than `seconds`.

        It is for a server whose connection is dead without any sign of it.
        """

    def interrupt(self) -> None:
        """Cancel the call in progress in another thread, and refuse later calls."""

    def close(self) -> None:
        """Close the connection."""

    def abandon(self) -> None:
        """In a forked child: drop the connection without sending anything to the server."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_store(url: str, *, create: bool = True) -> BatchStore:
    """Open the storage at a URL; `create` creates it, or migrates it to the current version.

    `create=False` is for reading only: it changes nothing. Raises the errors of BatchStore's
    methods, UsageError for an invalid URL, MissingExtraError if a driver is not installed, and,
    with `create=False`, InputError if there is no storage.
    """
    location = parse_url(url)
    module, _, name = STORES[location.scheme].partition(":")
    opener = getattr(importlib.import_module(module), name)
    return cast("BatchStore", opener(location, create=create))


_PAGE_BATCHES = 64
_HEADER = ("batchKey", "name", "schemaVersion", "sdkVersion", "batchId", "createdNs", "extra")

_FIELDS = TraceBatch.__struct_fields__


def _conditions(select: Select) -> tuple[str, list[Any]]:
    """Return SQL conditions on the table of batches (alias b), and their parameters."""
    texts: list[str] = []
    values: list[Any] = []
    for column, owner_id in (("workspaceId", select.workspace_id), ("runId", select.run_id)):
        if owner_id is not None:
            texts.append(_belongs(column))
            values += [owner_id] * texts[-1].count("?")
    for sign, time in ((">=", select.since_ns), ("<", select.until_ns)):
        if time is not None:
            texts.append(f'b."createdNs" {sign} ?')
            values.append(time)
    if select.name is not None:
        texts.append('b."name" = ?')
        values.append(column_of_name(select.name))
    return "".join(f" AND ({text})" for text in texts), values


def _belongs(column: str) -> str:
    def of_attached(table: str) -> str:
        return (
            f'EXISTS (SELECT 1 FROM "{table}" m JOIN "TraceSpan" s'  # noqa: S608
            ' ON s."id" = m."spanId" OR s."traceId" = m."spanId"'
            f' WHERE m."batchKey" = b."batchKey" AND s."{column}" = ?)'
        )

    of_spans = (
        'EXISTS (SELECT 1 FROM "TraceSpan" s WHERE s."batchKey" = b."batchKey"'  # noqa: S608
        f' AND s."{column}" = ?)'
    )
    whole = f'b."{column}" = ?'
    return " OR ".join((whole, of_spans, of_attached("TraceMark"), of_attached("TraceSnapshot")))


def stored_batches(database: Database, select: Select) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, bytes) of each batch; batches with the same name are adjacent.

    All batches are read from one snapshot of the database, a page at a time. Raises InputError if a
    batch is damaged.
    """
    condition, values = _conditions(select)
    last: tuple[str, int] = ("", 0)
    with database.snapshot():
        while True:
            page = database.rows(
                f'SELECT {quoted(_HEADER)} FROM "TraceBatch" b'  # noqa: S608
                f' WHERE (b."name", b."batchKey") > (?, ?){condition}'
                f' ORDER BY b."name", b."batchKey" LIMIT {_PAGE_BATCHES}',
                *last,
                *values,
            )
            if not page:
                return
            yield from _page_of(database, page)
            last = (page[-1][1], page[-1][0])


def _page_of(database: Database, page: list[tuple[Any, ...]]) -> Iterator[tuple[str, bytes]]:
    keys = [row[0] for row in page]
    records_by_kind: dict[str, dict[int, list[Any]]] = {
        kind: {key: [] for key in keys} for kind in COLUMNS
    }
    condition = database.in_clause('"batchKey"')
    for kind, columns in COLUMNS.items():
        rows = database.rows(
            f'SELECT {quoted(columns)} FROM "{kind}" WHERE {condition}'  # noqa: S608
            ' ORDER BY "batchKey", "ordinal"',
            database.array_param(keys),
        )
        for row in rows:
            records_by_kind[kind][row[0]].append(record_of(kind, row))
    bodies = dict(
        database.rows(
            'SELECT "batchKey", "body" FROM "TraceBatch"'  # noqa: S608
            f' WHERE {condition} AND "body" IS NOT NULL',
            database.array_param(keys),
        )
    )
    for key, name, *header in page:
        records = {kind: records_by_kind[kind].pop(key) for kind in COLUMNS}
        try:
            whole = TraceBatch(**dict(zip(_FIELDS, header, strict=True)))
            yield name_of_column(name), data_of(whole, bodies.get(key), records)
        except InputError as error:
            raise InputError(f"the stored batch {name!a} is damaged: {error}") from None
