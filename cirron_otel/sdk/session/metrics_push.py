"""Send the metrics of `Measures` over OTLP, at an interval and at the end of the session.

Counters and memory gauges are OpenTelemetry instruments of a separate MeterProvider. Histograms are
already aggregated, like those of a MetricProducer (metrics SDK specification, "MetricProducer").
The Python SDK has no MetricProducer, so `Reader` adds them to the collected metrics. It also adds
the points of samples, which have times of their own, and the gauges of marks: the SDK's gauges drop
NaN and infinities and log a line for each, but users need to see a loss that became NaN.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, Exemplar, Histogram, MeterProvider
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ... import semconv as sc
from ..._version import __version__
from ...core.config.exporters import are_metrics_named
from ...core.records.memory_points import PROCESS_USAGE
from ...core.targets.otlp.metrics import OtlpMetricExporter
from ..flush.duration_histogram import BOUNDS_NS, Lengths, exponential
from ..flush.json_attributes import text_of
from ..flush.measures import Key, Measures, bounded, gauge_name
from ..tracing.clock import wall_now
from ..tracing.costs import resident_now
from ..tracing.step_places import EPOCH_ATTRIBUTE, GLOBAL_STEP
from .errors import errors, logger, record_error, report_problem
from .run_details import without_details
from .sampled_metrics import sampled_metrics

_INTERVAL_MS = 60_000.0
_TIMEOUT_MS = 30_000.0
_LONGEST_MS = 86_400_000.0
_MOST_EXAMPLES = 20
_LONGEST_NAME = 255
"""Maximum characters of a mark's name in an attribute."""
_LOSS = gauge_name(sc.LOSS)
"""The gauge of a loss, which has no dimension; the unit of any other mark is unknown."""
_FILTERS = ("trace_based", "always_on", "always_off")
_BOUNDS = tuple(each / 1e9 for each in BOUNDS_NS)

Observed = Callable[[], list[Observation]]

HISTOGRAMS = {
    sc.STEP_DURATION: "How long steps took",
    sc.PHASE_DURATION: "How long the phases of steps took",
    sc.PHASE_GPU_DURATION: "How long phases of steps took on the device",
    sc.REQUEST_DURATION: "How long inference requests took",
}
"""Description of each histogram."""


class Reader(sdk.PeriodicExportingMetricReader):
    """A metric reader that adds the histograms and marks of a `Measures`.

    It has no thread, because the SDK's periodic reader restarts its thread in every forked child.
    """

    def __init__(
        self, exporter: OtlpMetricExporter, measures: Measures, resource: Callable[[], Resource]
    ) -> None:
        """`resource` returns the session's resource, which may change later."""
        super().__init__(exporter, export_interval_millis=math.inf)
        self._measures, self._resource_of = measures, resource
        self._process = Resource({sc.PROCESS_PID: os.getpid()})
        temporality = (exporter._preferred_temporality or {}).get(Histogram)
        self._temporality = temporality or sdk.AggregationTemporality.CUMULATIVE

    def _receive_metrics(
        self, metrics_data: sdk.MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        is_delta = self._temporality is sdk.AggregationTemporality.DELTA
        histograms = self._measures.collect(is_delta=is_delta)
        metrics = [*self._histograms(histograms, is_exponential=self._measures.is_exponential)]
        sampled = sampled_metrics(self._measures.points(), self._measures.start_ns)
        sampled_names = {metric.name for metric in sampled}
        for group in metrics_data.resource_metrics:
            for scope in group.scope_metrics:
                metrics += (each for each in scope.metrics if each.name not in sampled_names)
        metrics += sampled
        metrics += _marks(self._measures.marks(), wall_now())
        resource = self._resource_of().merge(self._process)
        scope_ = InstrumentationScope(sc.SCOPE_NAME, __version__)
        scope_metrics = sdk.ScopeMetrics(scope_, list(placed(metrics, resource)), "")
        complete = sdk.MetricsData([sdk.ResourceMetrics(resource, [scope_metrics], "")])
        super()._receive_metrics(complete, timeout_millis, **kwargs)

    def _histograms(
        self, histograms: Mapping[Key, Lengths], *, is_exponential: bool
    ) -> Iterable[sdk.Metric]:
        now_ns = wall_now()
        for name, meaning in HISTOGRAMS.items():
            series = {phase: each for (of, phase), each in histograms.items() if of == name}
            if not series:
                continue
            data: sdk.Histogram | sdk.ExponentialHistogram
            if is_exponential:
                exponentials = [_exponential(*each, now_ns) for each in series.items()]
                data = sdk.ExponentialHistogram(exponentials, self._temporality)
            else:
                points = [_explicit(*each, now_ns) for each in series.items()]
                data = sdk.Histogram(points, self._temporality)
            yield sdk.Metric(name, meaning, "s", data)


def _explicit(phase: str, lengths: Lengths, now_ns: int) -> sdk.HistogramDataPoint:
    return sdk.HistogramDataPoint(
        attributes={sc.PHASE: text_of(phase)} if phase else {},
        start_time_unix_nano=lengths.start_ns,
        time_unix_nano=now_ns,
        count=lengths.count,
        sum=lengths.sum_ns / 1e9,
        bucket_counts=[lengths.buckets.get(place, 0) for place in range(len(_BOUNDS) + 1)],
        explicit_bounds=_BOUNDS,
        min=lengths.least_ns / 1e9,
        max=lengths.most_ns / 1e9,
        exemplars=_exemplars(lengths),
    )


def _exponential(phase: str, lengths: Lengths, now_ns: int) -> sdk.ExponentialHistogramDataPoint:
    scale, offset, counts = exponential(lengths.buckets)
    return sdk.ExponentialHistogramDataPoint(
        attributes={sc.PHASE: text_of(phase)} if phase else {},
        start_time_unix_nano=lengths.start_ns,
        time_unix_nano=now_ns,
        count=lengths.count,
        sum=lengths.sum_ns / 1e9,
        scale=scale,
        zero_count=0,
        positive=sdk.Buckets(offset, counts),
        negative=sdk.Buckets(0, []),
        flags=0,
        min=lengths.least_ns / 1e9,
        max=lengths.most_ns / 1e9,
        exemplars=_exemplars(lengths),
    )


def _exemplars(lengths: Lengths) -> list[Exemplar]:
    return [
        Exemplar({}, each.length_ns / 1e9, each.time_ns, each.span_id, each.trace_id)
        for each in lengths.examples[-_MOST_EXAMPLES:]
    ]


def _marks(marks: Mapping[str, float], now_ns: int) -> Iterable[sdk.Metric]:
    """Yield a gauge for each gauge name."""
    for gauge, values in bounded(marks).items():
        points = [
            sdk.NumberDataPoint({sc.MARK_NAME: text_of(name)[:_LONGEST_NAME]}, 0, now_ns, value)
            for name, value in values
        ]
        meaning = "The last value of the marks with this name"
        unit = "1" if gauge == _LOSS else ""
        yield sdk.Metric(gauge, meaning, unit, sdk.Gauge(points))


def placed(metrics: Iterable[sdk.Metric], resource: Resource) -> Iterable[sdk.Metric]:
    """Yield metrics whose points also have the rank and the run of their resource.

    Backends that store only the attributes of points then distinguish the ranks of a run.
    """
    known = resource.attributes
    common = {key: known[key] for key in sc.POINT_ATTRIBUTES if key in known}
    for metric in metrics:
        data: Any = metric.data
        points = [
            replace(point, attributes={**common, **(point.attributes or {})})
            for point in data.data_points
        ]
        yield replace(metric, data=replace(data, data_points=points))


class Instruments:
    """Observable counters, and gauges that are created once they have values."""

    def __init__(
        self, meter: Meter, measures: Measures, drops: Callable[[], Mapping[str, int]]
    ) -> None:
        """The sending thread reads the instruments."""
        self._meter, self._measures = meter, measures
        self._known: set[str] = set()
        self._memory: dict[str, int] = {}
        meter.create_observable_counter(
            sc.DROPS, [_read(_by(sc.REASON, drops))], "{record}",
            "Dropped records, by reason: the keys of health()['drops']",
        )  # fmt: skip
        meter.create_observable_counter(
            sc.ERRORS, [_read(_by(sc.REASON, lambda: dict(errors.counts)))], "{error}",
            "Errors that were caught and not raised, by cause: health()['swallowed_errors']",
        )  # fmt: skip
        meter.create_observable_counter(
            sc.UNITS, [_read(_by(sc.UNIT, measures.units))], "{unit}",
            "Steps and inference requests that have ended",
        )  # fmt: skip
        meter.create_observable_counter(
            sc.OUTSIDE_TIME, [_read(_by(sc.ACCOUNT, measures.outside))], "s",
            "Time outside of steps, by account of the ledger",
        )  # fmt: skip
        for name, key, unit in (
            (sc.CURRENT_EPOCH, EPOCH_ATTRIBUTE, "{epoch}"),
            (sc.CURRENT_STEP, GLOBAL_STEP, "{step}"),
        ):
            meter.create_observable_gauge(
                name, [_read(partial(self._placed, key))], unit,
                f"The attribute {key} of the last step that has ended",
            )  # fmt: skip
        meter.create_observable_up_down_counter(
            PROCESS_USAGE.name, [_read(self._resident)], PROCESS_USAGE.unit,
            PROCESS_USAGE.description,
        )  # fmt: skip

    def _resident(self) -> list[Observation]:
        """Return the current resident set, unless the sampler records it."""
        resident = None if self._measures.is_process_sampled else resident_now()
        return [Observation(resident)] if resident is not None else []

    def _placed(self, key: str) -> list[Observation]:
        place = self._measures.place()
        return [Observation(place[key])] if key in place else []

    def look(self) -> None:
        """Create instruments for values that have appeared since the last call."""
        self._memory = self._measures.memory()
        if self._memory and sc.STEP_MEMORY_PEAK not in self._known:
            self._known.add(sc.STEP_MEMORY_PEAK)
            self._meter.create_observable_gauge(
                sc.STEP_MEMORY_PEAK, [_read(_by(sc.MEMORY_KIND, lambda: self._memory))], "By",
                "The highest memory peak of the steps since the last export",
            )  # fmt: skip
        if self._measures.samples and sc.SAMPLES not in self._known:
            self._known.add(sc.SAMPLES)
            self._meter.create_observable_counter(
                sc.SAMPLES, [_read(lambda: [Observation(self._measures.samples)])], "{sample}",
                "Samples of the steps that report their number of samples",
            )  # fmt: skip


def _by(key: str, counts: Callable[[], Mapping[str, int | float]]) -> Observed:
    return lambda: [Observation(value, {key: each}) for each, value in counts().items()]


def _read(observed: Observed) -> Callable[[CallbackOptions], list[Observation]]:
    """Return a callback that counts its errors, so that they affect no other instrument."""

    def safely(_: CallbackOptions) -> list[Observation]:
        try:
            return observed()
        except Exception as error:
            record_error("metrics", error)
            return []

    return safely


class MetricsPush:
    """The thread that sends metrics. Errors are counted and logged once."""

    def __init__(
        self,
        environ: Mapping[str, str],
        resource: Callable[[], Resource],
        drops: Callable[[], Mapping[str, int]],
    ) -> None:
        """Create the thread without starting it.

        Raises UsageError if an environment variable is invalid, and MissingExtraError if the `otlp`
        extra is not installed.
        """
        self._is_named = are_metrics_named(environ)
        self._exporter = OtlpMetricExporter(environ, self._failed)
        self._where = self._exporter.config.shown_endpoint
        aggregation = (self._exporter._preferred_aggregation or {}).get(Histogram)
        self.measures = Measures(
            is_exponential=isinstance(aggregation, ExponentialBucketHistogramAggregation),
            examples=_examples(environ),
        )
        self._interval = interval_seconds(environ)
        self._timeout_ms = _milliseconds(environ, "OTEL_METRIC_EXPORT_TIMEOUT", _TIMEOUT_MS)
        self._reader = Reader(self._exporter, self.measures, lambda: without_details(resource()))
        self._provider = MeterProvider(
            [self._reader],
            without_details(resource()),
            AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        meter = self._provider.get_meter(sc.SCOPE_NAME, __version__)
        self._instruments = Instruments(meter, self.measures, drops)
        # `put` is safe in a signal handler that interrupted another `put`.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._is_last = self._is_over = self._has_ended = False
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._run, name="cirron-otel-metrics", daemon=True
        )  # fmt: skip

    def start(self) -> None:
        """Start the thread, which first exports after one interval.

        Raises RuntimeError if no thread can start.
        """
        self._thread.start()

    def request_flush(self) -> None:
        """Request the last export and the end of the thread, without waiting."""
        if os.getpid() == self._pid:
            self._is_last = True
            self._wake.put(None)

    def finish(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the last export, then give up."""
        if os.getpid() != self._pid:
            return
        self.request_flush()
        if self._thread.is_alive():
            self._thread.join(min(timeout, threading.TIMEOUT_MAX))
        if self._thread.is_alive() and not self._is_over:
            record_error("metrics export", f"{self._where} did not accept the last metrics in time")
        elif not self._has_ended and not self._is_over:
            record_error("metrics", "the thread that sends metrics ended unexpectedly")
        self._is_over = True
        try:
            self._exporter.shutdown()
        except Exception as error:
            record_error("metrics", error)

    def abandon(self) -> None:
        """In a forked child: stop; the thread and the connection belong to the parent."""
        self._is_over = True
        self._exporter.abandon()

    def stats(self) -> dict[str, Any]:
        """Return the state for `health()`; it contains no secrets."""
        return {
            "target": self._where,
            "exports": self._exporter.exports,
            "failures": self._exporter.failures,
            "last_error": self._exporter.last_error,
            "is_running": self._thread.is_alive(),
        }

    def _run(self) -> None:
        is_last = False
        while not is_last and not self._is_over:
            with contextlib.suppress(Empty):
                self._wake.get(timeout=self._interval)
            is_last = self._is_last
            try:
                self._instruments.look()
                self._reader.collect(self._timeout_ms)
            except Exception as error:
                record_error("metrics", error)
        self._has_ended = True

    def _failed(self, why: str, is_not_taken: bool) -> None:
        if not is_not_taken or self._is_named:
            record_error("metrics export", f"{self._where} did not accept the metrics: {why}")
            return
        # The endpoint was set for all signals, but this backend (Jaeger, Tempo) accepts only spans.
        self._is_over = self.measures.is_off = True
        logger.info(
            "cirron-otel: metrics: %s does not accept metrics (%s): no more are sent",
            self._where, why,
        )  # fmt: skip


def metrics_of(
    environ: Mapping[str, str],
    resource: Callable[[], Resource],
    drops: Callable[[], Mapping[str, int]],
) -> MetricsPush:
    """Create the metrics thread without starting it. Raises the same errors as `MetricsPush`."""
    push = MetricsPush(environ, resource, drops)
    for warning in push._exporter.config.warnings:
        if "_METRICS_" in warning:  # the span exporter reports the other warnings
            report_problem("metrics", warning)
    return push


def interval_seconds(environ: Mapping[str, str]) -> float:
    """Return the seconds between two exports; an invalid variable is reported."""
    return _milliseconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS) / 1e3


def _examples(environ: Mapping[str, str]) -> str:
    value = environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "").strip().lower() or _FILTERS[0]
    if value not in _FILTERS:
        expected = ", ".join(_FILTERS)
        report_problem(
            "metrics", f"OTEL_METRICS_EXEMPLAR_FILTER is {value!a:.60}: expected {expected}"
        )
        return _FILTERS[0]
    return value


def _milliseconds(environ: Mapping[str, str], variable: str, default: float) -> float:
    value = environ.get(variable, "").strip()
    try:
        milliseconds = float(value) if value else default
    except ValueError:
        milliseconds = math.nan
    if milliseconds > 0:
        return min(milliseconds, _LONGEST_MS)
    report_problem(
        "metrics", f"{variable} is {value!a:.60}: expected milliseconds above 0; using {default:g}"
    )  # fmt: skip
    return default
