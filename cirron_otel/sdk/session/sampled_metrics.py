"""The points of the sampler's marks as metrics of OpenTelemetry's SDK, for the live export."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.sdk.metrics import export as sdk

from ...core.records.memory_points import Instrument, MemoryPoint, PointKind


def sampled_metrics(points: Iterable[MemoryPoint], start_ns: int) -> list[sdk.Metric]:
    """Return a metric for each instrument, with all of its points.

    `start_ns` is the start of the session. Up-down counters are cumulative for every preference of
    temporality, as the specification requires of exporters.
    """
    by_instrument: dict[Instrument, list[sdk.NumberDataPoint]] = {}
    for instrument, attributes, time_ns, value in points:
        start = start_ns if instrument.kind is PointKind.UP_DOWN else 0
        point = sdk.NumberDataPoint(dict(attributes), min(start, time_ns), time_ns, value)
        by_instrument.setdefault(instrument, []).append(point)
    return [_metric(*each) for each in by_instrument.items()]


def _metric(instrument: Instrument, points: list[sdk.NumberDataPoint]) -> sdk.Metric:
    data: sdk.Gauge | sdk.Sum = sdk.Gauge(points)
    if instrument.kind is PointKind.UP_DOWN:
        data = sdk.Sum(points, sdk.AggregationTemporality.CUMULATIVE, is_monotonic=False)
    return sdk.Metric(instrument.name, instrument.description, instrument.unit, data)
