"""The batches of a collector as one batch for each part of a request.

A collector puts the requests that it receives into batches by their arrival, so the same request is
in different batches of two collectors. Its parts are equal, and so are their batches: they have the
same names, contents and keys, whichever collector wrote them (docs/columns.md, "Requests").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ... import exactjson
from ...errors import InputError
from ...ids import uuid4_shaped
from ..delivery.batch_target import SealedBatch
from ..records.canonical import batch_bytes
from ..spool.paths import file_name
from ..targets.sql.ownership import OwnerContext
from ..targets.sql.received import RequestPart, parts_of
from ..translator.foreign.messages import RECEIVED, RESOURCE_SPANS
from ..translator.logs.log_marks import LOG, LOGS, placed
from ..translator.values import INT64_MAX
from .batch_rows import BatchRows, rows_of
from .layout import Partition, partition_of
from .packed import PackedRows, arrow_rows, joined_rows
from .schema import MARKS, SNAPSHOTS, SPANS

_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_SCOPE, _SCOPES = "scope", "scopes"
_NOT_RECORDED = 0
"""The time of receipt, which depends on the collector."""
_FIELDS = {
    "schema_version", "sdk_version", "batch_id", "created_ns", SPANS, MARKS, SNAPSHOTS, "otel",
}  # fmt: skip
_ERRORS = (
    KeyError, ValueError, TypeError, IndexError, AttributeError, RecursionError,
    msgspec.MsgspecError, InputError,
)  # fmt: skip


class _Ended(msgspec.Struct):
    end_ns: int


_ended = msgspec.json.Decoder(_Ended)


def rows_by_partition(batch: SealedBatch, context: OwnerContext) -> list[PackedRows]:
    """Return the rows of a batch, or those of its parts by partition.

    Raises InputError if it is not a batch.
    """
    parts = batches_of_parts(batch, context)
    if not parts:
        return [arrow_rows(rows_of(batch.name, batch.data, context))]
    found: dict[Partition, list[BatchRows]] = {}
    for part in parts:
        rows = rows_of(part.name, part.data, context)
        found.setdefault(partition_of(rows.run_id, rows.created_ns), []).append(rows)
    return [joined_rows(some) for some in found.values()]


def batches_of_parts(batch: SealedBatch, context: OwnerContext) -> list[SealedBatch]:
    """Return a batch for each part of a batch that a collector created from requests.

    Returns [] for any other batch, also for one with fields that a collector does not write.
    """
    parts = parts_of(batch, context)
    if not parts:
        return []
    try:
        document = _objects.decode(batch.data)
        if document.keys() != _FIELDS or _lists.decode(document[SNAPSHOTS]):
            return []
        if parts[0].mark is None:
            return list(_of_resources(document, parts))
        return list(_of_marks(document, parts))
    except _ERRORS:
        return []  # another program wrote it


def _of_resources(
    document: dict[str, msgspec.Raw], parts: list[RequestPart]
) -> Iterator[SealedBatch]:
    """Yield the batches of ResourceSpans, which date from the last end of their spans."""
    otel = _objects.decode(document["otel"])
    if otel.keys() != {RESOURCE_SPANS, RECEIVED} or _lists.decode(document[MARKS]):
        raise ValueError
    spans, resources = _lists.decode(document[SPANS]), _lists.decode(otel[RESOURCE_SPANS])
    for part in parts:
        some = [bytes(spans[number]) for number in part.spans]
        ends = (_ended.decode(span).end_ns for span in some)
        head = _head(document, part, max(ends, default=0))
        assert part.resource is not None  # noqa: S101 - it is not a mark
        text = b'%b,"spans":[%b],"marks":[],"snapshots":[],"otel":{"%b":[%b],"%b":%d}}' % (
            msgspec.json.encode(head)[:-1],
            b",".join(some),
            RESOURCE_SPANS.encode(),
            bytes(resources[part.resource]),
            RECEIVED.encode(),
            _NOT_RECORDED,
        )
        yield SealedBatch(_name(head), text)


def _of_marks(document: dict[str, msgspec.Raw], parts: list[RequestPart]) -> Iterator[SealedBatch]:
    """Yield the batches of marks, which date from the marks."""
    otel = exactjson.loads(bytes(document["otel"]))
    marks = exactjson.loads(bytes(document[MARKS]))
    logs, _ = otel.pop(LOGS), otel.pop(RECEIVED)
    scopes = logs.pop(_SCOPES)
    traces: dict[str, str] = {}
    for mark in marks:
        traces.setdefault(mark["span_id"], mark["otel"][LOG]["trace_id"])
    if otel != placed(logs, traces) or _lists.decode(document[SPANS]):
        raise ValueError
    for part in parts:
        assert part.mark is not None  # noqa: S101 - it is not a ResourceSpans
        mark = marks[part.mark]
        log = mark["otel"][LOG]
        scope = scopes[log.pop(_SCOPE, 0)]
        head = _head(document, part, mark["ts_ns"])
        place = placed(logs, {mark["span_id"]: log["trace_id"]})
        members = place | {LOGS: logs | {_SCOPES: [scope]}, RECEIVED: _NOT_RECORDED}
        records = {SPANS: [], MARKS: [mark], SNAPSHOTS: []}
        yield SealedBatch(_name(head), batch_bytes(head | records | {"otel": members}))


def _head(document: dict[str, msgspec.Raw], part: RequestPart, time_ns: int) -> dict[str, Any]:
    """Return the fields of a part's batch; the release of the collector is not one of them."""
    version = msgspec.json.decode(document["sdk_version"], type=str)
    return {
        "schema_version": msgspec.json.decode(document["schema_version"], type=int),
        "sdk_version": version.partition("+")[0],
        "batch_id": uuid4_shaped(part.digest),
        "created_ns": min(max(time_ns, 0), INT64_MAX),
    }


def _name(head: dict[str, Any]) -> str:
    return file_name(head["created_ns"], head["batch_id"])
