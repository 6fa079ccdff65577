"""Convert between OTLP log records and marks of a Cirron batch (docs/otlp-mapping.md, "Logs").

A log record that has an event name and belongs to a span is a mark in Cirron: a named value
attached to a scope. The mark's fields contain a readable view of the record, and its `otel.log`
contains the other content. If the view does not restore the record exactly, `otel.log` also
contains the encoded record (`raw`).
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, LogsData, ResourceLogs, ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from .... import semconv as sc
from ...._version import SDK_VERSION
from ....errors import InputError
from ....ids import derive_id, digest, is_id, uuid4_shaped
from ...records.schema import SCHEMA_VERSION
from ..events import VALUE_TYPES, Record
from ..foreign.messages import RECEIVED, resource_record, scope_record, write_resource, write_scope
from ..foreign.otel_view import unhex, value_view, view_attributes, write_plain
from ..typed import NotCanonicalError
from ..values import INT64_MAX, is_int

LOG = "log"
"""The key in a mark's `otel` for the log record's content that has no field in the mark."""
LOGS = "logs"
"""The key in a batch's `otel` for the resource and scopes of the log records."""

_EVENT_NAME = "event.name"
_VALUE = "value"
_KINDS = ("point", "summary")
_MOST_VALUE_BYTES = 256
"""The maximum size in bytes of a mark's string value (docs/spool-format.md, "Marks")."""


def is_mark(record: LogRecord) -> bool:
    """Return whether a log record is a mark: it has an event name and belongs to a span."""
    return (
        len(record.trace_id) == 16
        and len(record.span_id) == 8
        and any(record.trace_id)
        and any(record.span_id)
        and bool(_name_of(record))
    )


def keep_marks(message: LogsData) -> tuple[int, int]:
    """Remove everything from `message` except marks and their scopes and resources.

    Returns the number of log records that were kept, and the number that were removed.
    """
    count = others = 0
    for resource in message.resource_logs:
        for scope in resource.scope_logs:
            marks = [record for record in scope.log_records if is_mark(record)]
            count, others = count + len(marks), others + len(scope.log_records) - len(marks)
            if len(marks) < len(scope.log_records):
                copies = [LogRecord.FromString(mark.SerializeToString()) for mark in marks]
                del scope.log_records[:]
                scope.log_records.extend(copies)
        filled = [scope for scope in resource.scope_logs if scope.log_records]
        if len(filled) < len(resource.scope_logs):
            _replace(resource.scope_logs, filled)
    filled_resources = [each for each in message.resource_logs if each.scope_logs]
    if len(filled_resources) < len(message.resource_logs):
        _replace(message.resource_logs, filled_resources)
    return count, others


def _replace(target: Any, messages: list[Any]) -> None:
    copies = [type(each).FromString(each.SerializeToString()) for each in messages]
    del target[:]
    target.extend(copies)


class LogMarks:
    """Batches under construction, one per resource of the marks."""

    def __init__(self) -> None:
        self._batches: dict[bytes, _Batch] = {}

    def add(self, data: bytes) -> int:
        """Add the marks of a serialised LogsData; return their number.

        Raises InputError if the data is not valid; nothing is added in that case.
        """
        try:
            message = LogsData.FromString(data)
        except DecodeError:
            raise InputError("not a protobuf LogsData message") from None
        count = 0
        for resource in message.resource_logs:
            empty_resource = ResourceLogs()
            empty_resource.CopyFrom(resource)
            del empty_resource.scope_logs[:]
            key = empty_resource.SerializeToString()
            batch = self._batches.get(key)
            for scope in resource.scope_logs:
                records = [record for record in scope.log_records if is_mark(record)]
                if records and batch is None:
                    batch = self._batches[key] = _Batch(key)
                if records and batch is not None:
                    batch.add(scope, records)
                count += len(records)
        return count

    def batches(self, seed: str, created_ns: int) -> Iterator[Record]:
        """Yield the batches; `seed` and each batch's number determine its id."""
        for number, batch in enumerate(self._batches.values()):
            yield batch.record(uuid4_shaped(digest("logs", seed, number)), created_ns)


class _Batch:
    """The marks of one resource."""

    def __init__(self, resource: bytes) -> None:
        """`resource` is a serialised ResourceLogs without its scopes, parsed as ResourceSpans."""
        self._resource = resource_record(ResourceSpans.FromString(resource))
        self._scopes: dict[bytes, int] = {}
        self._marks: list[Record] = []
        self._traces: dict[str, str] = {}
        self._copies: Counter[bytes] = Counter()

    def add(self, scope: ScopeLogs, records: list[LogRecord]) -> None:
        empty_scope = ScopeLogs(schema_url=scope.schema_url)
        empty_scope.CopyFrom(scope)
        del empty_scope.log_records[:]
        number = self._scopes.setdefault(empty_scope.SerializeToString(), len(self._scopes))
        for record in records:
            data = record.SerializeToString()
            mark_hash = digest("log", record.trace_id, record.span_id, data, self._copies[data])
            self._copies[data] += 1
            mark = mark_record(record, mark_hash[:16].hex(), number)
            self._traces.setdefault(mark["span_id"], record.trace_id.hex())
            self._marks.append(mark)

    def record(self, batch_id: str, created_ns: int) -> Record:
        scopes = [scope_record(ScopeSpans.FromString(data)) for data in self._scopes]
        return {
            "schema_version": SCHEMA_VERSION,
            "sdk_version": SDK_VERSION,
            "batch_id": batch_id,
            "created_ns": created_ns,
            "spans": [],
            "marks": self._marks,
            "snapshots": [],
            "otel": {
                **placed(self._resource, self._traces),
                LOGS: {**self._resource, "scopes": scopes},
                RECEIVED: created_ns,
            },
        }


def placed(resource_logs: Record, traces: dict[str, str]) -> Record:
    """Return the members of a batch's `otel` that determine where its marks belong.

    They are the session, the traces of the marks' spans, and the resource. `resource_logs` is the
    record of the marks' ResourceLogs; `traces` has the trace of each span.
    """
    attributes = resource_logs.get("resource", {}).get("attributes", {})
    trace = next(iter(traces.values()))
    named = attributes.get(sc.SESSION_ID)
    members: Record = {"session": named if is_id(named) else trace}
    if members["session"] != trace:
        members["trace_id"] = trace
    others = {span_id: other for span_id, other in traces.items() if other != trace}
    if others:
        members["traces"] = others
    plain = {key: value for key, value in attributes.items() if key != sc.SESSION_ID}
    return members | ({"resource": {"attributes": plain}} if plain else {})


# --- one record ---------------------------------------------------------------------------------


def mark_record(record: LogRecord, mark_id: str, scope: int = 0) -> Record:
    """Convert a log record to a mark; `scope` is the index of its scope in the batch."""
    name = _name_of(record)
    time_ns = record.time_unix_nano or record.observed_time_unix_nano
    attributes = {pair.key: pair.value for pair in record.attributes}
    told_id = attributes.get(sc.MARK_ID, AnyValue()).string_value
    kind = attributes.get(sc.MARK_KIND, AnyValue()).string_value
    log: Record = {"trace_id": record.trace_id.hex()}
    mark: Record = {
        "id": told_id if is_id(told_id) else mark_id,
        "span_id": derive_id(record.span_id, record.trace_id),
        "name": name,
        **_value(record, attributes),
        "attrs": view_attributes(record.attributes),
        "ts_ns": min(time_ns, INT64_MAX),
        "kind": kind if kind in _KINDS else _KINDS[0],
        "otel": {LOG: log},
    }
    if scope:
        log["scope"] = scope
    _read_residual(record, mark, log)
    try:
        is_exact = log_record(mark).SerializeToString() == record.SerializeToString()
    except NotCanonicalError:
        is_exact = False
    if not is_exact:
        log["raw"] = base64.b64encode(record.SerializeToString()).decode("ascii")
    return mark


def _name_of(record: LogRecord) -> str:
    """Return the event name: the field of OTLP, or the attribute that older versions use."""
    if record.event_name:
        return record.event_name
    names = [pair.value.string_value for pair in record.attributes if pair.key == _EVENT_NAME]
    return names[-1] if names else ""


def _value(record: LogRecord, attributes: dict[str, AnyValue]) -> Record:
    """Return the value of a mark and its type.

    The value is the first of these that has a supported type: the attribute for a mark's value, the
    body, the attribute `value`. Otherwise the value is True, which means that the event happened.
    """
    candidates = (attributes.get(sc.MARK_VALUE), record.body, attributes.get(_VALUE))
    for candidate in candidates:
        kind = candidate.WhichOneof("value") if candidate is not None else None
        if candidate is None or kind not in VALUE_TYPES:
            continue
        value = getattr(candidate, kind)
        if kind == "string_value":
            value = value.encode()[:_MOST_VALUE_BYTES].decode("utf-8", "ignore")
        if kind == "double_value" and not math.isfinite(value):
            nonfinite = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
            return {"value_type": "float", "value": None, "value_nonfinite": nonfinite}
        return {"value_type": VALUE_TYPES[kind], "value": value}
    return {"value_type": "bool", "value": True}


def _read_residual(record: LogRecord, mark: Record, log: Record) -> None:
    if record.time_unix_nano != mark["ts_ns"]:
        log["time_ns"] = record.time_unix_nano
    if record.event_name != mark["name"]:
        log["event_name"] = record.event_name
    if record.HasField("body"):
        log["body"] = value_view(record.body)
    for key, field in _FIELDS.items():
        if value := getattr(record, field):
            log[key] = int(value) if isinstance(value, int) else value


_FIELDS = {
    "observed_ns": "observed_time_unix_nano",
    "severity_number": "severity_number",
    "severity_text": "severity_text",
    "flags": "flags",
    "dropped_attributes_count": "dropped_attributes_count",
}


def log_record(mark: Record) -> LogRecord:
    """Return the log record from which a mark was created.

    Raises NotCanonicalError if the mark was not created from a log record.
    """
    otel = mark.get("otel")
    log = otel.get(LOG) if isinstance(otel, dict) else None
    if not isinstance(log, dict):
        raise NotCanonicalError
    try:
        if "raw" in log:
            return LogRecord.FromString(base64.b64decode(log["raw"], validate=True))
        return _written(mark, log)
    except (binascii.Error, DecodeError, ValueError, TypeError, KeyError):
        raise NotCanonicalError from None


def _written(mark: Record, log: Record) -> LogRecord:
    record = LogRecord(
        trace_id=unhex(log["trace_id"]) or b"",
        span_id=unhex(mark["span_id"][:16]) or b"",
        time_unix_nano=log["time_ns"] if "time_ns" in log else mark["ts_ns"],
        event_name=log["event_name"] if "event_name" in log else mark["name"],
        **{field: log[key] for key, field in _FIELDS.items() if key in log},
    )
    if "body" in log:
        holder = LogRecord()
        write_plain(holder.attributes, {"body": log["body"]})
        record.body.CopyFrom(holder.attributes[0].value if holder.attributes else KeyValue().value)
    write_plain(record.attributes, mark["attrs"])
    return record


def logs_of(batch: Record) -> ResourceLogs:
    """Return the log records from which a batch was created, as they arrived.

    Raises NotCanonicalError if the batch was not created from log records.
    """
    otel = batch.get("otel")
    logs_record = otel.get(LOGS) if isinstance(otel, dict) else None
    if not isinstance(logs_record, dict) or not isinstance(logs_record.get("scopes"), list):
        raise NotCanonicalError
    resource_logs = ResourceLogs.FromString(write_resource(logs_record).SerializeToString())
    scopes = [ScopeLogs.FromString(write_scope(each).SerializeToString())
              for each in logs_record["scopes"]]  # fmt: skip
    resource_logs.scope_logs.extend(scopes)
    for mark in batch["marks"]:
        number = mark.get("otel", {}).get(LOG, {}).get("scope", 0)
        if not is_int(number, 0, len(scopes) - 1):
            raise NotCanonicalError
        resource_logs.scope_logs[number].log_records.append(log_record(mark))
    return resource_logs
