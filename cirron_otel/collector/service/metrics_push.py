"""Push the collector's own metrics over OTLP at a fixed interval."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from ...errors import MissingExtraError
from .exporter_options import MetricsPushOptions
from .metrics import BOUNDS, Labels, Metric, MetricKind, Registry
from .targets import metrics_endpoint

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData

_ATTEMPT_S = 10.0
_SCOPE = "cirron_otel.collector"
_SERVICE = "cirron-otel-collector"

# The registry has no minimum and maximum; the exporter omits None.
_UNKNOWN = cast(float, None)

_logger = logging.getLogger(__name__)


class MetricsPusher:
    """A thread that pushes metrics; `stop` ends it after a final push."""

    def __init__(self, registry: Registry, options: MetricsPushOptions) -> None:
        """Raise MissingExtraError if OpenTelemetry's OTLP exporters are not installed."""
        self._registry = registry
        self._interval = options.interval_s
        self._exporter = _exporter(options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-push", daemon=True)

    def start(self) -> None:
        """Start the thread; the first push follows after one interval."""
        self._thread.start()

    def stop(self, timeout: float = _ATTEMPT_S) -> bool:
        """Push once more and end; return whether that took less than `timeout` seconds."""
        self._stop.set()
        self._thread.join(timeout)
        has_ended = not self._thread.is_alive()
        self._exporter.shutdown(timeout_millis=1000)
        return has_ended

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(self._interval)
            try:
                self._exporter.export(metrics_data(self._registry), _ATTEMPT_S * 1000)
            # The exporters log failures themselves; no other error may end the thread.
            except Exception as error:
                _logger.warning("metrics were not pushed: %s", type(error).__name__)


def _exporter(options: MetricsPushOptions) -> MetricExporter:
    headers = {name: value.reveal() for name, value in options.headers.items()}
    endpoint = metrics_endpoint(options)
    try:
        if options.protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415
                OTLPMetricExporter,
            )

            insecure = urlsplit(endpoint).scheme == "http"
            return OTLPMetricExporter(endpoint, insecure, headers=headers, timeout=_ATTEMPT_S)
        from opentelemetry.exporter.otlp.proto.http import metric_exporter  # noqa: PLC0415

        return metric_exporter.OTLPMetricExporter(endpoint, headers=headers, timeout=_ATTEMPT_S)
    except ModuleNotFoundError as error:
        raise MissingExtraError("otlp", "metrics over OTLP") from error


def metrics_data(registry: Registry) -> MetricsData:
    """Return the metrics in the form that OpenTelemetry's exporters accept; sums are cumulative."""
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415 - only if it is used
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    now = time.time_ns()
    released = version("cirron-otel")
    metrics = [
        sdk.Metric(metric.name, metric.meaning, metric.unit, _data(metric, values, registry, now))
        for metric, values in registry.totals().items()
        if values
    ]
    resource = Resource({"service.name": _SERVICE, "service.version": released})
    scope = sdk.ScopeMetrics(InstrumentationScope(_SCOPE, released), metrics, "")
    return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")])


def _data(
    metric: Metric, values: Sequence[tuple[Labels, list[float]]], registry: Registry, now: int
) -> sdk.Sum | sdk.Gauge | sdk.Histogram:
    from opentelemetry.sdk.metrics import export as sdk  # noqa: PLC0415

    cumulative = sdk.AggregationTemporality.CUMULATIVE
    start = registry.started_ns
    labelled = [
        (dict(zip(metric.labels, labels, strict=True)), numbers) for labels, numbers in values
    ]
    if metric.kind is MetricKind.HISTOGRAM:
        histograms = [
            sdk.HistogramDataPoint(
                labels,
                start,
                now,
                int(sum(counts)),
                total,
                [*map(int, counts)],
                BOUNDS,
                _UNKNOWN,
                _UNKNOWN,
            )
            for labels, (total, *counts) in labelled
        ]
        return sdk.Histogram(histograms, cumulative)
    points = [sdk.NumberDataPoint(labels, start, now, numbers[0]) for labels, numbers in labelled]
    if metric.kind is MetricKind.COUNTER:
        return sdk.Sum(points, cumulative, is_monotonic=True)
    return sdk.Gauge(points)
