"""The fast path of validation: a batch conforms if it decodes strictly and encodes to equal bytes.

Strict decoding checks keys, types and ids; equal bytes prove that no key was repeated and no
number changed. `validate` examines every batch that does not conform here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from ...exactjson import MAX_DEPTH, depth_of
from .schema import COUNT, ID, TIME, Batch, Mark, Shape, Snapshot, Span, shape_of, shapes_of

Id = Annotated[str, ID.meta]
Time = Annotated[int, TIME.meta]


class ConformingHistogram(Struct, forbid_unknown_fields=True):
    """17 edges, and the counts of the 16 intervals between them."""

    bins: Annotated[list[float], Meta(min_length=17, max_length=17)]
    counts: Annotated[list[Annotated[int, COUNT.meta]], Meta(min_length=16, max_length=16)]


class ConformingStats(Struct, forbid_unknown_fields=True):
    """Statistics of a tensor whose values are all finite."""

    mean: float
    std: float
    min: float
    max: float
    norm: float
    histogram: ConformingHistogram


def _strict(shape: Shape) -> Any:
    """Return the strict type of a field."""
    types: list[Any] = []
    for type_ in shape.types:
        is_list = get_origin(type_) is list
        types.append(list[_strict(shape_of(get_args(type_)[0]))] if is_list else type_)  # type: ignore[misc]
    for constraint in shape.constraints:
        if constraint.meta is not None:
            types = [Annotated[each, constraint.meta] for each in types]
        types = types if constraint.meta or not constraint.words else []
        types += [Literal[constraint.words]] if constraint.words else []
    types += [None] if shape.is_nullable else []
    types += [UnsetType] if shape.is_optional else []
    return Union[tuple(types)]  # noqa: UP007 - of a tuple


def _strict_record(record: type[Struct], **types: Any) -> type[Any]:
    """Return the strict variant of a record type; `types` overrides fields, None drops a field."""
    strict = {name: _strict(shape) for name, shape in shapes_of(record).items()} | types
    fields = [
        (name, type_, UNSET) if UnsetType in get_args(type_) else (name, type_)
        for name, type_ in strict.items()
        if type_ is not None
    ]
    return defstruct(f"Conforming{record.__name__}", fields, forbid_unknown_fields=True)


_SPAN = _strict_record(Span)
# The value of a conforming mark is never null. `conforms` checks that it matches its value_type.
_MARK = _strict_record(Mark, value=float | int | str | bool, value_nonfinite=None)
_SNAPSHOT = _strict_record(Snapshot, stats=ConformingStats)
_BATCH = _strict_record(
    Batch, schema_version=Literal[1], spans=list[_SPAN], marks=list[_MARK],  # type: ignore[valid-type]
    snapshots=list[_SNAPSHOT],  # type: ignore[valid-type]
)  # fmt: skip
_TYPES = {"float": float, "int": int, "string": str, "bool": bool}
# An integer of 20 digits or more (or similar text in a string), which may not fit into 64 bits.
_LONG_INTEGER = re.compile(rb"[:,\[]-?\d{20}")
_MAX_OPEN = MAX_DEPTH - 3
"""The deepest nesting below a record: the batch, a list and the record are three levels."""
_decoder = msgspec.json.Decoder(_BATCH)
_encoder = msgspec.json.Encoder()


def conforms(data: bytes) -> Batch | None:
    """Return the batch in `data` if validation has nothing to report about it, else None."""
    try:
        batch: Batch = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if any(span.end_ns < span.start_ns for span in batch.spans):
        return None
    if any(type(mark.value) is not _TYPES[mark.value_type] for mark in batch.marks):
        return None
    if any(each.mode == "stats" and each.blob_uri is not None for each in batch.snapshots):
        return None
    if _LONG_INTEGER.search(data) or depth_of(_open_parts(batch), _MAX_OPEN) > _MAX_OPEN:
        return None
    try:
        return batch if _encoder.encode(batch) == data else None
    except RecursionError:
        return None


def _open_parts(batch: Batch) -> list[Any]:
    """Return the parts of a batch that may be nested to any depth."""
    records: list[Span | Mark | Snapshot] = []
    records += batch.spans
    records += batch.marks
    records += batch.snapshots
    others = [record.otel for record in records if record.otel is not UNSET]
    return [batch.otel, *others, *(record.attrs for record in records if record.attrs)]
