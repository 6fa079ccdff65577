"""Decode spans to which a processor of a collector has added attributes.

If the residual of a record contains no copy of its `attrs`, this module is not needed: decoding
adds new attributes to the record. If it contains a copy, the span differs from the encoder's
output. Then the copy replaces the attributes, the span is checked, and the attributes that the
processor added or changed are put into the record.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from .... import semconv as sc
from .. import events as ev
from .. import residual as residuals
from ..events import Record
from ..header import Header, Origin
from ..values import UnencodableError, add_escaped, is_reserved, split_attributes
from .spans import SpanSet, read_span


def read_processed(span: Span, header: Header, origin: Origin) -> SpanSet:
    """Decode a span that has additional attributes, or whose events have.

    Raises UnencodableError if the span is not one of ours without these attributes.
    """
    original = Span()
    original.CopyFrom(span)
    changes = _restore(original, sc.REST)
    marks, snapshots = restore_events(original)
    if not changes and not any(marks) and not any(snapshots):
        raise UnencodableError("nothing was added")
    unit = read_span(original, header, origin)
    keep(unit.record, changes, unit.dropped)
    for (record, _), added in zip(unit.marks, marks, strict=True):
        keep(record, added, unit.dropped)
    for (record, _), added in zip(unit.snapshots, snapshots, strict=True):
        keep(record, added, unit.dropped)
    return unit


def restore_events(span: Span) -> tuple[list[Record], list[Record]]:
    """Restore the events of a span; return the attributes that were added to each of them."""
    added: tuple[list[Record], list[Record]] = ([], [])
    for event in span.events:
        kind = ev.kind_of(event)
        if kind == ev.MARK:
            added[0].append(_restore(event, sc.REST))
        elif kind == ev.SNAPSHOT:
            added[1].append(_restore(event, sc.SNAPSHOT_REST))
    return added


def keep(record: Record, added: Record, dropped: list[str]) -> None:
    """Add attributes to a record, or to `dropped` if its `attrs` is not an object."""
    attrs = record.get("attrs")
    if isinstance(attrs, dict):
        record["attrs"] = attrs | added
    else:
        dropped.extend(added)


def without_additions(span: Span) -> Span:
    """Copy a synthetic span without the attributes, flags and state that a processor adds.

    No record belongs to the span, so no record could keep them.
    """
    original = Span()
    original.CopyFrom(span)
    pairs = [pair for pair in span.attributes if is_reserved(pair.key)]
    del original.attributes[:]
    original.attributes.extend(pairs)
    original.ClearField("trace_state")
    original.ClearField("flags")
    return original


def _restore(owner: Any, rest_key: str) -> Record:
    """Restore the attributes in the residual of a span or event; return those that were added."""
    ours, users = split_attributes(owner.attributes)
    residual = residuals.parse(residuals.joined(ours, rest_key))
    if not any("attrs" in residual.get(member, ()) for member in ("set", "missing")):
        return {}  # decoding adds new attributes to the record
    exact = residual.get("set", {}).get("attrs")
    original = type(owner)()
    add_escaped(original.attributes, exact if isinstance(exact, dict) else {})
    expected = split_attributes(original.attributes)[1]
    added = {
        key: value
        for key, value in users.items()
        if key not in expected or not exactjson.equal(value, expected[key])
    }
    pairs = [pair for pair in owner.attributes if is_reserved(pair.key)]
    original.attributes.extend(pairs)
    del owner.attributes[:]
    owner.attributes.extend(original.attributes)
    return added
