"""The collector's own metrics: one registry, rendered in the text formats of Prometheus.

Each process of the collector has a registry. The second process passes its metrics to the first
process as plain values, and the first process exposes the sums.
"""

from __future__ import annotations

import bisect
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...errors import MissingExtraError

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

_PREFIX: Final = "cirron_collector_"
_OPENMETRICS = "application/openmetrics-text"
BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""The upper bounds of a histogram's buckets, seconds."""


BLOBS: Final = "blobs"
"""The name of the store of snapshot files in metrics and logs."""
PARQUET: Final = "parquet"
"""The name of the columnar tables in metrics and logs."""


class MetricKind(StrEnum):
    """The type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric of the collector."""

    name: str
    """The name in Prometheus, without the suffix `_total` of a counter."""
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str
    unit: str = ""
    """The unit in UCUM notation."""


def _metric(name: str, kind: MetricKind, labels: str, meaning: str, unit: str = "1") -> Metric:
    return Metric(_PREFIX + name, kind, tuple(labels.split()), meaning, unit)


_counter = partial(_metric, kind=MetricKind.COUNTER)
_gauge = partial(_metric, kind=MetricKind.GAUGE)

RECEIVED_REQUESTS = _counter(
    "received_requests",
    labels="transport signal",
    meaning="Requests that were acknowledged; frames of TraceML that were stored",
)
RECEIVED_BYTES = _counter(
    "received_bytes",
    labels="transport signal",
    meaning="Bodies of requests that were acknowledged, decompressed",
    unit="By",
)
REFUSED_REQUESTS = _counter(
    "refused_requests",
    labels="transport signal reason",
    meaning="Requests, frames and connections that were refused, by the reasons below",
)
FORWARDED_FRAMES = _counter(
    "forwarded_frames",
    labels="result",
    meaning="Frames of TraceML that were passed on to its aggregator: `sent`, or `dropped`",
)
MISSING_STEPS = _counter(
    "missing_steps", labels="", meaning="Steps of TraceML's jobs that did not arrive"
)
REJECTED_RECORDS = _counter(
    "rejected_records",
    labels="transport signal",
    meaning="Records that were rejected in accepted requests (partial success)",
)
DUPLICATES = _counter(
    "duplicates",
    labels="",
    meaning="Duplicate requests or batches: acknowledged, but not stored again",
)
REQUEST_SECONDS = _metric(
    "request_seconds",
    MetricKind.HISTOGRAM,
    "transport signal",
    "From the arrival of a request to its acknowledgement",
    "s",
)
STORED_BATCHES = _counter(
    "stored_batches", labels="store", meaning="Batches written to the spool or the database"
)
STORED_RECORDS = _counter(
    "stored_records", labels="store kind", meaning="Spans, marks and snapshots in stored batches"
)
STORED_BYTES = _counter(
    "stored_bytes",
    labels="store",
    meaning="Bytes of stored batches, as in the spool",
    unit="By",
)
EXPORTED_BATCHES = _counter(
    "exported_batches", labels="exporter", meaning="Batches that an endpoint acknowledged"
)
EXPORTED_RECORDS = _counter(
    "exported_records", labels="exporter", meaning="Spans, marks and snapshots in exported batches"
)
EXPORTED_BYTES = _counter(
    "exported_bytes",
    labels="exporter",
    meaning="Bytes of exported batches, as in the spool",
    unit="By",
)
EXPORT_FAILURES = _counter(
    "export_failures",
    labels="exporter reason",
    meaning="Attempts that an endpoint did not acknowledge",
)
EXPORT_REJECTED_SPANS = _counter(
    "export_rejected_spans",
    labels="exporter",
    meaning="Spans that an endpoint rejected in requests that it accepted (partial success)",
)
DROPPED_BATCHES = _counter(
    "dropped_batches",
    labels="stage reason",
    meaning="Batches that a target does not receive: `evicted` from the full spool, `refused` by"
    " the target, `dead_letter`: dropped from the dead letters for lack of room",
)
DEAD_LETTERS = _counter(
    "dead_letters",
    labels="exporter",
    meaning="Batches that a target refused for good and that are kept as dead letters",
)
SET_ASIDE = _counter(
    "set_aside",
    labels="reason",
    meaning="Data set aside next to the journal: `untranslatable` requests, `damaged` files",
)
QUEUE_REQUESTS = _gauge(
    "queue_requests",
    labels="queue",
    meaning="Waiting items: requests for the `disk` and for `translation`, batches for an exporter,"
    " `database`, `parquet` or `blobs`",
)
QUEUE_BYTES = _gauge(
    "queue_bytes",
    labels="queue",
    meaning="Bytes of request bodies `in flight`, and of the `journal` on disk",
    unit="By",
)
LAG_SECONDS = _gauge(
    "lag_seconds",
    labels="stage",
    meaning="How long the oldest item has waited for `translation`, an exporter, `database` or"
    " `parquet`",
    unit="s",
)
SPOOL_BYTES = _gauge(
    "spool_bytes", labels="", meaning="Batches, snapshot files and unfinished uploads", unit="By"
)
INFO = _gauge("info", labels="version", meaning="Always 1; the label contains the version")
START_TIME = _gauge(
    "start_time_seconds", labels="", meaning="The start time of the collector, Unix time", unit="s"
)

METRICS: Final[tuple[Metric, ...]] = tuple(
    each for each in list(globals().values()) if isinstance(each, Metric)
)
_BY_NAME = {metric.name: metric for metric in METRICS}

Labels = tuple[str, ...]
Figures = Mapping[str, Any]
"""The metrics of one process as plain values; the result of `Registry.figures`."""

# The numbers of each metric: one for a counter or gauge; the sum and the count of each bucket for a
# histogram.
_Values = dict[tuple[str, Labels], list[float]]


class Registry:
    """The metrics of one collector; all threads may use it."""

    def __init__(self) -> None:
        self.started_ns = time.time_ns()
        self._run = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._local: _Values = {}
        self._ended: _Values = {}
        """The counts of processes that have ended."""
        self._others: dict[str, tuple[str, _Values]] = {}
        """The run id and the latest metrics of each process, by its name."""
        self.before: Callable[[], None] = lambda: None
        """Called from any thread before metrics are read, to set gauges."""

    def add(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        """Add `amount` to a counter."""
        with self._lock:
            self._at(metric, labels, 1)[0] += amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set the value of a gauge."""
        with self._lock:
            self._at(metric, labels, 1)[0] = float(value)

    def clear(self, metric: Metric, *labels: str) -> None:
        """Remove a value, for example that of an exporter that a reload has removed."""
        with self._lock:
            self._local.pop((metric.name, labels), None)

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Record one observation in a histogram."""
        with self._lock:
            values = self._at(metric, labels, len(BOUNDS) + 2)
            values[0] += seconds
            values[1 + bisect.bisect_left(BOUNDS, seconds)] += 1

    def _at(self, metric: Metric, labels: Labels, size: int) -> list[float]:
        values = self._local.get((metric.name, labels))
        if values is None:
            if len(labels) != len(metric.labels):
                raise ValueError(f"{metric.name} has the labels {metric.labels}, found {labels}")
            values = self._local[metric.name, labels] = [0.0] * size
        return values

    def figures(self) -> Figures:
        """Return the metrics of this process as plain values, which any format can serialize."""
        with self._lock:
            values = [
                [name, [*labels], [*numbers]] for (name, labels), numbers in self._local.items()
            ]
        return {"run": self._run, "values": values}

    def merge(self, process: str, figures: Figures) -> None:
        """Store the latest metrics of another process.

        The counters of an earlier run of that process are retained, and its gauges are removed.
        Raises ValueError if the values are not the metrics of a Registry.
        """
        run, values = str(figures["run"]), _read(figures["values"])
        with self._lock:
            self._end(process, unless=run)
            self._others[process] = (run, values)

    def end(self, process: str) -> None:
        """Record that a process has ended: its counters are retained, its gauges are removed."""
        with self._lock:
            self._end(process)

    def _end(self, process: str, unless: str | None = None) -> None:
        before = self._others.get(process)
        if before is None or before[0] == unless:
            return
        del self._others[process]
        _sum(self._ended, before[1], (MetricKind.COUNTER, MetricKind.HISTOGRAM))

    def totals(self) -> dict[Metric, list[tuple[Labels, list[float]]]]:
        """Return the sums over all processes, for each metric in the order of METRICS."""
        self.before()
        total: _Values = {}
        with self._lock:
            for values in (self._local, self._ended, *(each for _, each in self._others.values())):
                _sum(total, values, tuple(MetricKind))
        result: dict[Metric, list[tuple[Labels, list[float]]]] = {each: [] for each in METRICS}
        for (name, labels), value in sorted(total.items()):
            result[_BY_NAME[name]].append((labels, value))
        return result

    def collect(self) -> Iterator[Family]:
        """Yield the totals as metric families of prometheus-client."""
        from prometheus_client import core  # noqa: PLC0415 - needs the extra

        for metric, values in self.totals().items():
            about = (metric.name, metric.meaning)
            if metric.kind is MetricKind.HISTOGRAM:
                histogram = core.HistogramMetricFamily(*about, labels=metric.labels)
                for labels, (seconds, *counts) in values:
                    histogram.add_metric(labels, list(_cumulated(counts)), seconds)
                yield histogram
                continue
            is_counter = metric.kind is MetricKind.COUNTER
            kind = core.CounterMetricFamily if is_counter else core.GaugeMetricFamily
            family = kind(*about, labels=metric.labels)
            for labels, (value,) in values:
                family.add_metric(labels, value)
            yield family

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their content type: OpenMetrics if `accept` contains it, else the
        text format 0.0.4.

        Raises MissingExtraError if prometheus-client is not installed.
        """
        try:
            from prometheus_client import exposition  # noqa: PLC0415
            from prometheus_client.openmetrics.exposition import (  # noqa: PLC0415
                CONTENT_TYPE_LATEST,
                generate_latest,
            )
        except ModuleNotFoundError as error:
            raise MissingExtraError("collector", "the metrics for Prometheus") from error
        # Not prometheus-client's `choose_encoder`: its result may repeat text from the client.
        if _OPENMETRICS in accept.lower():
            return generate_latest(self), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        return exposition.generate_latest(self), exposition.CONTENT_TYPE_PLAIN_0_0_4


def _read(values: object) -> _Values:
    result: _Values = {}
    try:
        for name, labels, numbers in values:  # type: ignore[attr-defined]
            metric = _BY_NAME[name]
            size = len(BOUNDS) + 2 if metric.kind is MetricKind.HISTOGRAM else 1
            if len(labels) != len(metric.labels) or len(numbers) != size:
                raise ValueError(name)
            result[name, tuple(map(str, labels))] = [float(number) for number in numbers]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"these are no figures of a Registry: {error}") from None
    return result


def _sum(total: _Values, more: _Values, kinds: Iterable[MetricKind]) -> None:
    for key, values in more.items():
        if _BY_NAME[key[0]].kind in kinds:
            before = total.get(key)
            total[key] = (
                [*values]
                if before is None
                else [one + other for one, other in zip(before, values, strict=True)]
            )


def _cumulated(counts: list[float]) -> Iterator[tuple[str, float]]:
    total = 0.0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), counts, strict=True):
        total += count
        yield bound, total
