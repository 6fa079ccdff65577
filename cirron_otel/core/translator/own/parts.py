"""Parts: incomplete batches, each stored as a batch under a derived id.

A part contains the records that arrived. Its `batch_id` is a hash of its content, so a part never
overwrites another one. Its `otel.part` contains the header of the complete batch and the positions
of the records in that batch. Encoding a part therefore reproduces the spans that arrived, and all
parts together restore the complete batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from .... import semconv as sc
from ....ids import digest, uuid4_shaped
from ...placement.batch_placement import Running
from ..foreign.otel_view import unhex
from ..header import LISTS, Counts, Header, resource_attributes, said
from ..values import UINT64_MAX, encodable, is_int, read_typed, split_attributes
from .spans import Placed, SpanSet
from .synthetic import Carrier, link_span_of, marker_of

Record = dict[str, Any]

PART = "part"
_MISSING_SYNTHETIC = "missing_synthetic"
_COUNTS = (*LISTS, _MISSING_SYNTHETIC)
_SEQ, _MORE_MARKS, _CARRIERS, _SEGMENT_LINKS = "seq", "more_marks", "carriers", "seams"
_SHORT_HEADER, _OMITTED = "short_header", "omitted_attributes"
_OPTIONAL = frozenset({
    "batch_id", "otel", "file", PART, _SEQ, _MORE_MARKS, _CARRIERS, _SEGMENT_LINKS, _SHORT_HEADER,
    _OMITTED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartCarrier:
    """A carrier that arrived: its ordinal, and the positions of its events in the part's lists."""

    ordinal: int
    marks: list[int] = field(default_factory=list)
    snapshots: list[int] = field(default_factory=list)

    @property
    def has_residual(self) -> bool:
        """Whether this carrier contains the header's residual instead of records."""
        return not self.marks and not self.snapshots


@dataclass(frozen=True, slots=True)
class Part:
    """The counts of the complete batch, and the positions of this part's records in that batch."""

    spans: int
    marks: int
    snapshots: int
    missing_synthetic: int
    file: str | None = None
    """The file name of the complete batch, if the batch's id and time do not determine it."""
    seqs: dict[str, list[int | None]] = field(default_factory=dict)
    """The `seq` of each record, by list; the records of a missing list have no `seq`."""
    more_marks: dict[int, int] = field(default_factory=dict)
    """How many of a span's marks are on carriers of the complete batch, by index of the span."""
    carriers: list[PartCarrier] = field(default_factory=list)
    segment_links: list[Span] = field(default_factory=list)
    short_header: bool = False
    """Whether `sdk_version` and `batch_id` are only in the residual, not in the header."""
    omitted: frozenset[str] = frozenset()
    """The keys of the resource attributes that are only in the residual."""

    def counts(self, synthetic: int) -> Counts:
        """Return the counts of the complete batch, if this part has `synthetic` synthetic spans."""
        return Counts(self.spans, self.marks, self.snapshots, synthetic + self.missing_synthetic)

    def carried(self, key: str) -> set[int]:
        """Return the indexes of the marks or snapshots that arrived on carriers."""
        return {n for c in self.carriers for n in (c.marks if key == "marks" else c.snapshots)}


def part_of(
    whole: Record,
    counts: Counts,
    synthetic: int,
    file: str | None,
    places: Mapping[str, Any] | None = None,
) -> Record:
    """Build the part to store for an incomplete batch.

    `whole` contains the records that arrived and the fields of the complete batch, `counts` are the
    counts of the complete batch, and `synthetic` is the number of synthetic spans that arrived.
    `places` are the members from `places_of` and `omissions_of`.
    """
    part: Record = {key: getattr(counts, key) for key in LISTS}
    part[_MISSING_SYNTHETIC] = max(0, counts.synthetic - synthetic)
    if "batch_id" in whole:
        part["batch_id"] = whole["batch_id"]
    if file is not None:
        part["file"] = file
    otel = whole.get("otel")
    if "otel" in whole and not (isinstance(otel, dict) and otel):
        part["otel"] = otel
    if isinstance(otel, dict) and PART in otel:
        part[PART] = otel[PART]
    part |= places or {}
    batch = dict(whole)
    batch["otel"] = (dict(otel) if isinstance(otel, dict) else {}) | {PART: part}
    batch["batch_id"] = _hash(batch)
    return batch


def places_of(
    lists: Mapping[str, Sequence[Placed]],
    units: Iterable[SpanSet],
    carriers: Iterable[Carrier],
    segment_links: Iterable[Span],
) -> Record:
    """Return the members of `otel.part` that encoding needs to reproduce the spans that arrived."""
    index = {
        key: {id(record): number for number, (record, _) in enumerate(placed)}
        for key, placed in lists.items()
    }
    places: Record = {}
    seqs = {key: [seq for _, seq in placed] for key, placed in lists.items()}
    seqs = {key: each for key, each in seqs.items() if any(seq is not None for seq in each)}
    if seqs:
        places[_SEQ] = seqs
    # If the residual contains mark_ids, the record already has the final list.
    waiting = [unit for unit in units if unit.more_marks and not unit.states_mark_ids]
    if waiting:
        pairs = [[index["spans"][id(unit.record)], unit.more_marks] for unit in waiting]
        places[_MORE_MARKS] = sorted(pairs)
    came = []
    for carrier in carriers:
        entry: Record = {"ordinal": carrier.ordinal}
        for key, placed in (("marks", carrier.marks), ("snapshots", carrier.snapshots)):
            if placed:
                entry[key] = [index[key][id(record)] for record, _ in placed]
        came.append(entry)
    if came:
        places[_CARRIERS] = came
    linked = [_link_record(link_span) for link_span in segment_links]
    if linked:
        places[_SEGMENT_LINKS] = linked
    return places


def omissions_of(batch: Record, header: Header, attributes: Record) -> Record:
    """Return the members of `otel.part` for the fields of `batch` that are only in the residual.

    `header` and the resource's `attributes` are the ones that arrived. A header that is repeated
    for many sessions omits long fields. A part must record these omissions: it can have fewer
    sessions than the complete batch, and its own header would not omit the same fields.
    """
    places: Record = {}
    fields = said(batch)
    if (header.sdk_version, header.batch_id) != (fields["sdk_version"], fields["batch_id"]):
        places[_SHORT_HEADER] = True
    omitted = sorted(resource_attributes(batch.get("otel")).keys() - attributes.keys())
    if omitted:
        places[_OMITTED] = omitted
    return places


def _hash(batch: Record) -> str:
    """Hash a part without its `batch_id`, as compact JSON with sorted keys."""
    content = {key: value for key, value in batch.items() if key != "batch_id"}
    return uuid4_shaped(digest("part", exactjson.dumps_sorted(content)))


def whole_of(batch: Record) -> tuple[Record, Part | None]:
    """Return a part with the `batch_id` and `otel` of its complete batch, and its `Part`.

    Returns (batch, None) if `batch` is not a valid part.
    """
    otel = batch.get("otel")
    stated = otel.get(PART) if isinstance(otel, dict) else None
    if not isinstance(otel, dict) or not isinstance(stated, dict):
        return batch, None
    if stated.keys() - _OPTIONAL != set(_COUNTS):
        return batch, None
    if batch.get("batch_id") != _hash(batch):
        return batch, None
    part = _part(stated)
    if part is None:
        return batch, None
    whole = dict(batch)
    whole.pop("batch_id")
    if "batch_id" in stated:
        whole["batch_id"] = stated["batch_id"]
    # A member of this name of the complete batch keeps its place: copies of a batch are recognised
    # by their text.
    whole_otel = {
        key: stated[PART] if key == PART else value
        for key, value in otel.items()
        if key != PART or PART in stated
    }
    whole.pop("otel")
    if whole_otel:
        whole["otel"] = whole_otel
    elif "otel" in stated:
        whole["otel"] = stated["otel"]
    return whole, part


def _part(stated: Record) -> Part | None:
    """Decode `otel.part`; return None if a member of it is malformed.

    Malformed entries of the lists of carriers and segment links are skipped.
    """
    counts: list[Any] = [stated[key] for key in _COUNTS]
    file = stated.get("file")
    if not all(is_int(count, 0) for count in counts) or not isinstance(file, str | None):
        return None
    seqs, more_marks = stated.get(_SEQ, {}), stated.get(_MORE_MARKS, [])
    if not isinstance(seqs, dict) or not isinstance(more_marks, list) or seqs.keys() - set(LISTS):
        return None
    if not all(_are_ints(each, optional=True) for each in seqs.values()):
        return None
    if not all(_are_ints(pair) and len(pair) == 2 for pair in more_marks):
        return None
    short_header, omitted = stated.get(_SHORT_HEADER, False), stated.get(_OMITTED, [])
    if not isinstance(short_header, bool) or not isinstance(omitted, list):
        return None
    if not all(isinstance(key, str) for key in omitted):
        return None
    carriers = [_carrier(entry) for entry in _listed(stated.get(_CARRIERS))]
    segment_links = [_link_span(entry) for entry in _listed(stated.get(_SEGMENT_LINKS))]
    spans, marks, snapshots, missing_synthetic = counts
    return Part(
        spans,
        marks,
        snapshots,
        missing_synthetic,
        file,
        seqs,
        dict(more_marks),
        [carrier for carrier in carriers if carrier is not None],
        [link_span for link_span in segment_links if link_span is not None],
        short_header,
        frozenset(omitted),
    )


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _are_ints(value: object, *, optional: bool = False) -> bool:
    return isinstance(value, list) and all(
        is_int(each, 0) or (optional and each is None) for each in value
    )


def _carrier(entry: object) -> PartCarrier | None:
    if not isinstance(entry, dict) or not is_int(entry.get("ordinal")):
        return None
    marks, snapshots = entry.get("marks", []), entry.get("snapshots", [])
    if not _are_ints(marks) or not _are_ints(snapshots):
        return None
    return PartCarrier(entry["ordinal"], marks, snapshots)


def _link_record(link_span: Span) -> Record:
    """Encode a segment link, or the marker of an open scope, as a JSON object."""
    ours, _ = split_attributes(link_span.attributes)
    record: Record = {
        "name": link_span.name,
        "trace_id": link_span.trace_id.hex(),
        "span_id": link_span.span_id.hex(),
        "parent_span_id": link_span.parent_span_id.hex(),
        "start_ns": link_span.start_time_unix_nano,
        "index": read_typed(ours, sc.INDEX, "int_value"),
        "links": [[link.trace_id.hex(), link.span_id.hex()] for link in link_span.links],
    }
    if link_span.name == sc.RUNNING_SPAN:
        record["scope_id"] = read_typed(ours, sc.CARRIER_SPAN_ID, "string_value")
        record["scope_name"] = read_typed(ours, sc.RUNNING_NAME, "string_value")
    return record


def _link_span(entry: object) -> Span | None:
    """Decode a segment link or a marker from the object that `_link_record` returns.

    Returns None if the object is malformed.
    """
    if not isinstance(entry, dict):
        return None
    if entry.get("name") == sc.RUNNING_SPAN:
        return _marker(entry)
    if entry.get("name") not in (sc.CONTINUATION_SPAN, sc.SEGMENT_SPAN):
        return None
    ids = [unhex(entry.get(key)) for key in ("trace_id", "span_id", "parent_span_id")]
    links = [
        [unhex(each) or b"" for each in link] if isinstance(link, list) else []
        for link in _listed(entry.get("links"))
    ]
    when: Any = entry.get("start_ns")
    number: Any = entry.get("index")
    if None in ids or not is_int(when, 0, UINT64_MAX) or not is_int(number):
        return None
    if any(len(link) != 2 for link in links):
        return None
    trace_id, span_id, parent = (each or b"" for each in ids)
    return link_span_of(entry["name"], trace_id, span_id, parent, when, number, links)


def _marker(entry: Record) -> Span | None:
    scope_id: Any = entry.get("scope_id")
    name: Any = entry.get("scope_name")
    index, when = entry.get("index"), entry.get("start_ns")
    trace_id, parent = unhex(entry.get("trace_id")), unhex(entry.get("parent_span_id"))
    if not all(isinstance(text, str) and encodable(text) for text in (scope_id, name)):
        return None
    if trace_id is None or parent is None or not is_int(when, 0, UINT64_MAX):
        return None
    if index is not None and not is_int(index):
        return None
    return marker_of(Running(scope_id, name, index, int(when or 0), None, trace_id), parent)
