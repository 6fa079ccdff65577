"""Cirron → OTLP: encode one batch, whose records are placed by a plan.

The result depends only on the batch, its file name, the plan and the options. `encode_batch` with
`ExactWriter` defines the format; `PieceWriter` writes the same bytes faster for the batches that it
accepts.
"""

from __future__ import annotations

from collections.abc import Collection

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from .... import exactjson
from .... import semconv as sc
from ....errors import InputError
from ....ids import span_id_for
from ....semconv import DEFAULT_SERVICE_NAME
from ...placement.batch_placement import (
    Plan,
    RecordPlacement,
    first_index,
    place_spans,
    stated_trace,
)
from ..events import Record
from ..header import LISTS, Header, file_of, write_resource, write_scope
from ..options import DEFAULT, SEGMENTED, SESSION_LAYOUT, Options
from ..order import TIME, sequence_numbers
from ..values import is_int
from .batch_encoder import BatchEncoder, Group, fitting, in_order_of, take_overhead
from .batch_fields import BatchLevelFields, file_name
from .decode import Regrouper
from .parts import Part, PartCarrier, whole_of
from .spans import NO_CARRIED, CarriedIds, Placed, SpanSet, Wire, wire_parent, write_span
from .synthetic import Carrier, carried_ids, read_synthetic, write_carrier

_AttachedEvents = tuple[list[Placed], list[Placed]]
"""Marks and snapshots that belong to one scope."""


class ExactWriter:
    """Writes the spans of a batch with the exact mappers."""

    def __init__(
        self,
        batch: Record,
        file: str | None,
        options: Options,
        part: Part | None = None,
        corrected: Collection[str] = (),
    ) -> None:
        """Prepare to write a batch.

        With `part`, `batch` is the complete batch as `whole_of` returns it. `file` is the name of
        the batch's file, if the batch's id and time do not determine it. The lists named in
        `corrected` are written into the residual too.
        """
        self.part = part
        self.lists = {key: _records(batch.get(key)) for key in LISTS}
        self.index = first_index(self.lists["spans"])
        self.seqs = {key: self._sequence(key) for key in LISTS}
        spans, marks, snapshots = (len(self.lists[key]) for key in LISTS)
        self.lengths = spans, marks, snapshots
        present_lists = [key for key in LISTS if batch.get(key) is self.lists[key]]
        self.fields = BatchLevelFields(
            {key: value for key, value in batch.items() if key not in present_lists},
            file=file,
            own_trace_ids=any("trace_id" in _otel(record) for record in self.lists["spans"]),
            service_name=options.service_name,
            lists=present_lists,
            corrected={key: self.lists[key] for key in corrected},
        )
        self.places: list[RecordPlacement] = []

    def _sequence(self, key: str) -> list[int | None]:
        """Return the `seq` of each record of a list; a part keeps those of the complete batch."""
        records = self.lists[key]
        if self.part is None:
            return sequence_numbers(records, TIME[key])
        seqs = self.part.seqs.get(key, [])
        return seqs if len(seqs) == len(records) else [None] * len(records)

    def collect(self, encoder: BatchEncoder[ResourceSpans]) -> None:
        """Place the spans, attach the events that fit, and put the other events on carriers."""
        spans, part = self.lists["spans"], self.part
        self.places = place_spans(spans, self.index, encoder.plan)
        encoder.first_place = self.places[0] if spans else None
        on_spans, detached = self._attached_events()
        for number, record in enumerate(spans):
            place = self.places[number]
            group = encoder.group(place.session)
            _note_process(group, record)
            unit = SpanSet(record, self.seqs["spans"][number])
            trace_id = _trace(encoder, record, place)[0]
            attached = on_spans.get(number, ([], []))
            if part is None:
                over = self._load(unit, attached)
                if over is not None:
                    host = record["id"]
                    encoder.carry(over, trace_id, span_id_for(host), host, place.session)
                start_ns, own_id = record.get("start_ns"), record.get("id")
                if isinstance(start_ns, int) and isinstance(own_id, str):
                    encoder.open_segment(place, start_ns, own_id, self._place_of)
            else:
                self._load_part(unit, attached, part.more_marks.get(number, 0))
            group.spans.append((unit, place))
        for span_id, attached in detached.items():
            trace_id, parent, session = encoder.outer_scope(span_id)
            encoder.carry(attached, trace_id, parent, span_id, session)
        for carrier in part.carriers if part is not None else ():
            self._carry_part(encoder, carrier)

    def _place_of(self, span_id: str) -> RecordPlacement | None:
        number = self.index.get(span_id)
        return self.places[number] if number is not None else None

    def _attached_events(self) -> tuple[dict[int, _AttachedEvents], dict[object, _AttachedEvents]]:
        """Group marks and snapshots by the index of their span.

        If the span is not in this batch, they are grouped by its id.
        """
        on_spans: dict[int, _AttachedEvents] = {}
        detached: dict[object, _AttachedEvents] = {}
        for which, key in enumerate(("marks", "snapshots")):
            apart = self.part.carried(key) if self.part is not None else ()
            for at, (record, seq) in enumerate(zip(self.lists[key], self.seqs[key], strict=True)):
                if at in apart:
                    continue
                span_id = record.get("span_id")
                stated = span_id if isinstance(span_id, str) else None
                number = self.index.get(stated) if stated is not None else None
                if number is not None:
                    on_spans.setdefault(number, ([], []))[which].append((record, seq))
                else:
                    detached.setdefault(stated, ([], []))[which].append((record, seq))
        return on_spans, detached

    def _load(self, unit: SpanSet, attached: _AttachedEvents) -> _AttachedEvents | None:
        """Put marks and snapshots on their span; return the overflow, or None if all fit."""
        record = unit.record
        marks = in_order_of(record.get("mark_ids"), attached[0])
        marks = take_overhead(unit, marks)
        size = len(exactjson.dumps(record))
        fitted_marks, over = fitting(marks, sc.MAX_EVENTS, sc.MAX_SPAN_BYTES - 2 * size)
        unit.marks = fitted_marks[0]
        unit.more_marks = len(over)
        left = sc.MAX_EVENTS - len(fitted_marks[0])
        fitted_snapshots, over_s = fitting(
            attached[1], left, sc.MAX_SPAN_BYTES - 2 * size - fitted_marks[1]
        )
        unit.snapshots = fitted_snapshots[0]
        return (over, over_s) if over or over_s else None

    @staticmethod
    def _load_part(unit: SpanSet, attached: _AttachedEvents, more_marks: int) -> None:
        """Put the events of a part back on their span, without applying the size limits."""
        marks, snapshots = attached
        mark_ids = unit.record.get("mark_ids")
        if isinstance(mark_ids, list):
            marks = in_order_of(mark_ids[: len(marks)], marks)
        unit.marks, unit.snapshots = take_overhead(unit, marks), snapshots
        unit.more_marks = more_marks

    def _carry_part(self, encoder: BatchEncoder[ResourceSpans], came: PartCarrier) -> None:
        """Restore a part's carrier of events; a carrier of the header's residual is skipped."""
        placed: _AttachedEvents = ([], [])
        for which, (key, numbers) in enumerate(
            (("marks", came.marks), ("snapshots", came.snapshots))
        ):
            records, seqs = self.lists[key], self.seqs[key]
            placed[which].extend((records[n], seqs[n]) for n in numbers if n < len(records))
        attached = [*placed[0], *placed[1]]
        if not attached:
            return
        span_id = attached[0][0].get("span_id")
        span_id = span_id if isinstance(span_id, str) else None
        number = self.index.get(span_id) if span_id is not None else None
        if number is None:
            trace_id, parent, session = encoder.outer_scope(span_id)
        else:
            place, parent = self.places[number], span_id_for(span_id or "")
            trace_id = _trace(encoder, self.lists["spans"][number], place)[0]
            session = place.session
        encoder.add_carrier(Carrier(came.ordinal, trace_id, parent, span_id, *placed), session)

    def messages(self, encoder: BatchEncoder[ResourceSpans], header: Header) -> list[ResourceSpans]:
        """Write each group as one ResourceSpans."""
        groups = encoder.groups
        carriers = {session: _carriers(group, header) for session, group in groups.items()}
        carried = _carried(groups.values(), carriers.values(), header)
        messages = []
        for session, group in groups.items():
            origin = encoder.origin(session, group, header)
            message = ResourceSpans()
            write_resource(message.resource, origin)
            scope_spans = message.scope_spans.add()
            write_scope(scope_spans.scope, header)
            for unit, place in group.spans:
                trace_id, own_trace_id = _trace(encoder, unit.record, place)
                wire = Wire(trace_id, wire_parent(unit.record), header, origin, own_trace_id)
                write_span(scope_spans.spans.add(), unit, wire, carried)
            scope_spans.spans.extend(carriers[session])
            scope_spans.spans.extend(group.segment_links)
            messages.append(message)
        return messages


def _carriers(group: Group, header: Header) -> list[Span]:
    """Encode the carriers of a group as spans."""
    spans = []
    for carrier in group.carriers:
        spans.append(Span())
        write_carrier(spans[-1], carrier, header)
    return spans


def _carried(
    groups: Collection[Group], carriers: Collection[list[Span]], header: Header
) -> CarriedIds:
    """Return the ids of the marks on carriers, if any span has marks on a carrier."""
    if not any(unit.more_marks for group in groups for unit, _ in group.spans):
        return NO_CARRIED
    read = [read_synthetic(span, header) for spans in carriers for span in spans]
    return carried_ids(carrier for carrier in read if carrier is not None)


def _trace(
    encoder: BatchEncoder[ResourceSpans], record: Record, place: RecordPlacement
) -> tuple[bytes, str | None]:
    """Return a record's trace id on the wire, and its own trace id if the layout replaces it."""
    own_trace_id = stated_trace(_otel(record).get("trace_id"))
    if not encoder.one_trace:
        return own_trace_id or encoder.fields.trace_id or place.trace_id, None
    trace_id = encoder.plan.session_trace(place.session)
    return trace_id, own_trace_id.hex() if own_trace_id and own_trace_id != trace_id else None


def _note_process(group: Group, record: Record) -> None:
    if group.pid is None and is_int(record.get("pid")):
        group.pid = record["pid"]
    if group.rank is None and is_int(record.get("rank")):
        group.rank = record["rank"]


def _records(value: object) -> list[Record]:
    """Return `value` if it is a list of objects, else []: the residual then contains the value."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    return []


def _otel(record: Record) -> Record:
    otel = record.get("otel")
    return otel if isinstance(otel, dict) else {}


__all__ = [
    "DEFAULT",
    "DEFAULT_SERVICE_NAME",
    "SEGMENTED",
    "SESSION_LAYOUT",
    "Options",
    "encode_batch",
    "file_name",
]


def encode_batch(
    batch: Record, plan: Plan, name: str | None = None, options: Options = DEFAULT
) -> list[ResourceSpans]:
    """Encode a batch as ResourceSpans, one per session; each has the header of the batch.

    `batch` is a JSON object from `exactjson.loads`; `name` is the name of its file, if it has one.
    Nothing of the batch is lost: `decode` restores it, equal as a JSON value.

    For a part, and if some events are not on the span of their scope, the messages are decoded
    again as a check. Lists that decoding does not restore are written into the header's residual.
    Raises InputError if the batch still cannot be restored.
    """
    whole, part = whole_of(batch)
    if part is not None:
        writer = ExactWriter(whole, part.file, options, part)
        messages = BatchEncoder(writer, plan, options, part).encode()
        if not _difference(batch, name, messages):
            return messages
    own_name = file_name(batch)
    file = name if name != own_name else None
    encoder = BatchEncoder(ExactWriter(batch, file, options), plan, options)
    messages = encoder.encode()
    if not encoder.has_detached_events:
        return messages
    wrong = _difference(batch, name, messages)
    if not wrong:
        return messages
    if set(wrong) <= set(LISTS):
        writer = ExactWriter(batch, file, options, corrected=wrong)
        messages = BatchEncoder(writer, plan, options).encode()
        if not _difference(batch, name, messages):
            return messages
    raise InputError("the batch cannot be expressed in OTLP: decoding would not restore it")


def _difference(batch: Record, name: str | None, messages: list[ResourceSpans]) -> list[str]:
    """Return the members of the batch that decoding its messages does not restore."""
    reader = Regrouper()
    batches, foreign = reader.feed(messages)
    batches += reader.finish()
    if (
        len(batches) != 1
        or foreign
        or (name is not None and batches[0].name != name and file_of(name))
    ):
        return ["name"]
    decoded = batches[0].batch
    keys = sorted(decoded.keys() | batch.keys())
    missing = object()
    return [k for k in keys if not exactjson.equal(decoded.get(k, missing), batch.get(k, missing))]
