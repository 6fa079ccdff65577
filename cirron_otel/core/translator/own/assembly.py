"""Assemble the records of a batch from all of its parts.

Only `Assembly` turns the spans, carriers, header and residual of a batch into records. `decode`
fills it with the parts that arrive; the encoder uses `decode` to check its own output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from .... import exactjson
from ....ids import digest
from .. import residual as residuals
from ..events import Record
from ..header import LISTS, Counts, Header
from ..order import TIME, arranged
from ..values import UnencodableError
from .batch_fields import as_decoded, decoded_fields, file_name
from .own import plan_of
from .parts import omissions_of, part_of, places_of
from .spans import Placed, SpanSet, attach_carried
from .synthetic import Carrier, carried_ids, stated_links


@dataclass(slots=True)
class Decoded:
    """A batch that was decoded from OTLP."""

    batch: Record
    name: str
    """The name of its file in a spool."""
    found: Counts
    expected: Counts
    duplicates: int = 0
    """The number of repeated records; `found` counts each record once."""
    key: bytes = b""
    """The key that all parts of a Cirron batch share; empty for a batch from OTLP."""
    records: frozenset[bytes] = frozenset()
    """The keys (`record_key`) of the records of an incomplete batch."""
    namesake: str | None = None
    """The derived name, if an earlier batch with other content has it; `name` is then a hash."""
    dropped: list[str] = field(default_factory=list)
    """The keys of attributes that a processor added to records that cannot store attributes."""

    @property
    def complete(self) -> bool:
        """Whether the batch contains every record that its header counts."""
        return self.found == self.expected


Item = SpanSet | Carrier | Span
"""A decoded span: a record, a carrier, or an unchanged segment link or marker."""

_Key = tuple[int, str | None, int | None]
"""The index of a record's list in `LISTS`, its id and its `seq`.

For a carrier: 3, "carrier" and its ordinal. For any other synthetic span: 3, its trace and span
ids, and None.
"""
_SYNTHETIC = len(LISTS)


def keys_of(item: Item) -> Iterator[tuple[_Key, object]]:
    """Yield the key and content of an item, then the key and content of each of its events."""
    if isinstance(item, Span):
        yield (_SYNTHETIC, f"{item.trace_id.hex()}/{item.span_id.hex()}", None), None
        return
    if isinstance(item, SpanSet):
        yield (0, _text(item.record.get("id")), item.seq), item.record
    else:
        yield (_SYNTHETIC, "carrier", item.ordinal), [item.residual, item.mark_ids]
    for which, placed in ((1, item.marks), (2, item.snapshots)):
        for record, seq in placed:
            yield (which, _text(record.get("id")), seq), record


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class Keyed(NamedTuple):
    """An item with its key and content, and the key and content of each of its events."""

    item: Item
    pairs: list[tuple[_Key, object]]


def keyed(item: Item) -> Keyed:
    """Return the item with its keys.

    Raises UnencodableError if two of its records share a key: the encoder never writes such a span.
    """
    pairs = list(keys_of(item))
    if len(pairs) > 1 and len({key for key, _ in pairs}) != len(pairs):
        raise UnencodableError("two records with the same key")
    return Keyed(item, pairs)


@dataclass(slots=True)
class Assembly:
    """The parts of one batch that have arrived so far."""

    header: Header
    resource_attributes: Record
    units: list[SpanSet] = field(default_factory=list)
    carriers: list[Carrier] = field(default_factory=list)
    segment_links: list[Span] = field(default_factory=list)
    known: frozenset[bytes] = frozenset()
    """The keys of records that arrived earlier and are stored elsewhere."""
    seen: dict[_Key, object] = field(default_factory=dict)
    """The content of each record, by key."""
    found: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    duplicates: int = 0

    def counts(self) -> Counts:
        """Count the records and synthetic spans that have arrived."""
        return Counts(*self.found)

    def is_complete(self) -> bool:
        """Whether every record and synthetic span that the header counts has arrived."""
        return self.counts() == self.header.counts

    def _is_known(self, key: _Key) -> bool:
        return bool(self.known) and record_key(*key) in self.known

    def contradicts(self, keyed: Keyed) -> bool:
        """Whether this item belongs to another batch.

        It does if one of its keys is already here with different content, or if the item itself is
        already here but one of its events is not.
        """
        contents, has_come = self.seen, keyed.pairs[0][0] in self.seen
        for key, content in keyed.pairs:
            if key in contents:
                if not exactjson.equal(contents[key], content):
                    return True
            elif has_come and not self._is_known(key):
                return True
        return False

    def add(self, keyed: Keyed) -> None:
        """Add an item that does not contradict this batch; count repeated records as duplicates."""
        item, (head, *attached) = keyed
        if not self._is_new(*head):
            return
        if isinstance(item, Span):
            self.segment_links.append(item)
        elif isinstance(item, SpanSet):
            self.units.append(item)
        else:
            self.carriers.append(item)
        are_new = [self._is_new(*pair) for pair in attached]
        if not isinstance(item, Span) and not all(are_new):
            marks = len(item.marks)
            item.marks = list(compress(item.marks, are_new))
            item.snapshots = list(compress(item.snapshots, are_new[marks:]))

    def _is_new(self, key: _Key, content: object) -> bool:
        which = key[0]
        if key in self.seen or self._is_known(key):
            self.duplicates += which < _SYNTHETIC
            return False
        self.seen[key] = content
        self.found[which] += 1
        return True

    # --- the records ----------------------------------------------------------------------------

    def assemble(self) -> Decoded:
        """Build the batch from the parts that have arrived."""
        self.carriers.sort(key=lambda carrier: carrier.ordinal)
        carried = carried_ids(self.carriers)
        for unit in self.units:
            attach_carried(unit, carried)
        bearers: list[SpanSet | Carrier] = [*self.units, *self.carriers]
        of_list: dict[str, list[Placed]] = {
            "spans": [(unit.record, unit.seq) for unit in self.units],
            "marks": [placed for bearer in bearers for placed in bearer.marks],
            "snapshots": [placed for bearer in bearers for placed in bearer.snapshots],
        }
        lists = {key: arranged(of_list[key], TIME[key]) for key in LISTS}
        batch = self.top({key: [record for record, _ in lists[key]] for key in LISTS})
        counts, expected = self.counts(), self.header.counts
        name = self.header.file or file_name(batch)
        is_own = plan_of(batch) is not None if counts != expected else False
        if is_own:
            counts = self._settled(batch)
        if counts != expected:
            segment_links = [] if is_own else self.segment_links
            places = places_of(lists, self.units, self.carriers, segment_links)
            places |= omissions_of(batch, self.header, self.resource_attributes)
            batch = part_of(batch, expected, counts.synthetic, self.header.file, places)
            name = None
        name = name or file_name(batch) or content_name(batch)
        dropped = [key for bearer in bearers for key in bearer.dropped]
        return Decoded(batch, name, counts, expected, self.duplicates, dropped=dropped)

    def top(self, lists: Record) -> Record:
        """Combine the batch-level fields with these lists into a batch, and apply the residual."""
        batch = decoded_fields(self.header, self.resource_attributes) | lists
        carried = [carrier.residual for carrier in self.carriers if carrier.residual]
        residual = carried[0] if carried else self.header.residual
        residuals.apply(batch, residuals.parse(residual, of_batch=True))
        self._keep_resource(batch)
        return batch

    def is_within(self, batch: Record) -> bool:
        """Whether `batch` contains every part of this incomplete batch, with equal content."""
        lists: dict[str, list[Record]] = {key: _records(batch.get(key)) for key in LISTS}
        texts = {key: {exactjson.dumps_sorted(record) for record in lists[key]} for key in LISTS}
        unmarked_texts = {
            exactjson.dumps_sorted(_without_mark_ids(record)) for record in lists["spans"]
        }
        for unit in self.units:
            if unit.more_marks and not unit.states_mark_ids:
                if exactjson.dumps_sorted(_without_mark_ids(unit.record)) not in unmarked_texts:
                    return False
            elif exactjson.dumps_sorted(unit.record) not in texts["spans"]:
                return False
        bearers: list[SpanSet | Carrier] = [*self.units, *self.carriers]
        for bearer in bearers:
            for key, placed in (("marks", bearer.marks), ("snapshots", bearer.snapshots)):
                if any(exactjson.dumps_sorted(record) not in texts[key] for record, _ in placed):
                    return False
        if not any(carrier.residual for carrier in self.carriers):
            return True  # the batch-level residual is in the key, or has not arrived again
        return exactjson.equal(self.top({key: batch[key] for key in LISTS if key in batch}), batch)

    def _settled(self, batch: Record) -> Counts:
        """Count the parts of an incomplete batch.

        Segment links and markers that the batch itself describes always count: they carry no
        record, and are created again from the batch.
        """
        plan, expected = plan_of(batch), self.header.counts
        if plan is None:
            return self.counts()
        synthetic = len(self.carriers) + len(stated_links(plan, one_trace=False))
        return replace(self.counts(), synthetic=min(synthetic, expected.synthetic))

    def _keep_resource(self, batch: Record) -> None:
        """Keep attributes that a processor added to a resource whose original is in the residual.

        Attributes that only the residual contains stay unchanged.
        """
        otel = batch.get("otel")
        resource = otel.get("resource") if isinstance(otel, dict) else None
        attributes = resource.get("attributes") if isinstance(resource, dict) else None
        exact = attributes if isinstance(attributes, dict) else {}
        expected = as_decoded(exact)
        added = {
            key: value
            for key, value in self.resource_attributes.items()
            if key not in expected or not exactjson.equal(value, expected[key])
        }
        if not added:
            return
        new_otel: Record = dict(otel) if isinstance(otel, dict) else {}
        shape = (otel, resource, attributes)
        if any(each is not None and not isinstance(each, dict) for each in shape):
            new_otel["was"] = otel
        inner = resource if isinstance(resource, dict) else {}
        new_otel["resource"] = inner | {"attributes": exact | added}
        batch["otel"] = new_otel


def _records(value: object) -> list[Record]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _without_mark_ids(record: Record) -> Record:
    return {key: value for key, value in record.items() if key != "mark_ids"}


def content_name(batch: Record) -> str:
    """Derive a file name from the content of a batch."""
    return f"{digest(exactjson.dumps_sorted(batch)).hex()}.json"


def record_key(which: int, record_id: str | None, seq: int | None) -> bytes:
    """Derive an 8-byte key for a record, unique in its batch, from its kind, id and `seq`."""
    return digest(which, "" if record_id is None else f"={record_id}", str(seq))[:8]
