"""The records of the Cirron wire schema, version 1: Span, Mark, Snapshot, Batch.

Source: Cirron's schemas page, "Local spool format (v1)"; docs/spool-format.md is our text of it.
The field order is the order on disk. Times are wall-clock nanoseconds since the Unix epoch, sizes
are bytes, ids are 32 lower-case hex digits. `otel` is this project's optional addition (readers
tolerate unknown keys): what OpenTelemetry knows of a record and Cirron has no field for.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

SCHEMA_VERSION = 1

MarkValue = float | int | str | bool | None


class Span(Struct, forbid_unknown_fields=True):
    """One closed scope."""

    id: str
    name: str
    """What ran: `epoch`, `step`, `forward`, …; the session's root is `cirron.session`."""
    parent_id: str | None
    """The enclosing scope; None for the session and for a scope that has none around it."""
    index: int | None
    """Its number among its kind (epoch number, step number)."""
    start_ns: int
    end_ns: int
    cpu_ns: int | None
    """CPU time of the thread, nanoseconds."""
    gpu_ns: int | None
    """GPU time, nanoseconds; None where CUDA is not available."""
    memory_peak_bytes: int | None
    """Peak resident set during the scope, bytes."""
    thread_id: int | None
    pid: int | None
    rank: int | None
    """Rank in distributed training; 0 in a run of one process."""
    attrs: dict[str, Any]
    mark_ids: list[str]
    """The ids of every mark attached to this scope, in the order they were made."""
    otel: dict[str, Any] | UnsetType = UNSET


class Mark(Struct, forbid_unknown_fields=True):
    """A named value attached to a scope."""

    id: str
    span_id: str
    """The scope it belongs to, or `root` for one made outside every session."""
    name: str
    value_type: str
    """`float`, `int`, `string` or `bool`."""
    value: MarkValue
    attrs: dict[str, Any]
    ts_ns: int
    kind: str
    """`point` (one of a series) or `summary` (the final value of its scope)."""
    value_nonfinite: str | UnsetType = UNSET
    """`nan`, `inf` or `-inf`, where `value` is None because JSON has no such number."""
    otel: dict[str, Any] | UnsetType = UNSET


class Snapshot(Struct, forbid_unknown_fields=True):
    """Statistics of one tensor at one moment, with a reference to its stored values if any."""

    id: str
    span_id: str
    tensor_name: str
    """The parameter's name; the gradient of `w` is `w.grad`. The key inside the blob."""
    shape: list[int]
    dtype: str
    mode: str
    """`stats`, `sampled` or `full`."""
    stats: dict[str, Any] | None
    """mean, std, min, max, norm and histogram {bins: 17 edges, counts: 16}."""
    blob_uri: str | None
    """The safetensors file that holds the tensor; None where only statistics were kept."""
    ts_ns: int
    attrs: dict[str, Any]
    otel: dict[str, Any] | UnsetType = UNSET


class Batch(Struct, forbid_unknown_fields=True):
    """What one flush sealed: the unit of the spool, of the wire, and of deduplication."""

    schema_version: int
    sdk_version: str
    batch_id: str
    created_ns: int
    """When the batch was sealed."""
    spans: list[Span]
    marks: list[Mark]
    snapshots: list[Snapshot]
    otel: dict[str, Any] | UnsetType = UNSET
