"""Spans that a processor of a collector has added attributes to, read as the encoder wrote them.

Attributes that were added to a record without an exact copy of its `attrs` in the rest need
nothing from here: decoding takes them for the record's. With such a copy the span no longer is what
the encoder wrote. Here the copy takes the place of the attributes, the check is made on that, and
what a processor added or changed is put into the record afterwards.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .. import exactjson
from .. import semconv as sc
from . import events as ev
from . import rest as rests
from .events import Record
from .header import Header, Origin
from .spans import SpanSet, read_span
from .values import UnsayableError, add_escaped, is_reserved, split_attributes


def read_processed(span: Span, header: Header, origin: Origin) -> SpanSet:
    """The record of a span to which, or to whose events, attributes were added.

    Raises UnsayableError where the span is not one of ours apart from such attributes.
    """
    original = Span()
    original.CopyFrom(span)
    changes = _restore(original, sc.REST)
    marks, snapshots = restore_events(original)
    if not changes and not any(marks) and not any(snapshots):
        raise UnsayableError("nothing was added")
    unit = read_span(original, header, origin)
    keep(unit.record, changes, unit.dropped)
    for (record, _), added in zip(unit.marks, marks, strict=True):
        keep(record, added, unit.dropped)
    for (record, _), added in zip(unit.snapshots, snapshots, strict=True):
        keep(record, added, unit.dropped)
    return unit


def restore_events(span: Span) -> tuple[list[Record], list[Record]]:
    """Restore a span's marks and snapshots; what was added to each."""
    added: tuple[list[Record], list[Record]] = ([], [])
    for event in span.events:
        kind = ev.kind_of(event)
        if kind == ev.MARK:
            added[0].append(_restore(event, sc.REST))
        elif kind == ev.SNAPSHOT:
            added[1].append(_restore(event, sc.SNAPSHOT_REST))
    return added


def keep(record: Record, added: Record, dropped: list[str]) -> None:
    """Put attributes that were added into a record, or note them where it cannot hold them."""
    attrs = record.get("attrs")
    if isinstance(attrs, dict):
        record["attrs"] = attrs | added
    else:
        dropped.extend(added)


def without_additions(span: Span) -> Span:
    """A synthetic span without the attributes, flags and state that a processor gives to all.

    It is of no record, so there is no record to keep them in.
    """
    bare = Span()
    bare.CopyFrom(span)
    pairs = [pair for pair in span.attributes if is_reserved(pair.key)]
    del bare.attributes[:]
    bare.attributes.extend(pairs)
    bare.ClearField("trace_state")
    bare.ClearField("flags")
    return bare


def _restore(owner: Any, rest_key: str) -> Record:
    """Give a span or an event the attributes that its rest holds; those that were added."""
    ours, users = split_attributes(owner.attributes)
    rest = rests.parse(rests.joined(ours, rest_key))
    if not any("attrs" in rest.get(member, ()) for member in ("set", "missing")):
        return {}  # decoding takes the attributes that are here
    exact = rest.get("set", {}).get("attrs")
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
