"""`export`: push a spool or an OTLP file to an OTLP endpoint, once or for as long as it grows."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, TargetError, UsageError
from ..exporter.config import OtlpConfig
from ..exporter.otlp import Pusher, PushError, StoppedError
from ..spool.findings import Finding
from ..spool.reader import SpoolReader
from ..translator.encode import DEFAULT_SERVICE_NAME, SEGMENTED, SESSION_LAYOUT, Options
from .codec import Encoded, encode, pushable
from .convert import Progress, as_spool_if_batch, messages_of, parsed, read_sessions
from .cursor import Cursor
from .formats import Kind, Place, source_place
from .light import LightBatch, light
from .report import Report
from .sessions import SessionIndex
from .workers import MESSAGE, Job, default_jobs, encode_all

REQUEST_BYTES = 2_000_000
"""Batches are sent together up to about this size."""
UNDECIDED_SECONDS = 60.0
"""How long a batch waits until it is known whose session its records belong to."""
POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to push, and how."""

    source: str
    source_format: str | None = None
    layout: str = SEGMENTED
    follow: bool = False


@dataclass(slots=True)
class ExportReport(Report):
    """What an export did; `bytes_written` are those of the requests, uncompressed."""

    accepted: int = 0
    """Spans that the endpoint took."""
    rejected: int = 0
    """Spans that it refused by a partial success."""
    message: str = ""
    """What it said about them."""

    @property
    def exit_code(self) -> int:
        """0 if everything was accepted; 1 if something was skipped or rejected."""
        return 1 if self.skipped_count or self.incomplete or self.rejected else 0

    def to_json(self) -> dict[str, Any]:
        """The report for machines."""
        own = {"accepted": self.accepted, "rejected": self.rejected, "message": self.message}
        return Report.to_json(self) | own


def export(
    request: ExportRequest,
    *,
    environ: Mapping[str, str],
    stop: threading.Event,
    progress: Progress | None = None,
) -> ExportReport:
    """Push. Raises UsageError, InputError, and EndpointError where the endpoint fails."""
    if request.layout not in (SEGMENTED, SESSION_LAYOUT):
        raise UsageError(f"unknown layout {request.layout!r}: expected segmented or session")
    source = source_place(request.source, request.source_format)
    if request.follow and source.kind is not Kind.SPOOL:
        raise UsageError(f"--follow needs a spool: {request.source} is none")
    config = OtlpConfig.from_env(environ)
    options = Options(request.layout, environ.get("OTEL_SERVICE_NAME") or DEFAULT_SERVICE_NAME)
    report = ExportReport(target=config.shown_endpoint)
    deadline = None if request.follow else 60.0
    with contextlib.ExitStack() as stack:
        if source.kind is Kind.BATCH:
            source = as_spool_if_batch(source, stack)
        pusher = stack.enter_context(Pusher(config, deadline=deadline, stop=stop))
        sender = _Sender(pusher, report)
        if request.follow:
            _Follower(source.path, options, sender, config.shown_endpoint).run(stop)
        elif source.is_otlp:
            for message in messages_of(source, report, progress):
                if parsed(message, report, source) is not None:
                    sender.send(pushable(message.data), [])
                if stop.is_set():
                    break
        else:
            _push_spool(source, options, sender, report, progress, stop)
    return report


class _Sender:
    """Sends messages, several in one request, and counts what becomes of them."""

    def __init__(self, pusher: Pusher, report: ExportReport) -> None:
        self._pusher, self.report = pusher, report
        self._waiting: list[Encoded] = []
        self._size = 0
        self.sent: list[str] = []
        """Names of batches that were acknowledged since the caller last looked."""

    def add(self, item: Encoded) -> None:
        """Send a batch with the next request. TracesData messages joined are one message."""
        self._waiting.append(item)
        self._size += len(item.data)
        if self._size >= REQUEST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        if not waiting:
            return
        self.send(b"".join(item.data for item in waiting), waiting)
        self.sent += [item.name for item in waiting]

    def send(self, data: bytes, items: list[Encoded]) -> None:
        """Send one message. Raises EndpointError; what was accepted before is counted."""
        report = self.report
        try:
            result = self._pusher.push(data)
        except PushError as error:
            self._count(error.result)
            raise
        self._count(result)
        report.messages += 1
        report.bytes_written += len(data)
        for item in items:
            report.batches += 1
            report.written += 1
            report.spans += item.spans
            report.marks += item.marks
            report.snapshots += item.snapshots
            report.bytes_read += item.size

    def _count(self, result: Any) -> None:
        self.report.accepted += result.accepted_spans
        self.report.rejected += result.rejected_spans
        if result.error_message:
            self.report.message = result.error_message


def _push_spool(
    source: Place,
    options: Options,
    sender: _Sender,
    report: ExportReport,
    progress: Progress | None,
    stop: threading.Event,
) -> None:
    reader = SpoolReader(source.path, on_finding=report.skip)
    with tempfile.TemporaryDirectory(prefix="cirron-otel-") as folder:
        index = SessionIndex(Path(folder) / "sessions.sqlite")
        total = read_sessions(reader, index, options.layout)
        report.skipped.clear()
        report.skipped_count = 0
        job = Job(source.path, index.path, options, MESSAGE)
        names = reader.names()
        made = encode_all(job, reader.paths.spool, names, index, default_jobs(), total)
        with contextlib.closing(index), contextlib.closing(made):
            for chunk in made:
                for finding in chunk.findings:
                    report.skip(finding)
                for item in chunk.encoded:
                    sender.add(item)
                if progress is not None:
                    progress(report.bytes_read, total)
                if stop.is_set():
                    return
            sender.flush()


def _index_at(path: Path) -> SessionIndex:
    """The index of an export that goes on; one that is damaged is made anew from the spool."""
    try:
        return SessionIndex(path, durable=True)
    except sqlite3.OperationalError as error:
        raise TargetError(
            f"cannot use {path} ({error}): another export may be following this spool"
        ) from None
    except sqlite3.DatabaseError:
        path.unlink()
        return SessionIndex(path, durable=True)


class _Follower:
    """Exports a spool as it grows.

    A batch whose records do not say their session waits, on disk where it stands, until the scopes
    it refers to are recorded, at most 60 s. What an endpoint has is kept in a cursor, so that a
    restart goes on where this stopped; a request that was in flight may come twice.
    """

    def __init__(self, source: str, options: Options, sender: _Sender, target: str) -> None:
        self._reader = SpoolReader(source, on_finding=self._found)
        self._options, self._sender = options, sender
        state = self._reader.paths.state
        self._cursor = Cursor(state, target)
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise TargetError(f"cannot write {state}: {error.strerror or error}") from None
        self._index = _index_at(state / f"{self._cursor.path.stem}.sqlite")
        self._waiting: dict[str, float] = {}
        """Batches that were seen and not sent yet, by when they were seen (monotonic seconds)."""
        self._seen: set[str] = set()
        self._broken: set[str] = set()

    def _found(self, finding: Finding) -> None:
        if finding.name not in self._broken and finding.code != "torn":
            self._broken.add(finding.name)
            self._sender.report.skip(finding)

    def run(self, stop: threading.Event) -> None:
        """Go on until `stop` is set."""
        try:
            while not stop.is_set():
                self._observe()
                self._send_decided()
                stop.wait(POLL_SECONDS)
        except StoppedError:
            pass
        finally:
            self._save()
            self._index.close(commit=False)  # what was counted and not sent is counted again

    def _observe(self) -> None:
        for name, batch in self._new():
            self._index.observe(batch)
            self._seen.add(name)
            if name not in self._cursor:
                self._waiting[name] = time.monotonic()
        self._seen &= set(self._waiting) | {n for n in self._seen if n > self._cursor.mark}

    def _new(self) -> Iterator[tuple[str, LightBatch]]:
        for name in self._reader.names():
            if name in self._seen or name in self._broken or name <= self._cursor.mark:
                continue
            file = self._reader.read(name)
            if file is not None:
                with contextlib.suppress(InputError):
                    yield name, light(file.data)

    def _send_decided(self) -> None:
        now = time.monotonic()
        self._index.resolve.cache_clear()
        for name in sorted(self._waiting):
            file = self._reader.read(name)
            if file is None:
                del self._waiting[name]
                self._found(Finding(name, "evicted", "gone before it could be sent"))
                continue
            batch = light(file.data)
            late = now - self._waiting[name] > UNDECIDED_SECONDS
            if not late and self._index.undecided(batch):
                continue
            if self._options.layout == SEGMENTED:
                self._index.count(batch)
            del self._waiting[name]
            item = encode(name, file.data, self._index, self._options)
            self._sender.add(item._replace(data=pushable(item.data)))
        self._sender.flush()
        self._save()

    def _save(self) -> None:
        if self._sender.sent:
            for name in self._sender.sent:
                self._cursor.acknowledge(name)
            self._sender.sent.clear()
            self._index.commit()
            self._cursor.save(self._waiting)
