"""Split serialized requests at span boundaries, without parsing the spans or losing content.

A request is a TracesData or ExportTraceServiceRequest, which have the same wire format. Every part
repeats the content around its spans: resource, scope, schema URLs, and unknown fields. A request of
metrics has the same structure, so it is split between its metrics.
Unknown fields of the request itself go into the first part.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from .wire import LEN, encode_varint, fields, varint_size

_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2
"""The field numbers of the repeated children of TracesData, ResourceSpans and ScopeSpans
(trace/v1/trace.proto)."""


def split_request(data: bytes, max_bytes: int) -> list[bytes]:
    """Return `data` as requests of at most `max_bytes` each; unchanged if it fits.

    The spans keep their order. If a span with the content around it is longer than the limit, it
    goes into a request of its own, which exceeds the limit. Raises InputError if `data` is not a
    request.
    """
    if len(data) <= max_bytes:
        return [data]
    request = _Request(data)
    return [
        request.assemble(units, first=index == 0)
        for index, units in enumerate(request.packed(max_bytes))
    ]


def halve_request(data: bytes) -> tuple[bytes, bytes] | None:
    """Return `data` as two requests of about the same size; None if it is a single span."""
    request = _Request(data)
    if len(request.units) < 2:
        return None
    half = sum(unit.size for unit in request.units) / 2
    cut, size = 0, 0
    while cut < len(request.units) - 1 and (cut == 0 or size < half):
        size += request.units[cut].size
        cut += 1
    return (
        request.assemble(request.units[:cut], first=True),
        request.assemble(request.units[cut:], first=False),
    )


def count_spans(data: bytes) -> int:
    """Count the spans in the request `data`. Raises InputError if `data` is not a request."""
    try:
        message = TracesData.FromString(data)
    except DecodeError:  # for example, the parser refuses invalid UTF-8, which a server may accept
        return sum(unit.size > 0 for unit in _Request(data).units)
    return sum(len(scope.spans) for rs in message.resource_spans for scope in rs.scope_spans)


def count_points(data: bytes) -> int:
    """Count the points of gauges and sums in a request of metrics.

    Raises DecodeError if `data` is not a request.
    """
    message = MetricsData.FromString(data)
    return sum(
        len(metric.gauge.data_points) + len(metric.sum.data_points)
        for group in message.resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
    )


class _Around(NamedTuple):
    """A message: the position of its field, its children's fields, and the fields around them."""

    start: int
    stop: int
    before: bytes
    after: bytes
    children: list[tuple[int, int, int]]
    """(start, value, stop) of each child's field."""

    @property
    def overhead(self) -> int:
        """The number of bytes that every part of this message repeats, with tag and length."""
        return 1 + varint_size(self.stop - self.start) + len(self.before) + len(self.after)


def _around(data: bytes, place: tuple[int, int, int], child: int) -> _Around:
    before, after = list[bytes](), list[bytes]()
    children: list[tuple[int, int, int]] = []
    start, value, stop = place
    for number, wire_type, *field in fields(data, value, stop):
        if number == child and wire_type == LEN:
            children.append((field[0], field[1], field[2]))
        else:
            (after if children else before).append(data[field[0] : field[2]])
    return _Around(start, stop, b"".join(before), b"".join(after), children)


class _Unit(NamedTuple):
    """A unit that is never split: a span, or a ScopeSpans or ResourceSpans without spans."""

    resource: int
    """The index of the unit's ResourceSpans in the request."""
    scope: int
    """The index of the unit's ScopeSpans in the request; -1 for a ResourceSpans without any."""
    start: int
    """The position of the span's field in the request."""
    stop: int

    @property
    def size(self) -> int:
        """The size of the span's field in bytes; 0 if there is no span."""
        return self.stop - self.start


class _Request:
    """A request split into units."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        whole = _around(data, (0, 0, len(data)), _RESOURCE_SPANS)
        self._unknown = whole.before + whole.after
        self._resources: list[_Around] = []
        self._scopes: list[_Around] = []
        self.units: list[_Unit] = []
        for place in whole.children:
            self._add_resource(_around(data, place, _SCOPE_SPANS))
        self._units_of_resource = Counter(unit.resource for unit in self.units)
        self._units_of_scope = Counter(unit.scope for unit in self.units)

    def _add_resource(self, resource: _Around) -> None:
        number = len(self._resources)
        self._resources.append(resource)
        for place in resource.children:
            scope = _around(self._data, place, _SPANS)
            spans = [(start, stop) for start, _, stop in scope.children] or [(0, 0)]
            self.units += [_Unit(number, len(self._scopes), *span) for span in spans]
            self._scopes.append(scope)
        if not resource.children:
            self.units.append(_Unit(number, -1, 0, 0))

    def packed(self, max_bytes: int) -> list[list[_Unit]]:
        """Return all units in order, in groups whose requests stay within `max_bytes`."""
        parts: list[list[_Unit]] = [[]]
        size = len(self._unknown)
        for unit in self.units:
            last = parts[-1][-1] if parts[-1] else None
            added = unit.size + self._overhead(unit, last)
            if last is not None and size + added > max_bytes:
                parts.append([])
                size, added = 0, unit.size + self._overhead(unit, None)
            parts[-1].append(unit)
            size += added
        return parts

    def _overhead(self, unit: _Unit, last: _Unit | None) -> int:
        """Return the number of bytes that `unit` adds after `last`, not counting its span."""
        size = 0
        if last is None or last.resource != unit.resource:
            size += self._resources[unit.resource].overhead
        if unit.scope >= 0 and (last is None or last.scope != unit.scope):
            size += self._scopes[unit.scope].overhead
        return size

    def assemble(self, units: list[_Unit], *, first: bool) -> bytes:
        """Return the request that contains only `units`, in order."""
        parts = [
            self._resource_spans(number, list(group))
            for number, group in groupby(units, key=lambda unit: unit.resource)
        ]
        return b"".join(parts) + (self._unknown if first else b"")

    def _resource_spans(self, number: int, units: list[_Unit]) -> bytes:
        resource = self._resources[number]
        if len(units) == self._units_of_resource[number]:
            return self._data[resource.start : resource.stop]
        parts = [
            self._scope_spans(scope, list(group))
            for scope, group in groupby(units, key=lambda unit: unit.scope)
        ]
        return _field(_RESOURCE_SPANS, resource.before, parts, resource.after)

    def _scope_spans(self, number: int, units: list[_Unit]) -> bytes:
        scope = self._scopes[number]
        if len(units) == self._units_of_scope[number]:
            return self._data[scope.start : scope.stop]
        spans = [self._data[unit.start : unit.stop] for unit in units]
        return _field(_SCOPE_SPANS, scope.before, spans, scope.after)


def _field(number: int, before: bytes, children: list[bytes], after: bytes) -> bytes:
    payload = b"".join((before, *children, after))
    return encode_varint(number << 3 | LEN) + encode_varint(len(payload)) + payload
