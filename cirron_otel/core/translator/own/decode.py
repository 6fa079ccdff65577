"""OTLP → Cirron: rebuild Cirron batches from parts that arrive in any order.

A Cirron name alone proves nothing: every span, scope and resource that looks like the encoder's
output is encoded again, and becomes a Cirron record only if the result is identical. Everything
else is left for `foreign`.

`read_processed` decodes spans to which a processor in transit added attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from .... import exactjson
from .... import semconv as sc
from ....ids import digest
from .. import events as ev
from .. import residual as residuals
from ..events import Record
from ..header import LISTS, Header, Origin, read_resource, read_scope
from ..values import UnencodableError, add_escaped, is_reserved, split_attributes
from .assembly import Assembly, Decoded, Item, Keyed, content_name, keyed, record_key
from .handed_out import HandedOut, Recall
from .spans import SpanSet, add_overhead, read_span
from .synthetic import is_synthetic, read_synthetic


def read_processed(span: Span, header: Header, origin: Origin) -> SpanSet:
    """Decode a span if a processor has added attributes to it or to its events.

    This function is needed only if the residual contains a copy of the record's `attrs`: added
    attributes then make the span differ from the encoder's output. The copy replaces the
    attributes, the span is checked, and the attributes that the processor added or changed are put
    into the record.

    Raises UnencodableError if the span without the added attributes is not the encoder's output.
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
    """Restore the attributes of a span's events, in place.

    Returns the attributes that a processor added, for each mark and for each snapshot.
    """
    added: tuple[list[Record], list[Record]] = ([], [])
    for event in span.events:
        kind = ev.kind_of(event)
        if kind == ev.MARK:
            added[0].append(_restore(event, sc.REST))
        elif kind == ev.SNAPSHOT:
            added[1].append(_restore(event, sc.SNAPSHOT_REST))
    return added


def keep(record: Record, added: Record, dropped: list[str]) -> None:
    """Add attributes to a record, or their keys to `dropped` if its `attrs` is not an object."""
    attrs = record.get("attrs")
    if isinstance(attrs, dict):
        record["attrs"] = attrs | added
    else:
        dropped.extend(added)


def without_additions(span: Span) -> Span:
    """Copy a synthetic span without the attributes, flags and trace state that a processor adds.

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
    """Restore the attributes of a span or event from its residual, in place.

    Returns the attributes that a processor added or changed.
    """
    ours, users = split_attributes(owner.attributes)
    residual = residuals.parse(residuals.joined(ours, rest_key))
    if not any("attrs" in residual.get(member, ()) for member in ("set", "missing")):
        return {}  # without a copy of `attrs`, decoding itself adds new attributes to the record
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


__all__ = ["Decoded", "Known", "Regrouper", "assembly_key", "nothing_known"]

Known = Callable[[bytes], frozenset[bytes]]
"""Takes the key of a batch; returns the keys of its records that are already stored elsewhere."""


_Read = tuple[Keyed, Span]
"""An item and the span that it was read from."""
_MOST_NAMESAKES = 16
"""The maximum number of open batches that have the same header but different content."""


def nothing_known(_: bytes) -> frozenset[bytes]:
    """Return no keys: no records are stored elsewhere."""
    return frozenset()


class Regrouper:
    """Reassembles batches from ResourceSpans that a collector split, merged or reordered.

    It keeps the parts of batches that are still incomplete. A repeated record counts as a duplicate
    only if its content is identical: batches that share a key but differ in content are kept apart.
    """

    def __init__(self, known: Known = nothing_known, recall: Recall | None = None) -> None:
        """Create an empty regrouper. Records that are `known` count as duplicates.

        `recall` returns a batch that was handed out earlier; without `recall`, these batches stay
        in memory.
        """
        self._known = known
        self.open: dict[bytes, list[Assembly]] = {}
        self.done = HandedOut(recall)
        """Batches that were handed out; repeated parts are compared with them."""
        self.duplicates = 0

    def feed(self, messages: Iterable[ResourceSpans]) -> tuple[list[Decoded], list[ResourceSpans]]:
        """Add messages; return the batches that are now complete, and the foreign content.

        With a `recall`, the caller must have stored the batches that were returned earlier.
        """
        self.done.is_written()
        touched: dict[bytes, None] = {}
        foreign = []
        for message in messages:
            left = self._take(message, touched)
            if left is not None:
                foreign.append(left)
        complete = []
        for key in touched:
            assemblies = self.open[key]
            for assembly in [each for each in assemblies if each.is_complete()]:
                assemblies.remove(assembly)
                complete.append(self._hand_out(key, assembly))
            if not assemblies:
                del self.open[key]
        return [decoded for decoded in complete if decoded is not None], foreign

    def finish(self) -> list[Decoded]:
        """Return the batches that are still incomplete."""
        self.done.is_written()
        left = [
            self._hand_out(key, assembly)
            for key, assemblies in self.open.items()
            for assembly in assemblies
        ]
        self.open.clear()
        return [decoded for decoded in left if decoded is not None]

    def _hand_out(self, key: bytes, assembly: Assembly) -> Decoded | None:
        """Assemble a batch; return None if all of it was handed out earlier."""
        self.duplicates += assembly.duplicates
        is_again = not assembly.is_complete() and any(
            map(assembly.is_within, self.done.batches(key))
        )
        if not is_again:
            decoded = assembly.assemble()
            is_again = self.done.has_content(key, decoded.batch)
        if is_again:
            self.duplicates += sum(assembly.found[: len(LISTS)])
            return None
        decoded.key = key
        if not decoded.complete:
            decoded.records = frozenset(record_key(*each) for each in assembly.seen)
            return decoded
        if key in self.done:
            decoded.namesake = decoded.name
            decoded.name = content_name(decoded.batch)
        self.done.add(key, decoded.name, decoded.batch)
        return decoded

    def _take(self, message: ResourceSpans, touched: dict[bytes, None]) -> ResourceSpans | None:
        """Collect a message's Cirron records; return the rest of it, or None if nothing is left."""
        left: list[ScopeSpans] = []
        took_any = False
        for scope_spans in message.scope_spans:
            header = None if scope_spans.schema_url else read_scope(scope_spans.scope)
            origin = read_resource(message.resource, header) if header is not None else None
            if header is None or origin is None or message.schema_url:
                left.append(scope_spans)
                continue
            key = assembly_key(header, origin)
            foreign = self._take_spans(scope_spans, header, origin, key, touched)
            if foreign is None:
                took_any = True
            else:
                left.append(foreign)
                took_any = took_any or len(foreign.spans) < len(scope_spans.spans)
        if not took_any:
            return message
        if not left and not _has_more(message):
            return None
        foreign_message = ResourceSpans()
        foreign_message.CopyFrom(message)
        del foreign_message.scope_spans[:]
        foreign_message.scope_spans.extend(left)
        return foreign_message

    def _take_spans(
        self,
        scope_spans: ScopeSpans,
        header: Header,
        origin: Origin,
        key: bytes,
        touched: dict[bytes, None],
    ) -> ScopeSpans | None:
        items: list[_Read] = []
        foreign: list[Span] = []
        for span in scope_spans.spans:
            try:
                items.append((_read_item(span, header, origin), span))
            except UnencodableError:
                foreign.append(span)
        if not items:
            return scope_spans
        touched[key] = None
        foreign += self._place(
            items, key, lambda: Assembly(header, origin.attributes, known=self._known(key))
        )
        if not foreign and not _has_more(scope_spans):
            return None
        foreign_scope = ScopeSpans()
        foreign_scope.CopyFrom(scope_spans)
        del foreign_scope.spans[:]
        foreign_scope.spans.extend(foreign)
        return foreign_scope

    def _place(self, items: list[_Read], key: bytes, new: Callable[[], Assembly]) -> list[Span]:
        """Add items to the first batch with this key that they do not contradict.

        Spans of one scope stay together if possible. If the maximum number of batches is open, this
        returns the spans of the items that contradict all of them.
        """
        assemblies = self.open.setdefault(key, [])
        for assembly in assemblies:
            if not any(assembly.contradicts(item) for item, _ in items):
                break
        else:
            if len(assemblies) >= _MOST_NAMESAKES:
                if len(items) == 1:
                    return [items[0][1]]
                return [span for item in items for span in self._place([item], key, new)]
            assembly = new()
            assemblies.append(assembly)
        left: list[Span] = []
        for item, span in items:
            if assembly.contradicts(item):  # another item of the same scope has the same key
                left += self._place([(item, span)], key, new)
            else:
                assembly.add(item)
        return left


def _read_item(span: Span, header: Header, origin: Origin) -> Keyed:
    """Decode a span. Raises UnencodableError unless it is exactly as this package writes it."""
    if is_synthetic(span):
        return keyed(_read_synthetic(span, header))
    try:
        unit = read_span(span, header, origin)
    except UnencodableError:
        unit = read_processed(span, header, origin)
    add_overhead(unit)
    return keyed(unit)


def _read_synthetic(span: Span, header: Header) -> Item:
    """Decode a synthetic span without a processor's additions.

    Returns a carrier, or the unchanged span of a segment link or marker.
    """
    try:
        return read_synthetic(span, header) or span
    except UnencodableError:
        original = without_additions(span)
        marks, snapshots = restore_events(original)
        carrier = read_synthetic(original, header)
    if carrier is None:
        return original
    for placed, added in ((carrier.marks, marks), (carrier.snapshots, snapshots)):
        for (record, _), attributes in zip(placed, added, strict=True):
            keep(record, attributes, carrier.dropped)
    return carrier


def _has_more(message: Any) -> bool:
    """Whether a message has unknown fields."""
    known = sum(1 for _ in message.ListFields())
    stripped = type(message)()
    stripped.CopyFrom(message)
    stripped.DiscardUnknownFields()
    return bool(known) and stripped.ByteSize() != message.ByteSize()


def assembly_key(header: Header, origin: Origin) -> bytes:
    """The key that the parts of one batch share."""
    counts = header.counts
    texts = (header.sdk_version, header.batch_id, header.file)
    # In the digest, null equals the string "None", and a NUL separates the strings.
    is_ambiguous = (
        header.batch_id is None
        or header.created_ns is None
        or any(isinstance(text, str) and (not text or "\0" in text) for text in texts)
    )
    exact = [exactjson.dumps_ascii([*texts, header.created_ns])] if is_ambiguous else []
    return digest(
        header.key,
        str(header.sdk_version),
        header.residual,
        f"{counts.spans} {counts.marks} {counts.snapshots}",
        exactjson.dumps_sorted(origin.attributes),
        *exact,
    )
