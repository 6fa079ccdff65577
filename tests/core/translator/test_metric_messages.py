"""Messages of points: resource, series, start times, repetitions; and their JSON."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from cirron_otel._version import __version__
from cirron_otel.core.otlp.json_metrics import metrics_to_json
from cirron_otel.core.records.memory_points import (
    ALLOCATOR,
    CHANGE,
    DEVICE_USAGE,
    INSTRUMENTS,
    PROCESS_USAGE,
    UTILIZATION,
    MemoryPoint,
)
from cirron_otel.core.translator.metric_messages import (
    CONFLICT,
    OUT_OF_RANGE,
    MetricOrigin,
    MetricsBuilder,
)

GPU = (("hw.id", "cuda:0"),)
SESSION = "ba3676a708c4f309b2a08a542aca6b34"


def origin(**changes: Any) -> MetricOrigin:
    return MetricOrigin(SESSION, 100, **{"pid": 7, "rank": 0, **changes})


def as_json(message: MetricsData) -> Any:
    return json.loads(metrics_to_json(message))


def data_points(message: MetricsData) -> list[Any]:
    (group,) = message.resource_metrics
    (metric,) = group.scope_metrics[0].metrics
    return list(getattr(metric, metric.WhichOneof("data") or "").data_points)


def test_the_points_of_a_message_are_in_order_of_time() -> None:
    """A mark that waited for its scope is sealed after later ones; backends reject older points."""
    builder = MetricsBuilder("cirron")
    for time_ns in (300, 100, 200):
        builder.add(origin(), [MemoryPoint(PROCESS_USAGE, (), time_ns, time_ns + 1)])
    found = [(point.time_unix_nano, point.as_int) for point in data_points(builder.take())]
    assert found == [(100, 101), (200, 201), (300, 301)]


def test_a_message() -> None:
    builder = MetricsBuilder("cirron")
    points = [
        MemoryPoint(UTILIZATION, GPU, 300, 0.25),
        MemoryPoint(DEVICE_USAGE, GPU, 300, 7),
        MemoryPoint(DEVICE_USAGE, GPU, 400, 8),
        MemoryPoint(CHANGE, GPU, 400, -1),
    ]
    attributes_of_run = {"host.name": "h", "cirron.run.name": "mine"}
    assert builder.add(origin(attributes=attributes_of_run), points) == 4
    message = builder.take()
    (group,) = as_json(message)["resourceMetrics"]
    assert group["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "cirron"}},
        {"key": "process.pid", "value": {"intValue": "7"}},
        {"key": "cirron.rank", "value": {"intValue": "0"}},
        {"key": "cirron.session.id", "value": {"stringValue": SESSION}},
        {"key": "host.name", "value": {"stringValue": "h"}},
        {"key": "cirron.run.name", "value": {"stringValue": "mine"}},
    ]
    (scope,) = group["scopeMetrics"]
    assert scope["scope"] == {"name": "cirron", "version": __version__}
    usage, change, utilization = scope["metrics"]
    attributes = [
        {"key": "cirron.rank", "value": {"intValue": "0"}},
        {"key": "cirron.run.name", "value": {"stringValue": "mine"}},
        {"key": "hw.id", "value": {"stringValue": "cuda:0"}},
    ]
    times = {"startTimeUnixNano": "100", "timeUnixNano": "300"}
    assert usage == {
        "name": "hw.gpu.memory.usage",
        "description": DEVICE_USAGE.description,
        "unit": "By",
        "sum": {
            "aggregationTemporality": 2,
            "dataPoints": [
                {"attributes": attributes, **times, "asInt": "7"},
                {"attributes": attributes, **times, "timeUnixNano": "400", "asInt": "8"},
            ],
        },
    }
    assert change["sum"]["aggregationTemporality"] == 1
    assert "isMonotonic" not in change["sum"]
    assert utilization["gauge"]["dataPoints"] == [
        {"attributes": attributes, "timeUnixNano": "300", "asDouble": 0.25}
    ]
    assert builder.size == 0
    assert as_json(builder.take()) == {}


def test_the_json_of_every_instrument_is_protobufs() -> None:
    builder = MetricsBuilder("cirron")
    points = [MemoryPoint(each, GPU, 300, at / 2) for at, each in enumerate(INSTRUMENTS)]
    builder.add(origin(attributes={"a": [1, {"b": None}], "service.name": "mine"}), points)
    message = builder.take()
    parsed = json_format.Parse(metrics_to_json(message), MetricsData())
    assert parsed == message
    (group,) = message.resource_metrics
    assert [each.name for each in group.scope_metrics[0].metrics] == [i.name for i in INSTRUMENTS]
    names = [each.value.string_value for each in group.resource.attributes if "name" in each.key]
    assert names == ["mine"]


def test_a_change_begins_with_the_last_one() -> None:
    builder = MetricsBuilder("cirron")
    builder.add(origin(), [MemoryPoint(CHANGE, GPU, 300, 1)])
    builder.take()
    builder.add(origin(), [MemoryPoint(CHANGE, GPU, 400, 1), MemoryPoint(CHANGE, GPU, 350, 1)])
    earlier, later = data_points(builder.take())
    assert (later.start_time_unix_nano, later.time_unix_nano) == (300, 400)
    assert (earlier.start_time_unix_nano, earlier.time_unix_nano) == (350, 350)


def test_a_series_has_one_point_at_a_time() -> None:
    builder = MetricsBuilder("cirron")
    same = MemoryPoint(PROCESS_USAGE, (), 300, 5)
    assert builder.add(origin(), [same, same, MemoryPoint(PROCESS_USAGE, (), 300, 6)]) == 1
    builder.take()
    assert builder.add(origin(), [same]) == 0
    assert builder.losses == [CONFLICT]
    assert builder.add(origin(rank=1), [same]) == 1
    kinds = [(("cirron.memory.kind", kind),) for kind in ("allocated", "reserved")]
    assert builder.add(origin(), [MemoryPoint(ALLOCATOR, kind, 300, 5) for kind in kinds]) == 2
    assert len(builder.take().resource_metrics) == 2


def test_values_beyond_64_bits_are_reported() -> None:
    builder = MetricsBuilder("cirron")
    points = [
        MemoryPoint(PROCESS_USAGE, (), at, value)
        for at, value in ((1, 2**63), (2, -(2**63) - 1), (2**64, 5), (3, 2**63 - 1))
    ]
    assert builder.add(origin(), points) == 1
    assert builder.losses == [OUT_OF_RANGE] * 3
    (point,) = data_points(builder.take())
    assert (point.as_int, point.start_time_unix_nano) == (2**63 - 1, 3)
