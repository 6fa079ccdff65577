"""The records of the Cirron wire schema, version 1: span, mark, snapshot and batch.

Source: Cirron's schemas page, "Local spool format (v1)", which docs/spool-format.md restates. The
order of the fields is their order on disk. Times are wall-clock nanoseconds since the Unix epoch,
sizes are bytes, ids are 32 lower-case hex digits. `otel` is this project's optional addition, which
other readers skip as an unknown key: the OpenTelemetry data that Cirron has no field for.

The types admit every batch that can be processed. A requirement of the format beyond the type is a
`Constraint` in the annotation. Strict decoding (`conform`), validation (`validate`), the rows of
the index and of databases, and the protobuf encoding are derived from types and constraints.

A record's class adds its optional fields to the required fields of its base. Variants of a record
for special purposes (typed records, the SDK's rows) extend the base or the class itself, and
redeclare only the fields whose types differ. A variant that extends the base rejects optional
fields that it does not declare, so that fast paths never drop a field that was added to the schema
later.

To add an optional field to a span, append it to `Span`, add its OTLP attribute to
`semconv.OPTIONAL`, a column to `columns.TraceSpan` with a migration, a field to trace.proto, and
its documentation.
"""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import fields

SCHEMA_VERSION = 1


class Constraint(NamedTuple):
    """A requirement of the format on a value beyond its type."""

    name: str
    meta: Meta | None = None
    """The same requirement for strict decoding by msgspec."""
    words: tuple[str, ...] = ()
    """The permitted values."""


ID = Constraint("id", Meta(pattern=r"\A[0-9a-f]{32}\Z"))
SCOPE_ID = Constraint("scope", ID.meta, ("root",))
TIME = Constraint("time", Meta(ge=0, le=2**63 - 1))
COUNT = Constraint("count", Meta(ge=0))
STATISTICS = Constraint("statistics")
FROM_USER = Constraint("from-user")
"""The user supplied the value: an unexpected type is reported as a note rather than an error."""
NONFINITE = Constraint("words", words=("nan", "inf", "-inf"))

Id = Annotated[str, ID]
Time = Annotated[int, TIME]
Count = Annotated[int, COUNT]
Otel = dict[str, Any] | UnsetType
MarkValue = float | int | str | bool | None


class SpanFields(Struct, forbid_unknown_fields=True):
    """The required fields of a span."""

    id: Id
    name: Annotated[str, FROM_USER]
    """The kind of scope: `epoch`, `step`, `forward`, …; a session's root is `cirron.session`."""
    parent_id: Id | None
    """The enclosing scope; None for a session, and for a scope that no other scope encloses."""
    index: Annotated[int | None, FROM_USER]
    """The epoch's or the step's number."""
    start_ns: Time
    end_ns: Time
    cpu_ns: Count | None
    """CPU time of the thread, nanoseconds."""
    gpu_ns: Count | None
    """GPU time, nanoseconds; None if CUDA is not available."""
    memory_peak_bytes: Count | None
    """Peak resident set during the scope, bytes."""
    thread_id: int | None
    pid: int | None
    rank: int | None
    """The rank in distributed training; 0 in a run of one process."""
    attrs: dict[str, Any]
    mark_ids: list[Id]
    """The ids of all marks attached to this scope, in the order of their creation."""


class Span(SpanFields):
    """One closed scope."""

    otel: Otel = UNSET


class MarkFields(Struct, forbid_unknown_fields=True):
    """The required fields of a mark."""

    id: Id
    span_id: Annotated[str, SCOPE_ID]
    """The scope that the mark belongs to; `root` for a mark created outside every session."""
    name: Annotated[str, FROM_USER]
    value_type: Annotated[str, Constraint("words", words=("float", "int", "string", "bool"))]
    value: MarkValue
    attrs: dict[str, Any]
    ts_ns: Time
    kind: Annotated[str, Constraint("words", words=("point", "summary"))]
    """`point` (one value of a series) or `summary` (the final value of its scope)."""


class Mark(MarkFields):
    """A named value attached to a scope."""

    value_nonfinite: Annotated[str, NONFINITE] | UnsetType = UNSET
    """Set if `value` is None because JSON has no such number."""
    otel: Otel = UNSET


class SnapshotFields(Struct, forbid_unknown_fields=True):
    """The required fields of a snapshot."""

    id: Id
    span_id: Id
    tensor_name: Annotated[str, FROM_USER]
    """The parameter's name; the gradient of `w` is `w.grad`. It is the key inside the blob."""
    shape: list[Count]
    dtype: str
    mode: Annotated[str, Constraint("words", words=("stats", "sampled", "full"))]
    stats: Annotated[dict[str, Any] | None, STATISTICS]
    """mean, std, min, max, norm and histogram {bins: 17 edges, counts: 16}."""
    blob_uri: str | None
    """The safetensors file that contains the tensor; None if only statistics were recorded."""
    ts_ns: Time
    attrs: dict[str, Any]


class Snapshot(SnapshotFields):
    """Statistics of one tensor at one time, with a reference to its stored values if any."""

    otel: Otel = UNSET


class BatchFields(Struct, forbid_unknown_fields=True):
    """The required fields of a batch."""

    schema_version: int
    sdk_version: str
    batch_id: Id
    created_ns: Time
    """The time at which the batch was sealed."""
    spans: list[Span]
    marks: list[Mark]
    snapshots: list[Snapshot]


class Batch(BatchFields):
    """The result of one flush: the unit of the spool, of the wire, and of deduplication."""

    otel: Otel = UNSET


LISTS: dict[str, type[Struct]] = {"spans": Span, "marks": Mark, "snapshots": Snapshot}
"""The lists of a batch, and the record type of each."""


class Shape(NamedTuple):
    """A field's type, broken down into its parts."""

    types: tuple[Any, ...]
    """The alternatives, without None and UNSET."""
    constraints: tuple[Constraint, ...]
    is_nullable: bool
    is_optional: bool
    """Whether a record may lack the field."""


def shapes_of(record: type[Struct]) -> dict[str, Shape]:
    """Return the shape of each field of a record type, in the order on disk."""
    hints = get_type_hints(record, include_extras=True)
    return {field.name: shape_of(hints[field.name]) for field in fields(record)}


def shape_of(type_: Any) -> Shape:
    """Break down the annotation of a field, or of a list's elements."""
    if get_origin(type_) is Annotated:
        base, *constraints = get_args(type_)
        inner = shape_of(base)
        return inner._replace(constraints=(*inner.constraints, *constraints))
    if get_origin(type_) not in (Union, UnionType):
        return Shape((type_,), (), is_nullable=False, is_optional=False)
    members = get_args(type_)
    shapes = [shape_of(each) for each in members if each not in (type(None), UnsetType)]
    return Shape(
        tuple(each for shape in shapes for each in shape.types),
        tuple(each for shape in shapes for each in shape.constraints),
        is_nullable=type(None) in members,
        is_optional=UnsetType in members,
    )
