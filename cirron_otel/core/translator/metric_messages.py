"""Write metric points as OTLP messages (MetricsData), grouped by session, instrument and series."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Metric,
    MetricsData,
    NumberDataPoint,
)

from ... import semconv as sc
from ..._version import __version__
from ..records.memory_points import (
    INSTRUMENTS,
    Attributes,
    Instrument,
    MemoryPoint,
    Number,
    PointKind,
)
from .header import Origin, write_resource
from .values import UINT64_MAX, add, is_int

CONFLICT = "a point of a series that has a point with another value at the same time"
OUT_OF_RANGE = "a value or a time beyond 64 bits"

_ORDER = {instrument: number for number, instrument in enumerate(INSTRUMENTS)}
_TEMPORALITY = {
    PointKind.UP_DOWN: AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE,
    PointKind.CHANGE: AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA,
}

_point_time = attrgetter("time_unix_nano")

_OriginKey = tuple[str | None, int | None, int | None]
_SeriesKey = tuple[_OriginKey, str, Attributes]


@dataclass(slots=True)
class MetricOrigin:
    """The process that a session's points come from, which becomes the resource of the points."""

    session_id: str
    start_ns: int
    """The start of all cumulative sums: the earliest known time of the session, Unix ns."""
    pid: int | None = None
    rank: int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    """The other resource attributes."""

    @property
    def key(self) -> _OriginKey:
        """The fields that distinguish one origin from another."""
        return self.session_id, self.pid, self.rank

    def point_attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes of the resource that each point repeats."""
        for key in sc.POINT_ATTRIBUTES:
            value = self.rank if key == sc.RANK else self.attributes.get(key)
            if value is not None:
                yield key, value


class MetricsBuilder:
    """Collects points, and builds messages with the points collected since the last one.

    A second point of a series at the same time is left out: it repeats a reading, as in the marks
    of several devices. If its value differs, it is counted among the losses.
    """

    def __init__(self, service_name: str) -> None:
        """`service_name` is the `service.name` of origins that have none."""
        self._service_name = service_name
        self._last: dict[_SeriesKey, tuple[int, Number]] = {}
        self._groups: dict[_OriginKey, tuple[MetricOrigin, dict[Instrument, Metric]]] = {}
        self.size = 0
        """The number of points that the next message contains."""
        self.losses: list[str] = []
        """The reason for each point that was left out and is not a repetition."""

    def add(self, origin: MetricOrigin, points: Iterable[MemoryPoint]) -> int:
        """Add the points of a mark; return how many of them the next message contains."""
        before = self.size
        for point in points:
            self._add(origin, point)
        return self.size - before

    def _add(self, origin: MetricOrigin, point: MemoryPoint) -> None:
        instrument, attributes, time_ns, value = point
        is_too_large = type(value) is int and not is_int(value)
        if is_too_large or time_ns > UINT64_MAX:
            self.losses.append(OUT_OF_RANGE)
            return
        series = origin.key, instrument.name, attributes
        last = self._last.get(series)
        if last is not None and last[0] == time_ns:
            if last[1] != value:
                self.losses.append(CONFLICT)
            return
        self._last[series] = time_ns, value
        start_ns = 0
        if instrument.kind is PointKind.UP_DOWN:
            start_ns = min(origin.start_ns, time_ns)
        elif instrument.kind is PointKind.CHANGE:
            start_ns = min(origin.start_ns if last is None else last[0], time_ns)
        metric = self._metric(origin, instrument)
        added = _points_of(metric, instrument).add()
        for key, common in origin.point_attributes():
            add(added.attributes, key, common)
        _write_point(added, attributes, start_ns, time_ns, value)
        self.size += 1

    def _metric(self, origin: MetricOrigin, instrument: Instrument) -> Metric:
        _, metrics = self._groups.setdefault(origin.key, (origin, {}))
        metric = metrics.get(instrument)
        if metric is None:
            metric = metrics[instrument] = Metric(
                name=instrument.name, description=instrument.description, unit=instrument.unit
            )
            temporality = _TEMPORALITY.get(instrument.kind)
            if temporality is not None:
                metric.sum.aggregation_temporality = temporality
        return metric

    def take(self) -> MetricsData:
        """Return the message, with its points in order of time, and begin the next one."""
        message = MetricsData()
        for origin, metrics in self._groups.values():
            group = message.resource_metrics.add()
            name = None if sc.SERVICE_NAME in origin.attributes else self._service_name
            resource = Origin(origin.session_id, origin.pid, origin.rank, name, origin.attributes)
            write_resource(group.resource, resource)
            scope_metrics = group.scope_metrics.add()
            scope_metrics.scope.name, scope_metrics.scope.version = sc.SCOPE_NAME, __version__
            for instrument in sorted(metrics, key=_ORDER.__getitem__):
                metric = metrics[instrument]
                _points_of(metric, instrument).sort(key=_point_time)
                scope_metrics.metrics.append(metric)
        self._groups.clear()
        self.size = 0
        return message


def _points_of(metric: Metric, instrument: Instrument) -> Any:
    data = metric.gauge if instrument.kind is PointKind.GAUGE else metric.sum
    return data.data_points


def _write_point(
    point: NumberDataPoint, attributes: Attributes, start_ns: int, time_ns: int, value: Number
) -> None:
    for key, text in attributes:
        add(point.attributes, key, text)
    point.start_time_unix_nano, point.time_unix_nano = start_ns, time_ns
    if type(value) is int:
        point.as_int = value
    else:
        point.as_double = value
