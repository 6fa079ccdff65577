"""Reading the records of recordings, one at a time, in bounded memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ...records.problems import ReadingProblem
from .discovery import EVENT_KEYS, Artifact, OnFinding, SourceFile, discover
from .duplicates import SeenEvents
from .events import LEGACY, canonical_event, version_of
from .exact import RecordProblem, parse_record
from .legacy import TelemetryRecordError, synthetic_session_id
from .pieces import MAX_RECORD_BYTES, Piece, array, events_of, lines
from .safe_files import UnreadableFileError, open_regular
from .timelines import timeline_pieces

_COPY_CHUNK = 2**20


@dataclass(slots=True)
class StormlogRecord:
    """A record, or another piece of a file.

    The pieces of a file, each as `before + raw`, are the file. Only a piece with an `event` is a
    telemetry event; the others are torn or damaged lines, and the end of a file.
    """

    artifact: Artifact
    file: SourceFile
    position: int
    """The number of the line, from 1; in an array, the index, from 0."""
    before: bytes
    raw: bytes
    """The record's text; empty if it was longer than 16 MiB."""
    version: int = LEGACY
    """The schema version in the file; 0 for a legacy record."""
    data: dict[str, Any] | None = None
    """The record with its own keys; a value may be an `exactjson.Raw`. None if it is not JSON."""
    event: dict[str, Any] | None = None
    """The canonical form; None if the record is not valid."""
    problems: tuple[RecordProblem, ...] = ()
    """The problems of this record, which have been reported."""
    is_duplicate: bool = False
    """Whether an earlier recording contains the event."""

    @property
    def session_id(self) -> str:
        """The session of the event."""
        return "" if self.event is None else str(self.event["session_id"])

    @property
    def path(self) -> str:
        """The place in the file, as findings contain it."""
        return f"[{self.position}]" if self.file.form != "lines" else f"line {self.position}"


class StormlogReader:
    """Reads the recordings at a path; a source is never written to.

    Damaged records are skipped and reported to `on_finding`. Several passes are possible.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        on_finding: OnFinding,
        permissive_legacy: bool = True,
        events_key: str | None = None,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        """Find the recordings at `path`. Raises InputError if there are none."""
        self.path = Path(path)
        self.on_finding = on_finding
        self.artifacts: list[Artifact] = discover(path, on_finding)
        self.permissive_legacy = permissive_legacy
        self.events_key = events_key
        self.max_record_bytes = max_record_bytes
        self._synthetic: dict[Path, str] = {}

    def records(self) -> Iterator[StormlogRecord]:
        """Yield the telemetry events of all recordings once; report what is skipped."""
        for record in self.all_pieces():
            if record.event is not None and not record.is_duplicate:
                yield record

    def all_pieces(self) -> Iterator[StormlogRecord]:
        """Yield the pieces of all recordings, and mark events that an earlier one contains."""
        if len(self.artifacts) == 1:
            yield from self.pieces(self.artifacts[0])
            return
        with SeenEvents() as seen:
            for number, artifact in enumerate(self.artifacts):
                for record in self.pieces(artifact):
                    if record.event is not None:
                        record.is_duplicate = seen.is_duplicate(record.event, number)
                    yield record

    def pieces(self, artifact: Artifact) -> Iterator[StormlogRecord]:
        """Yield every piece of a recording's files, including those that are no events."""
        for file in artifact.files:
            try:
                with open_regular(file.path, follow=file.follow) as stream:
                    for piece in self.cut(file, stream):
                        yield self.record(artifact, file, piece)
            except UnreadableFileError as error:
                self.on_finding(ReadingProblem(file.name, "unreadable", str(error)))
            except OSError as error:
                reason = error.strerror or error
                self.on_finding(
                    ReadingProblem(file.name, "unreadable", f"cannot be read: {reason}")
                )

    def cut(self, file: SourceFile, stream: BinaryIO) -> Iterator[Piece]:
        """Yield the pieces of a file that is open as `stream`."""
        limit = self.max_record_bytes
        if self.events_key is not None and file.form in (*EVENT_KEYS, "document"):
            return events_of(stream, self.events_key, limit)
        if file.form == "lines":
            return lines(stream, limit)
        if file.form == "array":
            return array(stream, limit)
        if file.form in EVENT_KEYS:
            return events_of(stream, file.form, limit)
        if file.form == "timeline":
            return timeline_pieces(stream, limit)
        return _document(stream, limit)

    def record(self, artifact: Artifact, file: SourceFile, piece: Piece) -> StormlogRecord:
        """Return the record of a piece, and report its problems."""
        record = StormlogRecord(artifact, file, piece.position, piece.before, piece.raw)
        if piece.problem not in ("", "torn"):
            self._report(record, _problem(piece, self.max_record_bytes))
            if piece.problem != "too-long" and not piece.raw:
                return record
        if not piece.raw:
            return record
        parsed = parse_record(piece.raw, piece.value)
        record.data = parsed.data
        if piece.problem == "torn" and parsed.data is None:
            record.problems = (RecordProblem("torn", "the last line is incomplete"),)
            return record
        invalid = None if parsed.data is None else self._convert(record, parsed.data)
        for problem in parsed.problems if invalid is None else (invalid,):
            self._report(record, problem)
        return record

    def _convert(self, record: StormlogRecord, data: dict[str, Any]) -> RecordProblem | None:
        """Set the record's event in its canonical form, or return the problem."""
        try:
            record.version = version_of(data)
            default = None
            if record.version in (LEGACY, 2):
                default = self._default_session(record.artifact, record.file)
            record.event = canonical_event(
                data, permissive_legacy=self.permissive_legacy, default_session_id=default
            )
        except TelemetryRecordError as error:
            return RecordProblem("invalid", str(error))
        return None

    def _default_session(self, artifact: Artifact, file: SourceFile) -> str:
        """Return the session of a file's records that name none."""
        known = artifact.segment_sessions.get(file.path.name)
        if known is not None:
            return known
        if artifact.kind in ("oom", "diagnose") and artifact.summaries:
            return artifact.summaries[0].session_id
        session = self._synthetic.get(artifact.path)
        if session is None:
            session = self._synthetic[artifact.path] = _content_session(artifact)
        return session

    def _report(self, record: StormlogRecord, problem: RecordProblem) -> None:
        record.problems = (*record.problems, problem)
        self.on_finding(
            ReadingProblem(record.file.name, problem.code, problem.message, path=record.path)
        )


def _problem(piece: Piece, limit: int) -> RecordProblem:
    if piece.problem == "too-long":
        return RecordProblem(
            "too-long", f"{piece.size} bytes: longer than {limit}, the limit; not read"
        )
    return RecordProblem("not-json", piece.problem)


def _document(stream: BinaryIO, limit: int) -> Iterator[Piece]:
    """Yield the content of a file as one record."""
    data = stream.read(limit + 1)
    if len(data) > limit:
        size = len(data)
        while chunk := stream.read(_COPY_CHUNK):
            size += len(chunk)
        yield Piece(0, b"", b"", size, "too-long")
        return
    raw = data.strip(b" \t\r\n")
    start = data.index(raw)
    if raw:
        yield Piece(0, data[:start], raw, len(raw))
    else:
        yield Piece(0, data, b"", 0, "the file is empty: expected records")
        return
    if data[start + len(raw) :]:
        yield Piece(1, data[start + len(raw) :], b"", 0)


def _content_session(artifact: Artifact) -> str:
    """Return the session id for the records of a recording that have none."""
    content = hashlib.sha256()
    for file in artifact.files:
        try:
            with open_regular(file.path, follow=file.follow) as stream:
                while chunk := stream.read(_COPY_CHUNK):
                    content.update(chunk)
        except (OSError, UnreadableFileError):
            continue
    return synthetic_session_id(content.digest())
