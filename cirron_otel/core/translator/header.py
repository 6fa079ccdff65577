"""The header of a batch, stored in an instrumentation scope, and the resource of its spans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ... import semconv as sc
from ...ids import digest, is_id
from ...semconv import DEFAULT_SERVICE_NAME
from ..placement.batch_placement import stated_trace
from . import residual as residuals
from .canonical_form import same_resource, same_scope
from .events import Record
from .foreign.otel_view import unhex
from .values import (
    UnencodableError,
    add,
    encodable,
    is_int,
    read_typed,
    read_value,
    split_attributes,
)

LISTS = ("spans", "marks", "snapshots")
_RESOURCE_KEYS = frozenset({sc.PROCESS_PID, sc.RANK, sc.SESSION_ID})
_COUNTS = (sc.BATCH_SPANS, sc.BATCH_MARKS, sc.BATCH_SNAPSHOTS, sc.BATCH_SYNTHETIC)


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of records and synthetic spans in an encoded batch."""

    spans: int
    marks: int
    snapshots: int
    synthetic: int


@dataclass(frozen=True, slots=True)
class Header:
    """The batch-level fields in the name, version and attributes of an OTLP scope."""

    sdk_version: object
    batch_id: object
    created_ns: object
    schema_version: object
    counts: Counts
    file: str | None = None
    """The name of the batch's file, if the batch's id and time do not determine it."""
    session: str | None = None
    """The session in the batch's `otel.session`."""
    session_trace_id: bytes = b""
    """The trace id of that session, if the session joined another trace."""
    trace_id: bytes = b""
    """The default trace id of the batch's records."""
    own_trace_ids: bool = False
    """Whether records have their own trace ids."""
    added_service_name: str | None = None
    """The `service.name` that the encoder adds; None if the batch's resource already has one."""
    residual: str = ""
    """The header's residual, if the scope has room for it."""

    @property
    def key(self) -> str:
        """A key of the batch, from which other ids are derived."""
        return digest(str(self.batch_id), str(self.created_ns), self.file or "").hex()

    def fields(self) -> Record:
        """Return the batch-level fields in the header, without the lists of records."""
        return {
            "schema_version": self.schema_version,
            "sdk_version": self.sdk_version,
            "batch_id": self.batch_id,
            "created_ns": self.created_ns,
        }


def said(batch: Record) -> Record:
    """Return the batch-level values that go into the header.

    A value that the header cannot store is replaced by None, or by "" for `sdk_version`.
    """
    sdk_version, batch_id = batch.get("sdk_version"), batch.get("batch_id")
    return {
        "schema_version": _int(batch.get("schema_version")),
        "sdk_version": sdk_version
        if isinstance(sdk_version, str) and encodable(sdk_version)
        else "",
        "batch_id": batch_id if isinstance(batch_id, str) and encodable(batch_id) else None,
        "created_ns": _int(batch.get("created_ns")),
    }


def _int(value: object) -> object:
    return value if is_int(value) else None


def write_scope(scope: InstrumentationScope, header: Header) -> None:
    """Write a header as the scope's name, version and attributes."""
    scope.name = sc.SCOPE_NAME
    scope.version = str(header.sdk_version)
    attributes = scope.attributes
    if header.batch_id is not None:
        add(attributes, sc.BATCH_ID, header.batch_id)
    if header.created_ns is not None:
        add(attributes, sc.BATCH_CREATED, header.created_ns)
    if header.schema_version is not None:
        add(attributes, sc.SCHEMA, header.schema_version)
    counts = header.counts
    for key, count in zip(
        _COUNTS, (counts.spans, counts.marks, counts.snapshots, counts.synthetic), strict=True
    ):
        add(attributes, key, count)
    if header.file is not None:
        _write_file(attributes, header.file)
    if header.session is not None:
        add(attributes, sc.BATCH_SESSION, header.session)
    if header.session_trace_id:
        add(attributes, sc.BATCH_SESSION_TRACE_ID, header.session_trace_id.hex())
    if header.trace_id:
        add(attributes, sc.BATCH_TRACE_ID, header.trace_id.hex())
    name = header.added_service_name
    for key, flag in (
        (sc.TRACE_IDS, header.own_trace_ids),
        (sc.SERVICE_NAME_ADDED, name is not None),
    ):
        if flag:
            add(attributes, key, True)
    if name not in (None, DEFAULT_SERVICE_NAME):
        add(attributes, sc.ADDED_SERVICE_NAME, name)
    residuals.write(attributes, sc.REST, header.residual)


def read_scope(scope: InstrumentationScope) -> Header | None:
    """Decode the header in a scope; return None if this package did not write the scope."""
    if scope.name != sc.SCOPE_NAME:
        return None
    try:
        ours, users = split_attributes(scope.attributes)
        residual = residuals.joined(ours, sc.REST)
        residuals.parse(residual, of_batch=True)
    except UnencodableError:
        return None
    counts = [read_typed(ours, key, "int_value") for key in _COUNTS]
    if users or any(count is None or count < 0 for count in counts):
        return None
    session = read_typed(ours, sc.BATCH_SESSION, "string_value")
    header = Header(
        sdk_version=scope.version,
        batch_id=read_typed(ours, sc.BATCH_ID, "string_value"),
        created_ns=read_typed(ours, sc.BATCH_CREATED, "int_value"),
        schema_version=read_typed(ours, sc.SCHEMA, "int_value"),
        counts=Counts(*counts),
        file=_read_file(ours),
        session=session if is_id(session) else None,
        session_trace_id=_trace(ours, sc.BATCH_SESSION_TRACE_ID),
        trace_id=unhex(read_typed(ours, sc.BATCH_TRACE_ID, "string_value")) or b"",
        own_trace_ids=bool(read_typed(ours, sc.TRACE_IDS, "bool_value")),
        added_service_name=_added_service_name(ours),
        residual=residual,
    )
    again = InstrumentationScope()
    write_scope(again, header)
    return header if same_scope(again, scope) else None


def _added_service_name(ours: dict[str, AnyValue]) -> str | None:
    if not read_typed(ours, sc.SERVICE_NAME_ADDED, "bool_value"):
        return None
    name = read_typed(ours, sc.ADDED_SERVICE_NAME, "string_value")
    return DEFAULT_SERVICE_NAME if name is None else str(name)


def file_of(name: str | None) -> str | None:
    """Return a batch's file name if a file can have that name, else None.

    File names are bytes; Python represents bytes that are not UTF-8 as lone surrogates (PEP 383).
    """
    try:
        encoded = (name or "").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    return name if encoded.decode("utf-8", "surrogateescape") == name else None


def _write_file(attributes: Any, name: str) -> None:
    if encodable(name):
        add(attributes, sc.BATCH_FILE, name)
    else:
        value = name.encode("utf-8", "surrogateescape")
        attributes.add(key=sc.BATCH_FILE).value.bytes_value = value


def _read_file(ours: dict[str, AnyValue]) -> str | None:
    value = read_typed(ours, sc.BATCH_FILE, "bytes_value")
    if value is not None:
        return bytes(value).decode("utf-8", "surrogateescape")
    return cast("str | None", read_typed(ours, sc.BATCH_FILE, "string_value"))


def _trace(ours: dict[str, AnyValue], key: str) -> bytes:
    return stated_trace(read_typed(ours, key, "string_value"))


@dataclass(frozen=True, slots=True)
class Origin:
    """The values in a resource's attributes, which apply to all spans of the resource."""

    session_id: str | None
    pid: int | None
    rank: int | None
    service_name: str | None
    """The name that the encoder added because the batch has none; None if it added no name."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes outside this mapping: the batch's `otel.resource.attributes`."""


def write_resource(resource: Resource, origin: Origin) -> None:
    """Write an origin as resource attributes."""
    attributes = resource.attributes
    if origin.service_name is not None:
        add(attributes, sc.SERVICE_NAME, origin.service_name)
    if origin.pid is not None:
        add(attributes, sc.PROCESS_PID, origin.pid)
    if origin.rank is not None:
        add(attributes, sc.RANK, origin.rank)
    if origin.session_id is not None and encodable(origin.session_id):
        add(attributes, sc.SESSION_ID, origin.session_id)
    write_others(attributes, origin.attributes)


def write_others(target: Any, others: Mapping[str, Any]) -> None:
    """Append resource attributes that do not belong to this mapping.

    Only keys that this mapping uses in resources are escaped, so `cirron.run.id`, for example,
    keeps its name. Keys that protobuf cannot encode are omitted.
    """
    for key, value in others.items():
        if encodable(key):
            is_ours = key in _RESOURCE_KEYS or key.startswith(sc.ESCAPE)
            add(target, sc.ESCAPE + key if is_ours else key, value)


def resource_attributes(otel: object) -> Record:
    """Return the resource attributes in a batch's `otel` whose keys OTLP can express."""
    resource = otel.get("resource") if isinstance(otel, dict) else None
    attributes = resource.get("attributes") if isinstance(resource, dict) else None
    if not isinstance(attributes, dict):
        return {}
    return {key: value for key, value in attributes.items() if encodable(key)}


def split_resource(pairs: Iterable[KeyValue]) -> tuple[dict[str, AnyValue], dict[str, Any]]:
    """Split resource attributes into those of this mapping and all others.

    This is the inverse of `write_others`. Raises UnencodableError if a key repeats, or if the value
    of another attribute has no exact JSON form.
    """
    ours: dict[str, AnyValue] = {}
    others: dict[str, Any] = {}
    for pair in pairs:
        is_ours = pair.key in _RESOURCE_KEYS
        key = pair.key if is_ours else pair.key.removeprefix(sc.ESCAPE)
        if key in (ours if is_ours else others):
            raise UnencodableError("repeated key")
        if is_ours:
            ours[key] = pair.value
        else:
            others[key] = read_value(pair.value)
    return ours, others


def read_resource(resource: Resource, header: Header) -> Origin | None:
    """Decode the origin in a resource; return None if this package did not write the resource."""
    try:
        ours, users = split_resource(resource.attributes)
    except UnencodableError:
        return None
    # A processor may have removed or replaced the name that the encoder added; keep a new name.
    service_name = header.added_service_name
    if service_name is not None and users.get(sc.SERVICE_NAME) == service_name:
        del users[sc.SERVICE_NAME]
    else:
        service_name = None
    origin = Origin(
        session_id=read_typed(ours, sc.SESSION_ID, "string_value"),
        pid=_of(ours, sc.PROCESS_PID),
        rank=_of(ours, sc.RANK),
        service_name=service_name,
        attributes=users,
    )
    again = Resource()
    write_resource(again, origin)
    return origin if same_resource(again, resource) else None


def _of(ours: dict[str, AnyValue], key: str) -> int | None:
    value = read_typed(ours, key, "int_value")
    return value if isinstance(value, int) else None
