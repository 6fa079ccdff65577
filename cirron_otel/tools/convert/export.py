"""`export`: push a spool or an OTLP file to an OTLP endpoint, once or continuously.

With `--signal metrics`, the points of its memory samples are pushed instead.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ...core.analysis.run_selection import ALL, choose_run
from ...core.delivery.delivery_stats import ExportStats
from ...core.delivery.errors import PushError, PushResult, joined
from ...core.delivery.follow import Follower
from ...core.spool.paths import parse_name
from ...core.spool.reader import SpoolReader
from ...core.targets.otlp.config import OtlpConfig, Signal, default_service_name
from ...core.targets.otlp.pusher import Pusher
from ...core.translator.codec import Encoded, pushable
from ...core.translator.own.encode import SEGMENTED, SESSION_LAYOUT, Options
from ...errors import UsageError
from ..query.ingestion_slack import find_slack
from .convert import no_samples
from .formats import is_spool
from .indexing import read_sessions, temporary_index
from .metric_source import MetricSource
from .progress import BYTES, Progress, begin_stage
from .report import ExportReport, Report
from .sources import SourceContext, open_source
from .workers import MESSAGE, EncodeJob, default_jobs, encode_all

REQUEST_BYTES = 2_000_000
"""The approximate size up to which batches are sent in one request, bytes."""
DEADLINE_S = 60.0
"""The time for which an export without `--follow` continues if no request is accepted, seconds."""
_RECENT_S = 30.0
"""Every backend's search finds a run that is at most this old, in seconds."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The source to push, and options."""

    source: str
    source_format: str | None = None
    layout: str = SEGMENTED
    follow: bool = False
    run: str | None = None
    """The run to send, as in `choose_run`; None sends all runs."""
    signal: Signal = Signal.TRACES
    """`metrics` sends the points of memory samples instead of spans; `layout` does not apply."""


def export(
    request: ExportRequest,
    *,
    environ: Mapping[str, str],
    stop: threading.Event,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ExportReport:
    """Push a source; `say` receives messages for the user.

    Raises UsageError, InputError, TargetError, and EndpointError if the endpoint fails.
    """
    if request.layout not in (SEGMENTED, SESSION_LAYOUT):
        raise UsageError(f"unknown layout {request.layout!r}: expected segmented or session")
    if request.signal is Signal.METRICS:
        return _export_metrics(request, environ, stop, progress)
    if request.follow:
        if request.run is not None:
            raise UsageError("--run cannot be combined with --follow, which sends all batches")
        if "://" in request.source or not is_spool(request.source, request.source_format):
            raise UsageError(f"--follow needs a spool: {request.source} is not a spool")
    config = OtlpConfig.from_env(environ)
    options = Options(request.layout, default_service_name(environ))
    report = ExportReport(target=config.shown_endpoint)
    if request.follow:
        stats = ExportStats(config.shown_endpoint)
        Follower(request.source, config, options, stats, stop=stop, say=say).run()
        report.add(stats)
        return report
    with contextlib.ExitStack() as stack:
        before = Report()  # kept separate: reading the spool clears earlier findings
        context = SourceContext(stack, before, progress, run=request.run)
        _, source = open_source(request.source, request.source_format, context)
        report.backend = before.backend
        sends_messages = source.has_messages and request.run in (None, ALL)
        directory = "" if sends_messages else source.directory(context)
        pusher = stack.enter_context(Pusher(config, deadline=DEADLINE_S, stop=stop))
        sender = _Sender(pusher, report)
        if sends_messages:
            report.is_translated = False
            begin_stage(progress, "exporting", BYTES)
            for message, traces in source.messages(report, progress):
                content, derived_ids = pushable(message.data)
                sender.send(content, [])
                report.derived_ids += derived_ids
                report.sent_of(_earliest_end(traces))
                if stop.is_set():
                    break
        else:
            reader = SpoolReader(directory, on_finding=report.skip)
            if request.run is not None:
                choose_run(reader, request.run)
            _push_spool(reader, options, sender, report, progress, stop)
        report.add_problems(before)
        report.messages = sender.messages  # the number of messages sent, not read
    report.hint = _hint(config, report)
    return report


def _export_metrics(
    request: ExportRequest,
    environ: Mapping[str, str],
    stop: threading.Event,
    progress: Progress | None,
) -> ExportReport:
    if request.follow:
        raise UsageError("--signal metrics cannot be combined with --follow, which sends spans")
    config = OtlpConfig.from_env(environ, Signal.METRICS)
    before, report = Report(), ExportReport(target=config.shown_endpoint, points=0)
    with contextlib.ExitStack() as stack:
        context = SourceContext(stack, before, progress, run=request.run)
        _, source = open_source(request.source, request.source_format, context)
        report.backend = before.backend
        service_name = default_service_name(environ)
        points = MetricSource(source.directory(context), service_name, run=request.run)
        messages = stack.enter_context(contextlib.closing(points.messages(report, progress)))
        pusher = stack.enter_context(Pusher(config, deadline=DEADLINE_S, stop=stop))
        sender = _Sender(pusher, report)
        for message in messages:
            sender.send(message.SerializeToString(), [])
            report.written += 1
            if stop.is_set():
                break
    if not report.points:
        report.skip(no_samples(request.source, "nothing was sent"))
    report.add_problems(before)
    return report


def _hint(config: OtlpConfig, report: ExportReport) -> str:
    """Explain why the target may not show the spans that it accepted."""
    if not report.accepted or report.oldest_ns is None:
        return ""
    age_s = (time.time_ns() - report.oldest_ns) / 1e9
    slack = find_slack(config) if age_s > _RECENT_S else None
    return "" if slack is None else slack.problem(age_s)


def _earliest_end(traces: TracesData) -> int | None:
    scopes = (scope for resource in traces.resource_spans for scope in resource.scope_spans)
    return min((span.end_time_unix_nano for scope in scopes for span in scope.spans), default=None)


class _Sender:
    """Sends messages, several of them in one request, and counts the results."""

    def __init__(self, pusher: Pusher, report: ExportReport) -> None:
        self._pusher, self.report = pusher, report
        self.messages = 0
        """The number of messages sent."""
        self._waiting: list[Encoded] = []
        self._size = 0

    def add(self, item: Encoded) -> None:
        """Send a batch with the next request. Concatenated TracesData messages form one message."""
        self._waiting.append(item)
        self._size += len(item.data)
        if self._size >= REQUEST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the waiting messages."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        if not waiting:
            return
        self.send(b"".join(item.data for item in waiting), waiting)

    def send(self, data: bytes, items: list[Encoded]) -> None:
        """Send one message. Raises EndpointError, after counting the accepted spans."""
        report = self.report
        try:
            result = self._pusher.push(data)
        except PushError as error:
            self._count(error.result)
            raise
        self._count(result)
        self.messages += 1
        report.bytes_written += len(data)
        for item in items:
            report.batches += 1
            report.written += 1
            report.spans += item.spans
            report.marks += item.marks
            report.snapshots += item.snapshots
            report.bytes_read += item.size
            report.derived_ids += item.derived_ids
            report.sent_of((parse_name(item.name) or (None, ""))[0])

    def _count(self, result: PushResult) -> None:
        self.report.accepted += result.accepted_spans
        self.report.rejected += result.rejected_spans + result.refused_spans
        if message := joined(result.error_message, result.refusal):
            self.report.message = message


def _push_spool(
    reader: SpoolReader,
    options: Options,
    sender: _Sender,
    report: ExportReport,
    progress: Progress | None,
    stop: threading.Event,
) -> None:
    with temporary_index() as index:
        total = read_sessions(reader, index, options.layout, progress)
        begin_stage(progress, "exporting", BYTES)
        report.skipped.clear()
        report.skipped_count = 0
        job = EncodeJob(str(reader.paths.spool), index.path, options, MESSAGE)
        names = reader.names()
        chunks = encode_all(job, reader.paths.spool, names, index, default_jobs(), total)
        with contextlib.closing(chunks):
            for chunk in chunks:
                for finding in chunk.findings:
                    report.skip(finding)
                for item in chunk.encoded:
                    sender.add(item)
                if progress is not None:
                    progress(report.bytes_read, total)
                if stop.is_set():
                    return
            sender.flush()
