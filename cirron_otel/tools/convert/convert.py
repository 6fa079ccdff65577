"""`convert`: convert any source of the tables (tables.py) to any target."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from ...core.analysis.run_selection import ALL, choose_run
from ...core.otlp.formats import Encoding
from ...core.otlp.json_metrics import metrics_to_json
from ...core.otlp.wire import encode_varint
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import SpoolReader
from ...core.targets.otlp.config import Signal, default_service_name
from ...core.translator.codec import Encoded
from ...core.translator.own.encode import SEGMENTED, SESSION_LAYOUT, Options
from ...errors import UsageError
from .formats import PathSpec, source_place, target_place
from .indexing import read_sessions, temporary_index
from .messages import DEFAULT_LIMITS, MessageTooLongError, SizeLimits, framed
from .metric_source import MetricSource
from .progress import BYTES, Progress, begin_stage
from .report import Report
from .select import Selection
from .selecting import sessions_of
from .sources import BatchSource, SourceContext, open_source, size_of
from .tables import SOURCES, STANDARD, TARGETS, TargetRow, joined
from .targets import MessageTarget, TargetWriter
from .workers import Chunk, EncodeJob, default_jobs, encode_all


@dataclass(frozen=True, slots=True)
class ConvertRequest:
    """The source, the target and the options; `-` is standard input or output."""

    source: str
    target: str
    source_format: str | None = None
    target_format: str | None = None
    """The name of a row in the table of targets. If this or `source_format` is None, the path
    decides."""
    layout: str = SEGMENTED
    select: Selection | None = None
    run: str | None = None
    """The run to convert, as in `choose_run`; None converts all runs."""
    jobs: int | None = None
    """The number of worker processes; None means one for each core."""
    service_name: str = field(default_factory=default_service_name)
    limits: SizeLimits = DEFAULT_LIMITS
    join: str | None = None
    """A spool: records of the same process and thread are attached to its scopes."""
    signal: Signal = Signal.TRACES
    """`metrics` writes the points of memory samples instead of records; `layout` and `jobs` do not
    apply."""


def convert(request: ConvertRequest, *, progress: Progress | None = None) -> Report:
    """Convert a source, and return a report that lists skipped items.

    Raises UsageError, InputError and TargetError.
    """
    if request.signal is Signal.METRICS:
        return _convert_metrics(request, progress)
    if request.layout not in (SEGMENTED, SESSION_LAYOUT):
        raise UsageError(f"unknown layout {request.layout!r}: expected segmented or session")
    before = Report()
    request, rank = _joined_rank(request)
    is_selected = bool(request.select) or request.run not in (None, ALL)
    with contextlib.ExitStack() as stack:
        context = SourceContext(
            stack, before, progress, request.limits, request.join, rank, request.run
        )
        row, source = open_source(request.source, request.source_format, context)
        if request.join is not None and not row.can_join:
            names = [name for name, each in SOURCES.items() if each.can_join]
            raise UsageError(f"--join needs a source of the kind {joined(names, 'or')}")
        place = target_place(request.target, request.target_format, row)
        target = TARGETS[place.format]
        report = Report(target=place.path)
        if source.has_messages and target.takes_messages and not is_selected:
            with target.open(place, report, request.limits) as writer:
                _transcode(source, place, writer, report, request, progress)
            if place.path != STANDARD:
                report.bytes_written = size_of(Path(place.path))
        elif source.is_streamed and target.can_recall and not is_selected:
            with target.open(place, report, request.limits) as writer:
                _stream(source, writer, report, progress)
        else:
            directory = source.directory(context)
            _from_spool(directory, place, target, request, report, progress)
    report.add_problems(before)
    report.backend = before.backend
    return report


def _joined_rank(request: ConvertRequest) -> tuple[ConvertRequest, int]:
    """Return the rank whose steps records are attached to, and the request without it.

    Raises UsageError if the request selects several ranks.
    """
    selection = request.select
    if request.join is None or selection is None or not selection.ranks:
        return request, 0
    row = SOURCES[source_place(request.source, request.source_format).format]
    if not row.joins_rank:
        return request, 0
    first, last = selection.ranks[0]
    if len(selection.ranks) > 1 or first != last:
        raise UsageError("--join attaches records to the steps of one rank: select one rank")
    return replace(request, select=replace(selection, ranks=())), first


def _convert_metrics(request: ConvertRequest, progress: Progress | None) -> Report:
    source_row = SOURCES[source_place(request.source, request.source_format).format]
    place = target_place(request.target, request.target_format, source_row)
    target = TARGETS[place.format]
    if not target.takes_messages:
        formats = joined((name for name, row in TARGETS.items() if row.takes_messages), "or")
        raise UsageError(
            f"--signal metrics writes OTLP, but {place.path} would be in the format {place.format}:"
            f" name a .jsonl or .binpb file, or use --to {formats}"
        )
    before, report = Report(), Report(target=place.path, points=0)
    with contextlib.ExitStack() as stack:
        context = SourceContext(stack, before, progress, request.limits, run=request.run)
        _, source = open_source(request.source, request.source_format, context)
        points = MetricSource(
            source.directory(context),
            request.service_name,
            selection=request.select,
            run=request.run,
        )
        messages = stack.enter_context(contextlib.closing(points.messages(report, progress)))
        first = next(messages, None)
        if first is None:
            report.skip(no_samples(request.source, f"{request.target} is unchanged"))
        else:
            with target.open(place, report, request.limits) as writer:
                for message in itertools.chain((first,), messages):
                    data = _metrics_framed(message, place)
                    report.bytes_written += len(data)
                    writer.write_messages((data,))
    report.add_problems(before)
    report.backend = before.backend
    return report


def no_samples(source: str, consequence: str) -> ReadingProblem:
    """Return the finding about a source without a memory sample, or with none selected."""
    return ReadingProblem(
        source, "no-samples", f"no memory sample to make points of: {consequence}"
    )


def _metrics_framed(message: MetricsData, place: PathSpec) -> bytes:
    if place.form.encoding is Encoding.JSON:
        return metrics_to_json(message) + b"\n"
    data: bytes = message.SerializeToString()
    return encode_varint(len(data)) + data


def _from_spool(
    directory: str,
    place: PathSpec,
    target: TargetRow,
    request: ConvertRequest,
    report: Report,
    progress: Progress | None,
) -> None:
    reader = SpoolReader(directory, on_finding=report.skip, on_progress=progress)
    if request.run is not None:
        begin_stage(progress, "finding the run")
        choose_run(reader, request.run)
    reader.on_progress = None
    with temporary_index() as index:
        options = Options(request.layout, request.service_name)
        if target.takes_messages or request.select:
            total = read_sessions(reader, index, request.layout, progress)
        else:
            total = sum(size_of(reader.paths.spool / name) for name in reader.names())
        selection = request.select
        if selection and selection.has_prefixes:
            selection = selection.with_sessions(sessions_of(reader, index))
        report.skipped.clear()
        report.skipped_count = 0
        known = place.path if target.has_keys else ""
        job = EncodeJob(
            directory, index.path, options, target.encoding, selection, request.limits, known
        )
        jobs = request.jobs or default_jobs()
        begin_stage(progress, "converting", BYTES)
        chunks = encode_all(job, reader.paths.spool, reader.names(), index, jobs, total)
        with contextlib.closing(chunks):
            items = _items(chunks, report, progress, total)
            if selection:
                first = next(items, None)
                if first is None:
                    what = f"no record matches --select: {request.target} is unchanged"
                    report.skip(ReadingProblem(request.source, "nothing-selected", what))
                    return
                items = itertools.chain((first,), items)
            with target.open(place, report, request.limits) as writer:
                writer.use_spool(reader.paths.root)
                for item in items:
                    writer.take(item)


def _items(
    chunks: Iterator[Chunk], report: Report, progress: Progress | None, total: int
) -> Iterator[Encoded]:
    for chunk in chunks:
        for finding in chunk.findings:
            report.skip(finding)
        for item in chunk.encoded:
            report.batches += 1
            report.spans += item.spans
            report.marks += item.marks
            report.snapshots += item.snapshots
            report.bytes_read += item.size
            yield item
            if progress is not None:
                progress(report.bytes_read, total)


def _stream(
    source: BatchSource, writer: TargetWriter, report: Report, progress: Progress | None
) -> None:
    """Write the batches of a source directly, without a temporary spool or worker processes."""
    begin_stage(progress, "converting", BYTES)
    for batch in source.batches(report, writer.read, progress):
        report.batches += 1
        report.spans += batch.spans
        report.marks += batch.marks
        report.snapshots += batch.snapshots
        writer.write(batch.name, batch.data)


def _transcode(
    source: BatchSource,
    place: PathSpec,
    writer: MessageTarget,
    report: Report,
    request: ConvertRequest,
    progress: Progress | None,
) -> None:
    """Write the messages of a source in the target's encoding, otherwise unchanged."""
    is_json, limit = place.form.encoding is Encoding.JSON, request.limits.message_bytes
    begin_stage(progress, "converting", BYTES)
    for message, traces in source.messages(report, progress):
        data = traces.SerializeToString()
        try:
            parts = list(framed(data, limit, is_json=is_json, traces=traces))
        except MessageTooLongError as error:
            where = str(message.position)
            report.skip(ReadingProblem(request.source, "too-large", str(error), path=where))
            continue
        writer.write_messages(framed_data for framed_data, _ in parts)
        for _, losses in parts:
            report.lose(losses)
        report.spans += sum(len(s.spans) for r in traces.resource_spans for s in r.scope_spans)
