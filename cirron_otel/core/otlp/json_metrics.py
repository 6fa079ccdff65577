"""MetricsData → OTLP/JSON, by the rules of `json_encode`: gauges and sums of numbers."""

from __future__ import annotations

from typing import Any

import orjson
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)

from .json_encode import Json, double_json, key_values_json, resource_json, scope_json


def metrics_to_json(message: MetricsData) -> bytes:
    """Return `message` as one line of OTLP/JSON, without a newline.

    Its metrics must be gauges and sums, the only kinds that are made from stored marks; their
    points must have no exemplars.
    """
    groups = [_resource_metrics(each) for each in message.resource_metrics]
    return orjson.dumps({"resourceMetrics": groups} if groups else {})


def _resource_metrics(message: ResourceMetrics) -> Json:
    return {
        "resource": resource_json(message.resource),
        "scopeMetrics": [_scope_metrics(each) for each in message.scope_metrics],
    }


def _scope_metrics(message: ScopeMetrics) -> Json:
    return {
        "scope": scope_json(message.scope),
        "metrics": [_metric(each) for each in message.metrics],
    }


def _metric(message: Metric) -> Json:
    out: Json = {
        "name": message.name,
        "description": message.description,
        "unit": message.unit,
    }
    if message.HasField("gauge"):
        out["gauge"] = {"dataPoints": [_point(each) for each in message.gauge.data_points]}
        return out
    data: dict[str, Any] = {
        "dataPoints": [_point(each) for each in message.sum.data_points],
        "aggregationTemporality": message.sum.aggregation_temporality,
    }
    if message.sum.is_monotonic:
        data["isMonotonic"] = True
    out["sum"] = data
    return out


def _point(message: NumberDataPoint) -> Json:
    out: Json = {}
    if message.attributes:
        out["attributes"] = key_values_json(message.attributes)
    if message.start_time_unix_nano:
        out["startTimeUnixNano"] = str(message.start_time_unix_nano)
    out["timeUnixNano"] = str(message.time_unix_nano)
    if message.WhichOneof("value") == "as_double":
        out["asDouble"] = double_json(message.as_double)
    else:
        out["asInt"] = str(message.as_int)
    return out
