"""Convert between batches and rows of the tables, without loss (see `translator.own.platform`)."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .... import exactjson
from ....errors import InputError
from ....ids import is_id
from ...delivery.batch_target import SealedBatch
from ...delivery.errors import RefusedError
from ...records.canonical import batch_bytes
from ...records.check import check_batch
from ...records.columns import (
    PlatformRecords,
    TraceBatch,
    TraceMark,
    TraceSnapshot,
    TraceSpan,
    clean,
    column_of_name,
)
from ...translator.own.platform import from_platform, to_platform
from ...translator.typed import NotCanonicalError
from .fast_rows import fast_rows
from .keys import bounded, local_root_ids
from .ownership import OwnerContext, OwnerResolver, RowOwner

Value = Any
Row = Sequence[Value]

SPAN, MARK, SNAPSHOT = "TraceSpan", "TraceMark", "TraceSnapshot"
_KINDS: dict[str, type[Any]] = {SPAN: TraceSpan, MARK: TraceMark, SNAPSHOT: TraceSnapshot}
_FIELDS: dict[str, tuple[str, ...]] = {k: t.__struct_encode_fields__ for k, t in _KINDS.items()}
COLUMNS = {kind: ("batchKey", "ordinal", *fields) for kind, fields in _FIELDS.items()}
"""The columns of each record table, in the order of `rows_of`."""
BATCH_COLUMNS = (
    "name", "hash", "schemaVersion", "sdkVersion", "batchId", "createdNs", "storedNs",
    "workspaceId", "runId", "extra", "body",
)  # fmt: skip
_JSON = {SPAN: ("attrs",), MARK: ("attrs",), SNAPSHOT: ("shape", "stats")}
_PLACES = {kind: [_FIELDS[kind].index(name) for name in _JSON[kind]] for kind in _KINDS}
_BOOL = _FIELDS[MARK].index("valueBool")
_FRAMES = 150

_to_json = msgspec.json.Encoder().encode
_of_json = msgspec.json.Decoder().decode


@dataclass(slots=True)
class PreparedBatch:
    """A batch that is ready to be stored."""

    name: str
    hash: bytes
    header: TraceBatch
    owner: RowOwner
    """The owner of the batch."""
    records: PlatformRecords | None
    """The rows of the batch; None if the batch is stored as bytes, in `body`."""
    body: bytes | None
    root_ids: dict[str, str] = field(default_factory=dict)
    """The id of the topmost known scope above each span, or the span's own id, by span id."""
    is_one_process: bool = False
    """Whether a program wrote the batch without naming its session."""
    spans: list[Any] = field(default_factory=list)
    snapshots: list[Any] = field(default_factory=list)
    """The recorded snapshots, if their URIs must be replaced."""

    def row(self, stored_ns: int) -> Row:
        """Return the batch's row in the table of batches."""
        header = self.header
        return (
            self.name, self.hash, header.schema_version, header.sdk_version, header.batch_id,
            header.created_ns, stored_ns, self.owner.workspace_id, self.owner.run_id, header.extra,
            self.body,
        )  # fmt: skip

    def records_of(self, kind: str) -> list[Any]:
        """Return the rows of the batch's spans, marks or snapshots."""
        records = self.records
        if records is None:
            return []
        lists: dict[str, list[Any]] = {SPAN: records.spans, MARK: records.marks}
        return lists.get(kind, records.snapshots)


def prepare_batch(batch: SealedBatch, hash_: bytes, context: OwnerContext) -> PreparedBatch:
    """Convert a batch to rows. Raises RefusedError if the data is not a batch."""
    problem = check_batch(batch.data)
    if problem is not None:
        raise RefusedError(f"{batch.name!a} is not a batch: {problem.message}")
    name = column_of_name(batch.name)
    try:
        value, records = _records_of(batch.data, context)
        owners = OwnerResolver(value, context)
        session = _session_of(value)
        root_ids = local_root_ids(records.spans, session, is_one_process="otel" not in value)
    except (InputError, RecursionError):
        # The batch is nested too deeply to be converted to rows: store its bytes.
        header = TraceBatch(schema_version=1, sdk_version="", batch_id="", created_ns=0)
        return PreparedBatch(
            name, hash_, header, OwnerResolver(None, context).whole, None, batch.data
        )
    for row, owner in zip(records.spans, owners.of_spans(len(records.spans)), strict=True):
        row.workspace_id, run_id, row.pipeline_id, row.deployment_id, row.model_id = owner
        row.run_id = run_id or ""  # "" until the trace id is known
    prepared = PreparedBatch(name, hash_, records.batch, owners.whole, records, None, root_ids)
    prepared.is_one_process = "otel" not in value
    prepared.spans = value["spans"] if records.spans else []
    if context.blob_uri is not None and records.snapshots:
        prepared.snapshots = value["snapshots"]
    return prepared


def _records_of(data: bytes, context: OwnerContext) -> tuple[dict[str, Any], PlatformRecords]:
    """Return the batch-level fields that this module needs, and the rows."""
    with contextlib.suppress(NotCanonicalError):
        records, value = fast_rows(data)
        if context.blob_uri is None or not records.snapshots:
            return value, records
    value = exactjson.loads(data)
    records = _below(_FRAMES, value)
    _make_storable(records, value)
    return value, records


def _below(frames: int, batch: Any) -> PlatformRecords:
    """Convert the batch to rows, `frames` stack frames deeper than a reader will restore it.

    This guarantees that a batch that can be converted to rows can also be restored from the rows.
    """
    return _below(frames - 1, batch) if frames else to_platform(batch)


def _session_of(batch: dict[str, Any]) -> str | None:
    """Return the session of the batch's records, if the batch names it."""
    otel = batch.get("otel")
    named = otel.get("session") if isinstance(otel, dict) else None
    return named if is_id(named) else None


def _make_storable(records: PlatformRecords, batch: dict[str, Any]) -> None:
    """Replace values that the columns cannot store; `extra` then contains the complete record."""
    for number, span in enumerate(records.spans):
        original_ids = (span.id, span.parent_span_id)
        span.id, span.trace_id = bounded(span.id), bounded(span.trace_id)
        if span.parent_span_id is not None:
            span.parent_span_id = bounded(span.parent_span_id)
        if original_ids != (span.id, span.parent_span_id):
            span.extra = _whole(batch["spans"][number])
    for number, mark in enumerate(records.marks):
        is_changed = _bound(mark)
        if mark.value_float == 0 and math.copysign(1.0, mark.value_float) < 0:
            mark.value_float, is_changed = 0.0, True  # SQLite has no -0.0
        if is_changed:
            mark.extra = _whole(batch["marks"][number])
    for number, snapshot in enumerate(records.snapshots):
        if _bound(snapshot):
            snapshot.extra = _whole(batch["snapshots"][number])


def _bound(row: TraceMark | TraceSnapshot) -> bool:
    original_ids = (row.id, row.span_id)
    row.id, row.span_id = bounded(row.id), bounded(row.span_id)
    return original_ids != (row.id, row.span_id)


def _whole(record: Any) -> str:
    return exactjson.dumps_ascii({"is": record})


def replace_blob_uri(row: TraceSnapshot, record: Any, uri: str | None) -> None:
    """Replace the `blob_uri` of a snapshot's row; `extra` keeps the recorded value."""
    if uri is None or uri == row.blob_uri:
        return
    row.blob_uri = clean(uri)
    residual = exactjson.loads(row.extra) if row.extra else {}
    if "is" not in residual:
        residual.setdefault("set", {})["blob_uri"] = record["blob_uri"]
        row.extra = exactjson.dumps_ascii(residual)


def hash_of(data: bytes) -> bytes:
    """Return the hash that distinguishes batches with the same name."""
    return hashlib.sha256(data).digest()


def rows_of(kind: str, key: int, records: Iterable[Any]) -> Iterator[Row]:
    """Yield the rows of a batch's records of one kind, in the order of COLUMNS."""
    places = _PLACES[kind]
    for number, record in enumerate(records):
        row = [key, number, *msgspec.structs.astuple(record)]
        for place in places:
            if row[place + 2] is not None:
                row[place + 2] = _to_json(row[place + 2]).decode()
        yield row


def record_of(kind: str, row: Row) -> Any:
    """Return the record of a row read from the database."""
    values = list(row[2:])
    for place in _PLACES[kind]:
        if isinstance(values[place], str):
            values[place] = _of_json(values[place])
    if kind == MARK and values[_BOOL] is not None:
        values[_BOOL] = bool(values[_BOOL])
    return _KINDS[kind](**dict(zip(_KINDS[kind].__struct_fields__, values, strict=True)))


def data_of(header: TraceBatch, body: bytes | None, records: dict[str, list[Any]]) -> bytes:
    """Restore the content of a batch's file from its rows.

    Raises InputError if the rows are damaged.
    """
    if body is not None:
        return bytes(body)
    spans, marks, snapshots = (records.get(kind, []) for kind in (SPAN, MARK, SNAPSHOT))
    return batch_bytes(
        from_platform(PlatformRecords(batch=header, spans=spans, marks=marks, snapshots=snapshots))
    )
