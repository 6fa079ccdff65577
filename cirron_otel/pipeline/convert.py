"""`convert`: from a spool, a batch file or OTLP to any of them."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ..errors import InputError, TargetError, UsageError
from ..ids import digest
from ..otlp.files import Message, read_messages
from ..query.address import is_query_address, parse_address
from ..spool.canonical import batch_bytes
from ..spool.findings import Finding
from ..spool.reader import MAX_BATCH_BYTES, SpoolReader
from ..spool.writer import name_of
from ..translator.decode import Decoded
from ..translator.encode import DEFAULT_SERVICE_NAME, SEGMENTED, SESSION_LAYOUT, Options
from ..translator.translate import FromOtlp
from .formats import STANDARD, Kind, Place, source_place, target_place
from .light import LightBatch, light
from .report import Report
from .select import Selection
from .sessions import SessionIndex
from .targets import BatchTarget, open_batches, open_traces
from .workers import CIRRON, OTLP_JSON, OTLP_PROTO, Chunk, Job, default_jobs, encode_all

Progress = Callable[[int, int | None], None]
"""(bytes done, bytes in all if known)."""


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
    """`spool`, `batch`, `otlp-json` or `otlp-proto`; None goes by the path."""
    layout: str = SEGMENTED
    select: Selection | None = None
    jobs: int | None = None
    """Worker processes; None takes every core."""
    service_name: str = field(default_factory=default_service_name)


def convert(request: Request, *, progress: Progress | None = None) -> Report:
    """Convert. Raises UsageError, InputError and TargetError; what was skipped is reported."""
    if request.layout not in (SEGMENTED, SESSION_LAYOUT):
        raise UsageError(f"unknown layout {request.layout!r}: expected segmented or session")
    before = Report()
    with contextlib.ExitStack() as stack:
        source = open_source(request.source, request.source_format, stack, before, progress)
        target = target_place(request.target, request.target_format, source)
        report = Report(target=target.path)
        if source.is_otlp and request.select:
            source = _as_spool(source, stack, before)
        if source.kind is Kind.BATCH:
            source = as_spool_if_batch(source, stack)
        if not source.is_otlp:
            _from_spool(source, target, request, report, progress)
        elif target.is_otlp:
            _transcode(source, target, report, progress)
        else:
            with open_batches(target, report) as batches:
                _from_otlp(source, batches, report, progress)
    for finding in before.skipped:
        report.skip(finding)
    report.incomplete += before.incomplete
    report.duplicates += before.duplicates
    report.backend = before.backend
    return report


def open_source(
    source: str,
    told: str | None,
    stack: contextlib.ExitStack,
    report: Report,
    progress: Progress | None = None,
) -> Place:
    """The source, as files: what a storage or a backend for traces holds is brought into some.

    They are there until `stack` is left. What a backend lacks is in `report`.
    """
    if is_query_address(source):
        if told is not None:
            raise UsageError("--from says what a file holds: leave it out for jaeger: and tempo:")
        return _from_backend(source, stack, report, progress)
    if "://" in source:
        from ..storage.source import copy_to_spool  # noqa: PLC0415 - brings drivers
        from ..storage.url import is_storage_url  # noqa: PLC0415

        if is_storage_url(source):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cirron-otel-"))
            copy_to_spool(source, folder)
            (Path(folder) / "spool").mkdir(exist_ok=True)
            return Place(folder, Kind.SPOOL)
    return source_place(source, told)


def _from_backend(
    source: str, stack: contextlib.ExitStack, report: Report, progress: Progress | None
) -> Place:
    """What Jaeger or Tempo has, as a temporary OTLP file."""
    from ..query.fetch import fetch  # noqa: PLC0415 - needs an extra

    address = parse_address(source, os.environ)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cirron-otel-"))
    path = Path(folder) / "traces.binpb"
    with path.open("wb") as file:
        report.backend = fetch(address, file, progress)
    return Place(str(path), Kind.OTLP_PROTO)


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("standard input is closed: name a file instead of -")
    return sys.stdin.buffer


# --- from Cirron --------------------------------------------------------------------------------


def as_spool_if_batch(source: Place, stack: contextlib.ExitStack) -> Place:
    """A spool that holds nothing but the one batch file of `source`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cirron-otel-")))
    if source.path == STANDARD:
        name, data = "", _standard_input().read(MAX_BATCH_BYTES + 1)
    else:
        name = Path(source.path).name
        try:
            with Path(source.path).open("rb") as file:
                data = file.read(MAX_BATCH_BYTES + 1)
        except OSError as error:
            what = error.strerror or error
            raise InputError(f"{source.path} cannot be read: {what}") from None
    if not name.endswith(".json"):
        try:
            name = name_of(data)
        except TargetError:
            name = f"{digest(data).hex()}.json"
    (folder / "spool").mkdir()
    (folder / "spool" / name).write_bytes(data)
    reader = SpoolReader(folder)
    if reader.read(name) is None:
        found = reader.findings[0].message if reader.findings else "not named *.json"
        raise InputError(f"{source.path} is no batch: {found}")
    return Place(str(folder), Kind.SPOOL)


def _from_spool(
    source: Place, target: Place, request: Request, report: Report, progress: Progress | None
) -> None:
    reader = SpoolReader(source.path, on_finding=report.skip)
    output = CIRRON
    if target.is_otlp:
        output = OTLP_JSON if target.kind is Kind.OTLP_JSON else OTLP_PROTO
    with tempfile.TemporaryDirectory(prefix="cirron-otel-") as folder:
        index = SessionIndex(Path(folder) / "sessions.sqlite")
        options = Options(request.layout, request.service_name)
        if output != CIRRON or request.select:
            total = read_sessions(reader, index, request.layout)
        else:
            total = sum(_size(reader.paths.spool / name) for name in reader.names())
        report.skipped.clear()
        report.skipped_count = 0
        job = Job(source.path, index.path, options, output, request.select)
        jobs = request.jobs or default_jobs()
        made = encode_all(job, reader.paths.spool, reader.names(), index, jobs, total)
        with contextlib.closing(index), contextlib.closing(made):
            if output == CIRRON:
                with open_batches(target, report) as batches:
                    for item_name, data in _chunks(made, report, progress, total):
                        batches.write(item_name, data)
            else:
                with open_traces(target) as traces:
                    for _, data in _chunks(made, report, progress, total):
                        traces.write_encoded(data)
                        report.written += 1
                        report.messages += 1
                        report.bytes_written += len(data)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _chunks(
    made: Iterator[Chunk], report: Report, progress: Progress | None, total: int
) -> Iterator[tuple[str, bytes]]:
    for chunk in made:
        for finding in chunk.findings:
            report.skip(finding)
        for item in chunk.encoded:
            report.batches += 1
            report.spans += item.spans
            report.marks += item.marks
            report.snapshots += item.snapshots
            report.bytes_read += item.size
            yield item.name, item.data
            if progress is not None:
                progress(report.bytes_read, total)


def read_sessions(reader: SpoolReader, index: SessionIndex, layout: str) -> int:
    """Fill the index from a spool; returns the bytes of its batches."""
    total = records = 0

    def read(name: str) -> LightBatch | None:
        nonlocal total
        file = reader.read(name, check=False)  # what is no batch is found when it is encoded
        if file is None:
            return None
        total += len(file.data)
        with contextlib.suppress(InputError):
            return light(file.data)
        return None

    for name in reader.names():
        batch = read(name)
        if batch is None:
            continue
        records += len(batch.spans) + len(batch.marks) + len(batch.snapshots)
        index.observe(batch, name)
    size = total
    index.look_again(lambda: filter(None, map(read, reader.names())))
    if layout == SEGMENTED and records > SEGMENT_FROM:
        index.count_all(read)
    index.commit()
    return size


SEGMENT_FROM = 4000
"""A spool with fewer records is one trace a session, whatever the layout."""


# --- from OTLP ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_source(place: Place) -> Iterator[BinaryIO]:
    if place.path == STANDARD:
        yield _standard_input()
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(place.path).open("rb"))
        except OSError as error:
            what = error.strerror or error
            raise InputError(f"{place.path} cannot be read: {what}") from None
        yield file


def messages_of(source: Place, report: Report, progress: Progress | None) -> Iterator[Message]:
    """The messages of an OTLP source, counted; what is skipped is reported.

    Raises InputError where the source cannot be read on.
    """

    def on_error(position: int, problem: str) -> None:
        report.skip(Finding(source.path, "unreadable", problem, path=str(position)))

    total = None if source.path == STANDARD else _size(Path(source.path))
    with _open_source(source) as stream:
        try:
            for message in read_messages(stream, source.form, on_error=on_error, validate=False):
                report.lose(message.warnings)
                report.messages += 1
                report.bytes_read += len(message.data)
                yield message
                if progress is not None:
                    done = stream.tell() if total is not None else report.bytes_read
                    progress(done, total)
        except InputError as error:
            raise InputError(f"{source.path}: {error}") from None


def _from_otlp(
    source: Place, batches: BatchTarget, report: Report, progress: Progress | None
) -> None:
    reader = FromOtlp()
    failure: InputError | None = None
    try:
        for message in messages_of(source, report, progress):
            _take(message, reader, batches, report, source)
    except InputError as error:
        failure = error  # what came before it is not lost
    if failure is not None and not report.batches and not reader.regrouper.open:
        raise failure
    for decoded in reader.finish():
        _store(decoded, batches, report)
    report.duplicates = reader.regrouper.duplicates
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
        for decoded in reader.feed(traces.resource_spans):
            _store(decoded, batches, report)


def parsed(message: Message, report: Report, source: Place) -> TracesData | None:
    """The message as an object; None where it is none, which is reported."""
    try:
        return TracesData.FromString(message.data)
    except DecodeError:
        what = "no TracesData in protobuf"
        report.skip(Finding(source.path, "unreadable", what, path=str(message.position)))
        return None


def _store(decoded: Decoded, batches: BatchTarget, report: Report) -> None:
    if not decoded.complete:
        found, whole = decoded.found, decoded.expected
        report.incomplete.append(
            f"{decoded.name}: {found.spans} of {whole.spans} spans, {found.marks} of"
            f" {whole.marks} marks, {found.snapshots} of {whole.snapshots} snapshots"
        )
    report.batches += 1
    for key in ("spans", "marks", "snapshots"):
        records = decoded.batch.get(key)
        count = len(records) if isinstance(records, list) else 0
        setattr(report, key, getattr(report, key) + count)
    batches.write(decoded.name, batch_bytes(decoded.batch))


def _as_spool(source: Place, stack: contextlib.ExitStack, before: Report) -> Place:
    """A temporary spool with what an OTLP source holds, so that it can be selected from."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cirron-otel-"))
    place = Place(folder, Kind.SPOOL)
    passing = Report()
    with open_batches(place, passing) as batches:
        _from_otlp(source, batches, passing, None)
    for finding in passing.skipped:
        before.skip(finding)
    before.incomplete += passing.incomplete
    before.duplicates += passing.duplicates
    (Path(folder) / "spool").mkdir(exist_ok=True)
    return place


def _transcode(source: Place, target: Place, report: Report, progress: Progress | None) -> None:
    with open_traces(target) as writer:
        for message in messages_of(source, report, progress):
            traces = parsed(message, report, source)
            if traces is None:
                continue
            report.lose(writer.write_message(traces))
            report.spans += sum(len(s.spans) for r in traces.resource_spans for s in r.scope_spans)
            report.written += 1
    if target.path != STANDARD:
        report.bytes_written = _size(Path(target.path))
