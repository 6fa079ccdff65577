"""`convert`: from a spool, a batch file or OTLP to any of them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.unknown_fields import UnknownFieldSet

from ..errors import CirronOtelError, InputError, UsageError
from ..otlp.files import Message
from ..spool.canonical import batch_bytes
from ..spool.findings import Finding
from ..spool.reader import SpoolReader
from ..spool.run_selection import ALL, choose_run
from ..translator.decode import Decoded
from ..translator.encode import DEFAULT_SERVICE_NAME, SEGMENTED, SESSION_LAYOUT, Options
from ..translator.translate import FromOtlp
from .codec import Encoded
from .formats import STANDARD, Kind, Place, target_place
from .indexing import read_sessions, temporary_index
from .messages import DEFAULT_LIMITS, Limits, MessageTooLongError, framed
from .report import Report
from .select import Selection
from .selecting import sessions_of
from .sources import (
    Progress,
    as_spool_if_batch,
    messages_of,
    open_source,
    parsed,
    size_of,
)
from .targets import BatchTarget, open_batches, open_traces
from .temporary import temporary_folder, writing_temporary_files
from .wire_files import WireTarget, wire_as_spool
from .workers import CIRRON, OTLP_JSON, OTLP_PROTO, Chunk, Job, default_jobs, encode_all


def default_service_name() -> str:
    """`service.name` where a record has none."""
    return os.environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE_NAME


@dataclass(frozen=True, slots=True)
class Request:
    """What to convert into what; `-` is standard input or output."""

    source: str
    target: str
    source_format: str | None = None
    target_format: str | None = None
    """`spool`, `batch`, `otlp-json`, `otlp-proto` or `cirron-proto`; None goes by the path."""
    layout: str = SEGMENTED
    select: Selection | None = None
    run: str | None = None
    """The run to convert, as in `choose_run`; None converts all."""
    jobs: int | None = None
    """Worker processes; None takes every core."""
    service_name: str = field(default_factory=default_service_name)
    limits: Limits = DEFAULT_LIMITS


def convert(request: Request, *, progress: Progress | None = None) -> Report:
    """Convert. Raises UsageError, InputError and TargetError; the report lists skipped items."""
    if request.layout not in (SEGMENTED, SESSION_LAYOUT):
        raise UsageError(f"unknown layout {request.layout!r}: expected segmented or session")
    before = Report()
    with contextlib.ExitStack() as stack:
        source = open_source(request.source, request.source_format, stack, before, progress)
        target = target_place(request.target, request.target_format, source)
        report = Report(target=target.path)
        is_selected = request.select or request.run not in (None, ALL)
        if source.is_otlp and (is_selected or target.kind is Kind.CIRRON_PROTO):
            source = otlp_as_spool(source, stack, before, request.limits)
        if source.kind is Kind.BATCH:
            source = as_spool_if_batch(source, stack)
        elif source.kind is Kind.CIRRON_PROTO:
            source = wire_as_spool(source, stack, before, request.limits)
        if not source.is_otlp:
            _from_spool(source, target, request, report, progress)
        elif target.is_otlp:
            _transcode(source, target, report, progress, request.limits)
        else:
            with open_batches(target, report, request.limits.batch_bytes) as batches:
                _from_otlp(source, batches, report, progress, request.limits)
    report.add_problems(before)
    report.backend = before.backend
    return report


# --- from Cirron --------------------------------------------------------------------------------


def _from_spool(
    source: Place, target: Place, request: Request, report: Report, progress: Progress | None
) -> None:
    reader = SpoolReader(source.path, on_finding=report.skip)
    if request.run is not None:
        choose_run(reader, request.run)
    output = CIRRON
    if target.is_otlp:
        output = OTLP_JSON if target.kind is Kind.OTLP_JSON else OTLP_PROTO
    with temporary_index() as index:
        options = Options(request.layout, request.service_name)
        if output != CIRRON or request.select:
            total = read_sessions(reader, index, request.layout)
        else:
            total = sum(size_of(reader.paths.spool / name) for name in reader.names())
        selection = request.select
        if selection and selection.has_prefixes:
            selection = selection.with_sessions(sessions_of(reader, index))
        report.skipped.clear()
        report.skipped_count = 0
        job = Job(source.path, index.path, options, output, selection, request.limits)
        jobs = request.jobs or default_jobs()
        made = encode_all(job, reader.paths.spool, reader.names(), index, jobs, total)
        with contextlib.closing(made):
            items = _chunks(made, report, progress, total)
            if selection:
                first = next(items, None)
                if first is None:
                    what = f"no record matches --select: {request.target} is unchanged"
                    report.skip(Finding(request.source, "nothing-selected", what))
                    return
                items = itertools.chain((first,), items)
            _write(items, target, report, request.limits)


def _write(items: Iterable[Encoded], target: Place, report: Report, limits: Limits) -> None:
    if not target.is_otlp:
        with _batch_target(target, report, limits) as batches:
            for item in items:
                batches.write(item.name, item.data)
        return
    with open_traces(target) as traces:
        for item in items:
            traces.write_encoded(item.data)
            report.written += item.messages
            report.messages += item.messages
            report.bytes_written += len(item.data)


@contextlib.contextmanager
def _batch_target(target: Place, report: Report, limits: Limits) -> Iterator[BatchTarget]:
    if target.kind is Kind.CIRRON_PROTO:
        with open_traces(target) as writer:
            yield WireTarget(writer, report, limits)
        return
    with open_batches(target, report, limits.batch_bytes) as batches:
        yield batches


def _chunks(
    made: Iterator[Chunk], report: Report, progress: Progress | None, total: int
) -> Iterator[Encoded]:
    for chunk in made:
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


# --- from OTLP ----------------------------------------------------------------------------------

_HEADER_ALONE = (
    "the id and time of a batch from OTLP: its messages were changed or separated from them"
)
_ADDED = "an attribute that was added in transit to a record whose attrs is not an object"
_UNKNOWN_FIELDS = "unknown protobuf fields of TracesData itself"


def _from_otlp(
    source: Place,
    batches: BatchTarget,
    report: Report,
    progress: Progress | None,
    limits: Limits,
) -> None:
    reader = FromOtlp(recall=batches.read)
    failure: InputError | None = None
    try:
        for message in messages_of(source, report, progress, limits.message_bytes):
            try:
                _take(message, reader, batches, report, source)
            except (CirronOtelError, OSError):
                raise  # of the target
            except Exception as error:
                what = f"{type(error).__name__}: {error}".rstrip(": ")
                problem = f"cannot be translated, please report it: {what}"
                where = str(message.position)
                report.skip(Finding(source.path, "untranslatable", problem, path=where))
    except InputError as error:
        failure = error  # the batches that precede it are kept
    if failure is not None and not report.batches and not reader.regrouper.open:
        raise failure
    for decoded in reader.finish():
        _store(decoded, batches, report)
    report.duplicates = reader.regrouper.duplicates
    report.lose([_HEADER_ALONE] * reader.headers_alone)
    report.lose(reader.altered.losses())
    if failure is not None:
        raise InputError(
            f"{failure}; the {report.batches} batches before it were converted"
        ) from None


def _take(
    message: Message, reader: FromOtlp, batches: BatchTarget, report: Report, source: Place
) -> None:
    whole = reader.feed_whole(message.data)
    if whole is not None:
        if whole.data:
            report.batches += 1
            report.spans += whole.spans
            report.marks += whole.marks
            report.snapshots += whole.snapshots
            batches.write(whole.name, whole.data)
        return
    traces = parsed(message, report, source)
    if traces is not None:
        if len(UnknownFieldSet(traces)):
            report.lose([_UNKNOWN_FIELDS])
        for decoded in reader.feed(traces.resource_spans):
            _store(decoded, batches, report)


def _store(decoded: Decoded, batches: BatchTarget, report: Report) -> None:
    if not decoded.complete:
        found, whole = decoded.found, decoded.expected
        line = (
            f"{decoded.name}: {found.spans} of {whole.spans} spans, {found.marks} of"
            f" {whole.marks} marks, {found.snapshots} of {whole.snapshots} snapshots"
        )
        if found.synthetic != whole.synthetic:
            line += f", {found.synthetic} of {whole.synthetic} synthetic spans"
        report.incomplete.append(line)
    if decoded.namesake is not None:
        what = f"another batch has this name but different content: stored as {decoded.name}"
        report.skip(Finding(decoded.namesake, "namesake", what))
    report.lose([f"{_ADDED}: {key!a}" for key in decoded.dropped])
    report.batches += 1
    for key in ("spans", "marks", "snapshots"):
        records = decoded.batch.get(key)
        count = len(records) if isinstance(records, list) else 0
        setattr(report, key, getattr(report, key) + count)
    batches.write(decoded.name, batch_bytes(decoded.batch))


def otlp_as_spool(
    source: Place,
    stack: contextlib.ExitStack,
    before: Report,
    limits: Limits = DEFAULT_LIMITS,
) -> Place:
    """Store the batches of an OTLP source in a temporary spool, to select records from them."""
    folder = stack.enter_context(temporary_folder())
    place = Place(str(folder), Kind.SPOOL)
    passing = Report()
    with open_batches(place, passing, limits.batch_bytes) as batches:
        _from_otlp(source, batches, passing, None, limits)
    before.add_problems(passing)
    with writing_temporary_files():
        (folder / "spool").mkdir(exist_ok=True)
    return place


def _transcode(
    source: Place, target: Place, report: Report, progress: Progress | None, limits: Limits
) -> None:
    is_json, limit = target.kind is Kind.OTLP_JSON, limits.message_bytes
    with open_traces(target) as writer:
        for message in messages_of(source, report, progress, limit):
            traces = parsed(message, report, source)
            if traces is None:
                continue
            data = traces.SerializeToString()
            try:
                made = list(framed(data, limit, is_json=is_json, traces=traces))
            except MessageTooLongError as error:
                where = str(message.position)
                report.skip(Finding(source.path, "too-large", str(error), path=where))
                continue
            for framed_data, losses in made:
                writer.write_encoded(framed_data)
                report.lose(losses)
            report.spans += sum(len(s.spans) for r in traces.resource_spans for s in r.scope_spans)
            report.written += len(made)
    if target.path != STANDARD:
        report.bytes_written = size_of(Path(target.path))
