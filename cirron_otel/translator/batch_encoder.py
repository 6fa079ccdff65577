"""Encode one batch, or a part of one, as ResourceSpans: place its records on the wire."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from .. import exactjson
from .. import semconv as sc
from ..ids import span_id_for
from .events import Record
from .header import LISTS, Counts, Header, Origin, write_resource, write_scope
from .options import SESSION_LAYOUT, Options
from .order import TIME, sequence_numbers
from .parts import Part, PartCarrier
from .placement import Place, Plan, first_index, place_spans, stated_trace
from .riders import fitting, in_order_of, take_overhead
from .spans import (
    NO_CARRIED,
    CarriedIds,
    Placed,
    SpanSet,
    Wire,
    natural_parent,
    wire_parent,
    write_span,
)
from .synthetic import (
    Carrier,
    carried_ids,
    read_synthetic,
    rest_carrier,
    told_seams,
    write_carrier,
    write_seams,
)
from .top import Top
from .values import INT64_MAX, is_int

_Riders = tuple[list[Placed], list[Placed]]
"""Marks and snapshots that belong to one scope."""


@dataclass(slots=True)
class _Group:
    """The part of a batch that belongs to one session."""

    records: list[Record] = field(default_factory=list)
    units: list[tuple[SpanSet, Place]] = field(default_factory=list)
    carriers: list[Carrier] = field(default_factory=list)
    seams: list[Span] = field(default_factory=list)


class BatchEncoder:
    """Encodes one batch."""

    def __init__(
        self,
        batch: Record,
        plan: Plan,
        file: str | None,
        options: Options,
        part: Part | None = None,
        corrected: Collection[str] = (),
    ) -> None:
        """Prepare to encode `batch`, the complete one if `part` is given.

        `file` is the name of its file if id and time do not give it. The rest also contains the
        `corrected` lists.
        """
        self.batch, self.plan, self.options, self.part = batch, plan, options, part
        self.lists = {key: _records(batch.get(key)) for key in LISTS}
        self.index = first_index(self.lists["spans"])
        self.places = place_spans(self.lists["spans"], self.index, plan)
        self.seqs = {key: self._sequence(key) for key in LISTS}
        self.one_trace = options.layout == SESSION_LAYOUT
        self.groups: dict[str, _Group] = {}
        self.ordinal = 0
        self.rides_apart = False
        """Whether marks or snapshots are not on the span of their scope."""
        said = [key for key in LISTS if batch.get(key) is self.lists[key]]
        self.top = Top(
            {key: value for key, value in batch.items() if key not in said},
            file=file,
            own_trace_ids=any("trace_id" in _otel(record) for record in self.lists["spans"]),
            service_name=options.service_name,
            lists=said,
            corrected={key: self.lists[key] for key in corrected},
        )
        self.trace_id = self.top.trace_id

    def run(self) -> list[ResourceSpans]:
        """Encode the batch."""
        self._collect()
        if self.part is None:
            self.top.repeat(len(self.groups))
        else:
            self.top.omit(self.part)
        rest = self.top.rest()
        inline = "" if len(rest) > sc.REST_PIECE else rest
        spans = self.lists["spans"]
        seams = told_seams(self.plan, one_trace=self.one_trace)
        if self.part is not None and not seams:
            seams = self.part.seams
        if self._needs_carrier(seams) or rest != inline:
            carried = "" if rest == inline else rest
            told = self.plan.told is not None or not spans
            place = self.plan.outside(None) if told else self.places[0]
            made = self.top.created_ns
            carrier = rest_carrier(self._next(), self._outer_trace(place), carried, made)
            self._group(place.session).carriers.append(carrier)
        if seams:
            self._group(self.plan.default).seams += seams
        synthetic = sum(len(g.carriers) + len(g.seams) for g in self.groups.values())
        spans_, marks, snapshots = (len(self.lists[key]) for key in LISTS)
        counts = Counts(spans_, marks, snapshots, synthetic)
        if self.part is not None:
            counts = self.part.counts(synthetic)
        header = self.top.header(counts, inline)
        groups = self.groups
        carriers = {session: self._carriers(group, header) for session, group in groups.items()}
        all_carriers = [span for spans in carriers.values() for span in spans]
        found = self._carried(all_carriers, header)
        return [
            self._say(session, group, header, carriers[session], found)
            for session, group in groups.items()
        ]

    def _sequence(self, key: str) -> list[int | None]:
        """The `seq` of each record of a list; a part keeps those of the complete batch."""
        records = self.lists[key]
        if self.part is None:
            return sequence_numbers(records, TIME[key])
        seqs = self.part.seqs.get(key, [])
        return seqs if len(seqs) == len(records) else [None] * len(records)

    def _needs_carrier(self, seams: list[Span]) -> bool:
        """Whether a carrier `cirron.batch` is needed even if the scope has room for the rest."""
        if self.part is not None:
            return any(carrier.has_rest for carrier in self.part.carriers)
        return not (self.lists["spans"] or seams)

    @staticmethod
    def _carriers(group: _Group, header: Header) -> list[Span]:
        """Encode the carriers of a group as spans."""
        spans = []
        for carrier in group.carriers:
            spans.append(Span())
            write_carrier(spans[-1], carrier, header)
        return spans

    def _carried(self, carriers: list[Span], header: Header) -> CarriedIds:
        """Decode the ids of the marks on carriers, if a span has marks there."""
        if not any(unit.more_marks for group in self.groups.values() for unit, _ in group.units):
            return NO_CARRIED
        read = [read_synthetic(span, header) for span in carriers]
        return carried_ids(carrier for carrier in read if carrier is not None)

    def _group(self, session: str) -> _Group:
        return self.groups.setdefault(session, _Group())

    def _next(self) -> int:
        if self.part is not None:
            for carrier in self.part.carriers:
                if carrier.has_rest:
                    return carrier.ordinal
        self.ordinal += 1
        return self.ordinal - 1

    def _collect(self) -> None:
        hosted, homeless = self._riders()
        opened: set[bytes] = set()
        for number, record in enumerate(self.lists["spans"]):
            place = self.places[number]
            group = self._group(place.session)
            group.records.append(record)
            unit = SpanSet(record, self.seqs["spans"][number])
            place = place._replace(trace_id=self._trace(record, place)[0])
            riders = hosted.get(number, ([], []))
            if self.part is None:
                self._load(unit, riders, place, group)
                self._seams(record, place, group, opened)
            else:
                self._load_part(unit, riders, number)
            group.units.append((unit, place))
        for span_id, riders in homeless.items():
            self._carry(riders, *self._outer_scope(span_id))
        for carrier in self.part.carriers if self.part is not None else ():
            self._carry_part(carrier)

    def _outer_scope(self, span_id: object) -> tuple[bytes, bytes, object, _Group]:
        """Return the trace, wire id, id and group of a scope that is not in the batch."""
        place = self.plan.outside(span_id)
        parent = natural_parent(None if span_id in (None, "root") else span_id)
        trace_id = self._outer_trace(place)
        if self.plan.told is None and not self.one_trace:
            trace_id = self.trace_id or trace_id
        return trace_id, parent, span_id, self._group(place.session)

    def _riders(self) -> tuple[dict[int, _Riders], dict[object, _Riders]]:
        """Group marks and snapshots by the index of their span, or by its id if it is elsewhere."""
        hosted: dict[int, _Riders] = {}
        homeless: dict[object, _Riders] = {}
        for which, key in enumerate(("marks", "snapshots")):
            apart = self.part.carried(key) if self.part is not None else ()
            for at, (record, seq) in enumerate(zip(self.lists[key], self.seqs[key], strict=True)):
                if at in apart:
                    continue
                span_id = record.get("span_id")
                told = span_id if isinstance(span_id, str) else None
                number = self.index.get(told) if told is not None else None
                if number is not None:
                    hosted.setdefault(number, ([], []))[which].append((record, seq))
                else:
                    homeless.setdefault(told, ([], []))[which].append((record, seq))
        return hosted, homeless

    def _load(self, unit: SpanSet, riders: _Riders, place: Place, group: _Group) -> None:
        """Put marks and snapshots on their span, and the overflow on carriers."""
        record = unit.record
        marks = in_order_of(record.get("mark_ids"), riders[0])
        marks = take_overhead(unit, marks)
        size = len(exactjson.dumps(record))
        kept, over = fitting(marks, sc.MAX_EVENTS, sc.MAX_SPAN_BYTES - 2 * size)
        unit.marks = kept[0]
        unit.more_marks = len(over)
        left = sc.MAX_EVENTS - len(kept[0])
        kept_s, over_s = fitting(riders[1], left, sc.MAX_SPAN_BYTES - 2 * size - kept[1])
        unit.snapshots = kept_s[0]
        if over or over_s:
            host = record["id"]
            self._carry((over, over_s), place.trace_id, span_id_for(host), host, group)

    def _load_part(self, unit: SpanSet, riders: _Riders, number: int) -> None:
        """Restore the events of a span of a part, without the limits."""
        marks, snapshots = riders
        mark_ids = unit.record.get("mark_ids")
        if isinstance(mark_ids, list):
            marks = in_order_of(mark_ids[: len(marks)], marks)
        unit.marks, unit.snapshots = take_overhead(unit, marks), snapshots
        unit.more_marks = self.part.more_marks.get(number, 0) if self.part is not None else 0

    def _carry_part(self, came: PartCarrier) -> None:
        """Restore a carrier of a part, except the one of the header's rest."""
        placed: _Riders = ([], [])
        for which, (key, numbers) in enumerate(
            (("marks", came.marks), ("snapshots", came.snapshots))
        ):
            records, seqs = self.lists[key], self.seqs[key]
            placed[which].extend((records[n], seqs[n]) for n in numbers if n < len(records))
        riders = [*placed[0], *placed[1]]
        if not riders:
            return
        span_id = riders[0][0].get("span_id")
        span_id = span_id if isinstance(span_id, str) else None
        number = self.index.get(span_id) if span_id is not None else None
        if number is None:
            trace_id, parent, _, group = self._outer_scope(span_id)
        else:
            place, parent = self.places[number], span_id_for(span_id or "")
            trace_id = self._trace(self.lists["spans"][number], place)[0]
            group = self._group(place.session)
        carrier = Carrier(came.ordinal, trace_id, parent, span_id, *placed)
        self._add_carrier(carrier, group)

    def _carry(
        self, riders: _Riders, trace_id: bytes, parent: bytes, span_id: object, group: _Group
    ) -> None:
        marks, snapshots = riders
        while marks or snapshots:
            (now, size), marks = fitting(marks, sc.MAX_EVENTS, sc.MAX_SPAN_BYTES, at_least=1)
            carrier = Carrier(self._next(), trace_id, parent, span_id, marks=now)
            if not marks:
                space = sc.MAX_EVENTS - len(now)
                least = 0 if now else 1
                taken, snapshots = fitting(snapshots, space, sc.MAX_SPAN_BYTES - size, least)
                carrier.snapshots = taken[0]
            self._add_carrier(carrier, group)

    def _add_carrier(self, carrier: Carrier, group: _Group) -> None:
        times = [record.get("ts_ns") for record, _ in (*carrier.marks, *carrier.snapshots)]
        known = [time for time in times if is_int(time, 0, INT64_MAX)]
        if known:
            carrier.start_ns, carrier.end_ns = min(known), max(known)  # type: ignore[type-var,assignment]
        group.carriers.append(carrier)
        self.rides_apart = True

    def _seams(self, record: Record, place: Place, group: _Group, opened: set[bytes]) -> None:
        if self.one_trace or place.depth not in (1, 2):
            return
        start, own = record.get("start_ns"), record.get("id")
        if not isinstance(start, int) or not isinstance(own, str):
            return
        segment = self.plan.segment_of(place.session, start, own)
        if segment is None or segment[:2] != (start, own) or segment.trace_id in opened:
            return
        opened.add(segment.trace_id)
        parent = segment.parent_id
        number = self.index.get(parent) if parent is not None else None
        above = self.places[number] if number is not None else self.plan.outside(parent)
        session_trace = self.plan.session_trace(place.session)
        group.seams += write_seams(place.session, session_trace, segment, above.trace_id)

    def _say(
        self,
        session: str,
        group: _Group,
        header: Header,
        carriers: list[Span],
        carried: CarriedIds,
    ) -> ResourceSpans:
        origin = self._origin(session, group, header)
        message = ResourceSpans()
        write_resource(message.resource, origin)
        scope_spans = message.scope_spans.add()
        write_scope(scope_spans.scope, header)
        for unit, place in group.units:
            wire = self._wire(unit, place, header, origin)
            write_span(scope_spans.spans.add(), unit, wire, carried)
        scope_spans.spans.extend(carriers)
        scope_spans.spans.extend(group.seams)
        return message

    def _origin(self, session: str, group: _Group, header: Header) -> Origin:
        pids = [r["pid"] for r in group.records if is_int(r.get("pid"))]
        ranks = [r["rank"] for r in group.records if is_int(r.get("rank"))]
        return Origin(
            session_id=session,
            pid=pids[0] if pids else None,
            rank=ranks[0] if ranks else None,
            service_name=header.added_service_name,
            attributes=self.top.resource_attributes,
        )

    def _outer_trace(self, place: Place) -> bytes:
        """The trace of a scope that is not in the batch."""
        return self.plan.session_trace(place.session) if self.one_trace else place.trace_id

    def _trace(self, record: Record, place: Place) -> tuple[bytes, str | None]:
        """Return a record's wire trace, and its own trace id if the layout replaces that."""
        own = stated_trace(_otel(record).get("trace_id"))
        if not self.one_trace:
            return own or self.trace_id or place.trace_id, None
        trace_id = self.plan.session_trace(place.session)
        return trace_id, own.hex() if own and own != trace_id else None

    def _wire(self, unit: SpanSet, place: Place, header: Header, origin: Origin) -> Wire:
        trace_id, given = self._trace(unit.record, place)
        return Wire(trace_id, wire_parent(unit.record), header, origin, given)


def _records(value: object) -> list[Record]:
    """Return a list of objects; for any other value an empty list, and the rest contains it."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    return []


def _otel(record: Record) -> Record:
    otel = record.get("otel")
    return otel if isinstance(otel, dict) else {}
