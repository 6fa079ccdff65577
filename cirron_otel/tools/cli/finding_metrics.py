"""The status and the findings of a job of `cirron-otel run`, as OTLP metrics while it runs.

One process of a run cannot find out which rank is slow. The process that started them reads the
batches of all of them from the spool, as `diagnose --live` does.
"""

# ruff: noqa: PLC0415 - imports in functions, so that a job without metrics is not delayed

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...errors import CirronOtelError, InputError
from . import output

if TYPE_CHECKING:
    from ...core.run.findings.live import LiveConclusion, LiveFindings
    from ...core.targets.otlp.metrics import OtlpMetricExporter
    from ...sdk.session.job import Job

STATUS: Final[Mapping[str, int]] = {"healthy": 0, "warning": 1, "critical": 2, "failed": 3}
"""The values of the metric `cirron.status`."""
_NICENESS: Final = 19
_TIMEOUT_MS: Final = 10_000.0


def finding_metrics_of(job: Job, environ: Mapping[str, str]) -> FindingMetrics | None:
    """Start to send the findings on a job; None if it sends no metrics or has no spool."""
    from ...core.config.exporters import are_metrics_sent

    if not job.is_spooled or not are_metrics_sent(job.config, environ):
        return None
    try:
        metrics = FindingMetrics(job, environ)
        metrics.start()
    except (CirronOtelError, RuntimeError) as error:
        output.message(f"no findings are sent as metrics: {error}")
        return None
    return metrics


class FindingMetrics:
    """Reads the batches of a job in a thread of low priority, and sends the conclusion."""

    def __init__(self, job: Job, environ: Mapping[str, str]) -> None:
        """Prepare the exporter, without a connection.

        Raises UsageError if a variable is invalid, and MissingExtraError without the extra `otlp`.
        """
        from ...core.config.exporters import are_metrics_named
        from ...core.targets.otlp.metrics import OtlpMetricExporter
        from ...sdk.session.metrics_push import interval_seconds

        self._job, self._is_named = job, are_metrics_named(environ)
        self._exporter: OtlpMetricExporter = OtlpMetricExporter(environ, self._failed)
        self._interval = interval_seconds(environ)
        self._live: LiveFindings | None = None
        self._costs: dict[str, float] = {}
        """The seconds of each kind; 0 for one that has ended."""
        self._counts: dict[str, int] = {}
        self._has_problem = self._is_over = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cirron-findings", daemon=True)

    def start(self) -> None:
        """Start the thread, which first sends after one interval. Raises RuntimeError."""
        self._thread.start()

    def finish(self) -> None:
        """Send the conclusion on the complete job, within the time that a session has at exit."""
        if self._exporter.failures and not self._exporter.exports:
            self._is_over = True  # no server answers: the end of the job does not wait for it
        self._stop.set()
        limit = self._job.exit_timeout
        self._thread.join(_TIMEOUT_MS / 1e3 if limit is None else limit)
        self._is_over = True
        self._exporter.shutdown()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        pause_s = self._interval
        while not self._is_over and not self._stop.wait(pause_s):
            begun = time.monotonic()
            self._send()
            pause_s = max(self._interval, time.monotonic() - begun)
        self._send()

    def _send(self) -> None:
        if self._is_over:
            return
        try:
            conclusion = self._conclusion()
            if conclusion is not None:
                self._exporter.export(self._metrics(conclusion), _TIMEOUT_MS)
        except InputError:
            return  # there is no spool yet
        except Exception as error:
            self._is_over = True
            output.message(f"no more findings are sent as metrics: {error}")

    def _conclusion(self) -> LiveConclusion | None:
        from ...core.run.findings.choices import Choices
        from ...core.run.findings.live import LiveFindings
        from ...core.spool.reader import SpoolReader

        if self._live is None:
            reader = SpoolReader(self._job.paths.root)
            self._live = LiveFindings(reader, self._job.run.id, Choices())
        return self._live.poll(time.time_ns())

    def _metrics(self, conclusion: LiveConclusion) -> Any:
        from opentelemetry.sdk.metrics import export as sdk
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        from ... import semconv as sc
        from ..._version import __version__
        from ...sdk.session.metrics_push import placed

        self._take(conclusion)
        now_ns = time.time_ns()

        def gauge(name: str, meaning: str, unit: str, values: Mapping[str, float]) -> sdk.Metric:
            points = [
                sdk.NumberDataPoint({sc.FINDING_KIND: kind} if kind else {}, 0, now_ns, value)
                for kind, value in values.items()
            ]
            return sdk.Metric(name, meaning, unit, sdk.Gauge(points))

        metrics = [
            gauge(sc.STATUS, "The status of the run: 0 healthy, 1 warning, 2 critical, 3 failed",
                  "{status}", {"": STATUS[conclusion.status]}),
            gauge(sc.FINDINGS, "The findings on the run, by kind; 0 once they have ended",
                  "{finding}", self._counts),
            gauge(sc.FINDING_COST, "The price of the findings in the last units, by kind",
                  "s", self._costs),
        ]  # fmt: skip
        resource = self._job.metrics_resource
        given = [each for each in placed(metrics, resource) if each.data.data_points]
        scope = sdk.ScopeMetrics(InstrumentationScope(sc.SCOPE_NAME, __version__), given, "")
        return sdk.MetricsData([sdk.ResourceMetrics(resource, [scope], "")])

    def _take(self, conclusion: LiveConclusion) -> None:
        """Set the values of the kinds; a kind that was sent once is sent with 0 from then on."""
        counts: Counter[str] = Counter()
        costs: Counter[str] = Counter()
        for kind, cost_ns in _counted(conclusion):
            counts[kind] += 1
            if cost_ns is not None:
                costs[kind] += cost_ns
        self._counts = dict.fromkeys(self._counts, 0) | dict(counts)
        self._costs = dict.fromkeys(self._costs, 0.0) | {k: v / 1e9 for k, v in costs.items()}

    def _failed(self, why: str, is_not_taken: bool) -> None:
        if is_not_taken and not self._is_named:
            self._is_over = True  # the endpoint of all signals accepts only spans
        elif not self._has_problem:
            self._has_problem = True
            output.message(f"the findings were not sent as metrics: {why}")


def _counted(conclusion: LiveConclusion) -> Iterator[tuple[str, int | None]]:
    for finding in conclusion.findings:
        if finding.severity != "notice":
            yield finding.kind, finding.cost_ns
