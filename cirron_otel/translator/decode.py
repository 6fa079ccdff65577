"""OTLP → Cirron: what was born in Cirron, put together from parts in any order.

Names prove nothing: every span, scope and resource that looks like ours is encoded again, and only
what comes out the same is taken for a record of Cirron's. The others are left for `foreign`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from .. import exactjson
from ..ids import digest
from . import rest as rests
from .encode import file_name
from .events import Record
from .header import LISTS, Counts, Header, Origin, read_resource, read_scope
from .order import TIME, arranged
from .own import plan_of
from .parts import part_of
from .spans import Placed, SpanSet, overhead_mark, read_span
from .synthetic import Carrier, is_synthetic, read_synthetic, told_seams
from .top import as_decoded, decoded_top
from .values import UnsayableError


@dataclass(slots=True)
class Decoded:
    """A batch that came out of OTLP."""

    batch: Record
    name: str
    """Its file's name in a spool."""
    found: Counts
    expected: Counts
    duplicates: int = 0
    """Records that came more than once and were counted once."""
    key: bytes = b""
    """What all parts of a batch that was born in Cirron have in common; empty for any other."""
    records: frozenset[bytes] = frozenset()
    """Of such a part, the keys of its records (`record_key`)."""

    @property
    def complete(self) -> bool:
        """Whether every record that the header counts is here."""
        return self.found == self.expected


@dataclass(slots=True)
class Assembly:
    """The parts of one batch that have come so far."""

    header: Header
    resource_attributes: Record
    units: list[SpanSet] = field(default_factory=list)
    carriers: list[Carrier] = field(default_factory=list)
    known: frozenset[bytes] = frozenset()
    """The keys of records that came before, and are kept elsewhere."""
    seen: set[tuple[int, str | None, int | None]] = field(default_factory=set)
    found: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    duplicates: int = 0

    def counts(self) -> Counts:
        """How much of the batch is here."""
        return Counts(*self.found)

    def is_complete(self) -> bool:
        """Whether every record and synthetic span that the header counts has come."""
        return self.counts() == self.header.counts

    def _is_new(self, which: int, record_id: object, seq: int | None) -> bool:
        text = record_id if isinstance(record_id, str) else None
        key = (which, text, seq)
        if key in self.seen or (self.known and record_key(*key) in self.known):
            self.duplicates += which < len(LISTS)
            return False
        self.seen.add(key)
        self.found[which] += 1
        return True

    def add_unit(self, unit: SpanSet) -> None:
        """Take a span and what rides on it."""
        if self._is_new(0, unit.record.get("id"), unit.seq):
            if unit.overhead_ns is not None:
                record = unit.record
                mark = overhead_mark(record["id"], record["end_ns"], unit.overhead_ns)
                unit.marks.append((mark, None))
            self.units.append(unit)
            unit.marks = self._new(1, unit.marks)
            unit.snapshots = self._new(2, unit.snapshots)

    def add_carrier(self, carrier: Carrier) -> None:
        """Take a carrier and what rides on it."""
        if self._is_new(3, "carrier", carrier.ordinal):
            self.carriers.append(carrier)
            carrier.marks = self._new(1, carrier.marks)
            carrier.snapshots = self._new(2, carrier.snapshots)

    def add_seam(self, span: Span) -> None:
        """Count a seam."""
        self._is_new(3, f"{span.trace_id.hex()}/{span.span_id.hex()}", None)

    def _new(self, which: int, placed: list[Placed]) -> list[Placed]:
        return [(r, seq) for r, seq in placed if self._is_new(which, r.get("id"), seq)]

    def assemble(self) -> Decoded:
        """The batch as far as it is here."""
        self.carriers.sort(key=lambda carrier: carrier.ordinal)
        for unit in self.units:
            if unit.more_marks:
                self._append_carried(unit)
        bearers: list[SpanSet | Carrier] = [*self.units, *self.carriers]
        marks = [placed for bearer in bearers for placed in bearer.marks]
        snapshots = [placed for bearer in bearers for placed in bearer.snapshots]
        spans: list[Placed] = [(unit.record, unit.seq) for unit in self.units]
        batch = decoded_top(self.header, self.resource_attributes)
        for key, placed in zip(LISTS, (spans, marks, snapshots), strict=True):
            batch[key] = arranged(placed, TIME[key])
        carried = [c.rest for c in self.carriers if c.rest]
        rest = carried[0] if carried else self.header.rest
        rests.apply(batch, rests.parse(rest, of_batch=True))
        self._keep_resource(batch)
        found, expected = self.counts(), self.header.counts
        name = self.header.file or file_name(batch)
        if found != expected:
            found = self._settled(batch)
        if found != expected:
            batch = part_of(batch, expected, found.synthetic, self.header.file)
            name = None
        name = name or file_name(batch) or f"{digest(exactjson.dumps_sorted(batch)).hex()}.json"
        return Decoded(batch, name, found, expected, self.duplicates)

    def _settled(self, batch: Record) -> Counts:
        """What is here of a batch of which not everything came.

        Seams and markers that a batch gives itself count as here, whether they came or not: they
        carry nothing, and are made anew from what it says.
        """
        plan, expected = plan_of(batch), self.header.counts
        if plan is None:
            return self.counts()
        synthetic = len(self.carriers) + len(told_seams(plan, one_trace=False))
        return replace(self.counts(), synthetic=min(synthetic, expected.synthetic))

    def _keep_resource(self, batch: Record) -> None:
        """Keep what a processor added to the resource of a batch whose rest holds all of `otel`."""
        otel = batch.get("otel")
        known = otel if isinstance(otel, dict) else {}
        resource = known.get("resource")
        resource = resource if isinstance(resource, dict) else {}
        told = resource.get("attributes")
        told = told if isinstance(told, dict) else {}
        if exactjson.equal(as_decoded(told), self.resource_attributes):
            return
        kept: Record = {"resource": resource | {"attributes": self.resource_attributes}}
        if "otel" in batch and not isinstance(otel, dict):
            kept["was"] = otel
        batch["otel"] = known | kept

    def _append_carried(self, unit: SpanSet) -> None:
        own = unit.record.get("id")
        carried = [m.get("id") for c in self.carriers if c.span_id == own for m, _ in c.marks]
        mark_ids = unit.record.get("mark_ids")
        if isinstance(mark_ids, list):
            mark_ids.extend(carried[: unit.more_marks])


Known = Callable[[bytes], frozenset[bytes]]
"""By the key of a batch: the keys of its records that are kept elsewhere already."""


def record_key(which: int, record_id: str | None, seq: int | None) -> bytes:
    """What tells a record of a batch from its others, 8 bytes: its kind, id and `seq`."""
    return digest(which, "" if record_id is None else f"={record_id}", str(seq))[:8]


def nothing_known(_: bytes) -> frozenset[bytes]:
    """The records that are known where nothing came before: none."""
    return frozenset()


class Regrouper:
    """Puts batches together again from ResourceSpans that a collector split, merged or reordered.

    Holds the parts of batches that are not complete yet.
    """

    def __init__(self, known: Known = nothing_known) -> None:
        """Start with nothing; what is `known` counts as a duplicate."""
        self._known = known
        self.open: dict[bytes, Assembly] = {}
        self.done: set[bytes] = set()
        """Batches that were handed out: what comes of them again is a duplicate."""
        self.duplicates = 0

    def feed(self, messages: Iterable[ResourceSpans]) -> tuple[list[Decoded], list[ResourceSpans]]:
        """Take messages; returns the batches that are complete now, and what is not Cirron's."""
        touched: dict[bytes, Assembly] = {}
        foreign = []
        for message in messages:
            left = self._take(message, touched)
            if left is not None:
                foreign.append(left)
        complete = []
        for key, assembly in touched.items():
            if assembly.is_complete():
                del self.open[key]
                self.done.add(key)
                self.duplicates += assembly.duplicates
                complete.append(_assembled(key, assembly))
        return complete, foreign

    def finish(self) -> list[Decoded]:
        """What is left: batches of which a part never came."""
        left = [_assembled(key, assembly) for key, assembly in self.open.items()]
        self.open.clear()
        return left

    def _take(self, message: ResourceSpans, touched: dict[bytes, Assembly]) -> ResourceSpans | None:
        """Take what is Cirron's; returns the message without it, None where nothing is left."""
        left: list[ScopeSpans] = []
        taken = False
        for scope_spans in message.scope_spans:
            header = None if scope_spans.schema_url else read_scope(scope_spans.scope)
            origin = read_resource(message.resource, header) if header is not None else None
            if header is None or origin is None or message.schema_url:
                left.append(scope_spans)
                continue
            key = assembly_key(header, origin)
            foreign = self._take_spans(scope_spans, header, origin, key, touched)
            if foreign is None:
                taken = True
            else:
                left.append(foreign)
                taken = taken or len(foreign.spans) < len(scope_spans.spans)
        if not taken:
            return message
        if not left and not _has_more(message):
            return None
        rest = ResourceSpans()
        rest.CopyFrom(message)
        del rest.scope_spans[:]
        rest.scope_spans.extend(left)
        return rest

    def _take_spans(
        self,
        scope_spans: ScopeSpans,
        header: Header,
        origin: Origin,
        key: bytes,
        touched: dict[bytes, Assembly],
    ) -> ScopeSpans | None:
        if key in self.done:
            assembly = Assembly(header, origin.attributes)  # counted as duplicates, not kept
        else:
            assembly = self.open.get(key) or Assembly(
                header, origin.attributes, known=self._known(key)
            )
        foreign: list[Span] = []
        for span in scope_spans.spans:
            try:
                _take_span(span, assembly, header, origin)
            except UnsayableError:
                foreign.append(span)
        if len(foreign) == len(scope_spans.spans):
            return scope_spans
        if key in self.done:
            self.duplicates += sum(assembly.found[:3])
        else:
            self.open[key] = touched[key] = assembly
        if not foreign and not _has_more(scope_spans):
            return None
        rest = ScopeSpans()
        rest.CopyFrom(scope_spans)
        del rest.spans[:]
        rest.spans.extend(foreign)
        return rest


def _assembled(key: bytes, assembly: Assembly) -> Decoded:
    decoded = assembly.assemble()
    decoded.key = key
    if not decoded.complete:
        decoded.records = frozenset(record_key(*each) for each in assembly.seen)
    return decoded


def _take_span(span: Span, assembly: Assembly, header: Header, origin: Origin) -> None:
    if is_synthetic(span):
        carrier = read_synthetic(span, header)
        if carrier is None:
            assembly.add_seam(span)
        else:
            assembly.add_carrier(carrier)
    else:
        assembly.add_unit(read_span(span, header, origin))


def _has_more(message: Any) -> bool:
    """Whether a message holds fields that nobody here knows."""
    known = sum(1 for _ in message.ListFields())
    bare = type(message)()
    bare.CopyFrom(message)
    bare.DiscardUnknownFields()
    return bool(known) and bare.ByteSize() != message.ByteSize()


def assembly_key(header: Header, origin: Origin) -> bytes:
    """What the parts of one batch have in common."""
    counts = header.counts
    return digest(
        header.key,
        str(header.sdk_version),
        header.rest,
        f"{counts.spans} {counts.marks} {counts.snapshots}",
        exactjson.dumps_sorted(origin.attributes),
    )
