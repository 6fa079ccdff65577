"""The rows of a batch in all tables, and the batch of such rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ... import exactjson
from ...errors import InputError
from ...ids import is_id
from ...semconv import SERVICE_NAME, SESSION, SESSION_ID, WORLD_SIZE
from ..records.canonical import batch_bytes
from ..records.check import check_value
from ..records.columns import column_of_name, name_of_column
from ..targets.sql.ownership import (
    DEFAULT_CONTEXT,
    OwnerContext,
    RowOwner,
    owner_of,
    resource_attributes,
    resources_of,
)
from ..translator.typed import NotCanonicalError
from .attributes import entries_of
from .fast_rows import FastRows, fast_rows
from .records import (
    Row,
    batch_record,
    batch_row,
    int64,
    mark_ids_of,
    mark_record,
    mark_row,
    snapshot_record,
    snapshot_row,
    span_record,
    span_row,
    text,
)
from .schema import (
    BATCHES,
    KEY_DIGITS,
    MARKS,
    RECORD_TABLES,
    SESSIONS,
    SNAPSHOTS,
    SPANS,
    TABLES,
    ColumnValues,
)

RUN_NAME, HOST_NAME = "cirron.run.name", "host.name"
_MAX_TIME = 1 << 63


class BatchRows(NamedTuple):
    """The rows of one batch, without its `ordinal` in a group."""

    key: str
    created_ns: int | None
    """None if the batch has no valid time."""
    run_id: str | None
    """The run of all its rows; None if one has none, or another."""
    tables: dict[str, ColumnValues]


def key_of(name: str, data: bytes) -> str:
    """Return the key of a batch file."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass") + b"\0" + data)
    return digest.hexdigest()[:KEY_DIGITS]


def rows_of(name: str, data: bytes, context: OwnerContext = DEFAULT_CONTEXT) -> BatchRows:
    """Return the rows of a batch file. Raises InputError if it is not a batch."""
    try:
        rows = fast_rows(data)
    except NotCanonicalError:
        rows = _any_rows(data)
    key = key_of(name, data)
    owners = _Owners(rows.otel, rows.tables[SPANS], context)
    owners.place(rows.tables)
    tables = rows.tables
    for table in RECORD_TABLES:
        count = len(tables[table]["id"])
        tables[table]["batch_key"] = [key] * count
        tables[table]["ordinal"] = list(range(count))
    tables[SESSIONS] = owners.sessions(tables[SPANS], key)
    tables[BATCHES] = _header(name, data, key, rows, owners)
    created = rows.header["created_ns"]
    return BatchRows(
        key,
        created if created is not None and 0 <= created < _MAX_TIME else None,
        owners.only_run(tables),
        tables,
    )


def _any_rows(data: bytes) -> FastRows:
    batch = exactjson.loads(data)
    problem = check_value(batch)
    if problem is not None:
        raise InputError(problem.message)
    lists: dict[str, list[Any]] = {table: batch.get(table, []) for table in RECORD_TABLES}
    marks = [mark_row(record) for record in lists[MARKS]]
    ids = mark_ids_of([row["span_id"] for row in marks], [row["id"] for row in marks])
    rows = {
        SPANS: [span_row(record, ids) for record in lists[SPANS]],
        MARKS: marks,
        SNAPSHOTS: [snapshot_row(record) for record in lists[SNAPSHOTS]],
    }
    tables = {table: _columns(table, some) for table, some in rows.items()}
    return FastRows(batch_row(batch, lists), batch.get("otel"), tables)


def _columns(table: str, rows: list[Row]) -> ColumnValues:
    names = (column.name for column in TABLES[table])
    return {name: [row.get(name) for row in rows] for name in names}


def _header(name: str, data: bytes, key: str, rows: FastRows, owners: _Owners) -> ColumnValues:
    counts = {table: len(rows.tables[table]["id"]) for table in RECORD_TABLES}
    row = (
        rows.header
        | counts
        | {
            "batch_key": key,
            "ordinal": 0,
            "name": column_of_name(name),
            "hash": hashlib.sha256(data).hexdigest(),
            "size_bytes": len(data),
            "workspace_id": owners.whole.workspace_id,
            "run_id": owners.whole.run_id,
            "session_id": owners.session,
        }
    )
    return _columns(BATCHES, [row])


class _Owners:
    """The runs and sessions of a batch's records, from its `otel` and the columns of its spans."""

    def __init__(self, otel: Any, spans: ColumnValues, context: OwnerContext) -> None:
        self._resource = resource_attributes(otel)
        self.whole = owner_of(self._resource, context)
        named = otel.get("session") if isinstance(otel, dict) else None
        self.session: str | None = named if is_id(named) else None
        count = len(spans["id"])
        runs = [(n, owner_of(each, context), each) for n, each in resources_of(otel)]
        self._is_plain = not runs
        self._owners: list[RowOwner] = [self.whole] * count
        self._resources: list[Mapping[str, Any]] = [self._resource] * count
        self._sessions: list[str | None] = [self.session] * count
        start = 0
        for number, owner, attributes in runs:
            end = min(start + number, count)
            size = end - start
            self._owners[start:end] = [owner] * size
            self._resources[start:end] = [attributes] * size
            if self.session is None:
                self._sessions[start:end] = [text(attributes.get(SESSION_ID))] * size
            start = end
        self.roots = [
            number
            for number, name in enumerate(spans["name"])
            if name == SESSION and spans["parent_id"][number] is None and spans["id"][number]
        ]
        for number in self.roots:
            self._sessions[number] = spans["id"][number]

    def place(self, tables: dict[str, ColumnValues]) -> None:
        """Set the columns `run_id` and `session_id` of all records."""
        spans = tables[SPANS]
        spans["run_id"] = [owner.run_id for owner in self._owners]
        spans["session_id"] = self._sessions
        others = (self.whole.run_id, self.session)
        if self._is_plain and not self.roots:
            for table in (MARKS, SNAPSHOTS):
                count = len(tables[table]["id"])
                tables[table]["run_id"] = [others[0]] * count
                tables[table]["session_id"] = [others[1]] * count
            return
        by_span: dict[Any, tuple[str | None, str | None]] = {}
        for place in zip(spans["id"], spans["run_id"], self._sessions, strict=True):
            by_span.setdefault(place[0], place[1:])
        by_span.pop(None, None)
        for table in (MARKS, SNAPSHOTS):
            places = [by_span.get(span_id, others) for span_id in tables[table]["span_id"]]
            tables[table]["run_id"] = [place[0] for place in places]
            tables[table]["session_id"] = [place[1] for place in places]

    def only_run(self, tables: dict[str, ColumnValues]) -> str | None:
        """Return the run of all rows; None if there is none, or another."""
        runs = {run for table in RECORD_TABLES for run in tables[table]["run_id"]}
        if not runs:
            return self.whole.run_id
        return runs.pop() if len(runs) == 1 else None

    def sessions(self, spans: ColumnValues, key: str) -> ColumnValues:
        """Return the rows of the batch's sessions."""
        members: dict[str | None, Sequence[int]] = {}
        if self._is_plain and not self.roots:
            members[self.session] = range(len(self._sessions))
        else:
            found: dict[str | None, list[int]] = {}
            for number, session in enumerate(self._sessions):
                found.setdefault(session, []).append(number)
            members |= found
        if self.session is not None:
            members.setdefault(self.session, ())
        roots = {spans["id"][number]: number for number in reversed(self.roots)}
        rows = [
            self._session(session, spans, numbers, roots.get(session or "")) | {"batch_key": key}
            for session, numbers in members.items()
            if numbers or session is not None
        ]
        return _columns(SESSIONS, rows)

    def _session(
        self, session: str | None, spans: ColumnValues, numbers: Sequence[int], root: int | None
    ) -> Row:
        def column(name: str) -> Iterable[Any]:
            return (value for n in numbers if (value := spans[name][n]) is not None)

        first = numbers[0] if numbers else None
        owner = self.whole if first is None else self._owners[first]
        resource = self._resource if first is None else self._resources[first]
        of_root: Callable[[str], Any] = lambda name: None if root is None else spans[name][root]  # noqa: E731
        return {
            "session_id": session,
            "workspace_id": owner.workspace_id,
            "run_id": owner.run_id,
            "run_name": text(resource.get(RUN_NAME)),
            "service_name": text(resource.get(SERVICE_NAME)),
            "host_name": text(resource.get(HOST_NAME)),
            "world_size": int64(resource.get(WORLD_SIZE)),
            "rank": _only(set(column("rank"))),
            "pid": _only(set(column("pid"))),
            "spans": len(numbers),
            "start_ns": min(column("start_ns"), default=None),
            "end_ns": max(column("end_ns"), default=None),
            "root_start_ns": of_root("start_ns"),
            "root_end_ns": of_root("end_ns"),
            "status_code": of_root("status_code"),
            "status_message": of_root("status_message"),
            "attributes": entries_of(resource),
        }


def _only(values: set[Any]) -> Any:
    return values.pop() if len(values) == 1 else None


def batch_of(header: Row, tables: Mapping[str, list[Row]]) -> tuple[str, bytes]:
    """Return the file name and the content of a batch from its rows, in the order of ordinals.

    Raises InputError if the rows are damaged or incomplete.
    """
    name = name_of_column(header["name"])
    for table in RECORD_TABLES:
        if len(tables[table]) != header[table]:
            raise InputError(
                f"{len(tables[table])} rows in {table} where the batch has {header[table]}"
            )
    marks = tables[MARKS]
    ids = mark_ids_of([row["span_id"] for row in marks], [row["id"] for row in marks])
    lists = {
        SPANS: [span_record(row, ids) for row in tables[SPANS]],
        MARKS: [mark_record(row) for row in marks],
        SNAPSHOTS: [snapshot_record(row) for row in tables[SNAPSHOTS]],
    }
    return name, batch_bytes(batch_record(header, lists))
