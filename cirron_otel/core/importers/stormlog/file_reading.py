"""Read the files of a recording, and prepare their events as marks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from ...records.problems import ReadingProblem
from .discovery import Artifact, SourceFile
from .fast_lines import FastLine
from .marks import (
    ARRAY,
    COUNTERS,
    LINES,
    identity_of,
    in_order,
    is_text_of,
    json_text,
    session_of,
    text_json,
    with_sorted_keys,
)
from .phase_store import Sample
from .pieces import MAX_RECORD_BYTES, Piece, lines
from .prepared import NOWHERE, LineRun, NewEvent, Preparation
from .safe_files import UnreadableFileError, open_regular

ROLLUPS: Final = "rollups.json"
"""Stormlog derives this file from the segments of a sink."""
_BLOCK: Final = 1 << 17
_MAX_TIME: Final = 2**63


def read_recording(
    preparation: Preparation, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Read everything; `progress` receives the number of bytes read so far."""
    for artifact in preparation.reader.artifacts:
        preparation.begin()
        for file in artifact.files:
            _read_file(preparation, artifact, file)
            progress(preparation.bytes_read)
        for path in artifact.attachments:
            if path.name != ROLLUPS:
                preparation.attach(artifact, path)
    preparation.finish()


def _read_file(preparation: Preparation, artifact: Artifact, file: SourceFile) -> None:
    reading = RecordingFile(preparation, artifact, file)
    try:
        with open_regular(file.path, follow=file.follow) as stream:
            reading.read(stream)
    except UnreadableFileError as error:
        preparation.on_finding(ReadingProblem(file.name, "unreadable", str(error)))
    except OSError as error:
        reason = error.strerror or error
        preparation.on_finding(ReadingProblem(file.name, "unreadable", f"cannot be read: {reason}"))
    reading.finish()


class RecordingFile:
    """The state of reading one file: its text around the records, and where it differs."""

    def __init__(self, preparation: Preparation, artifact: Artifact, file: SourceFile) -> None:
        """Begin with the first piece of the file."""
        self._preparation, self._artifact, self._file = preparation, artifact, file
        self._form = LINES if file.form == "lines" else ARRAY
        self._is_timeline = file.form == "timeline"
        self._number = len(preparation.files)
        preparation.files.append(file.name)
        self._count = 0
        self._head = b""
        self._separator: bytes | None = None
        self._tail = b""
        self._is_complete = True
        self._lines, self._writer = preparation.lines, preparation.writer
        self._session: FastLine | None = None
        """A line with the session fields of the last one."""

    def read(self, stream: BinaryIO) -> None:
        """Add all records of the file."""
        if self._form == LINES:
            self._read_lines(stream)
            return
        for piece in self._preparation.reader.cut(self._file, stream):
            self._preparation.bytes_read += len(piece.before) + piece.size
            self._take(piece)

    def _read_lines(self, stream: BinaryIO) -> None:
        """Read a segment in blocks of complete lines."""
        number = 0
        while block := stream.read(_BLOCK):
            if not block.endswith(b"\n"):
                block += stream.readline(MAX_RECORD_BYTES + 1)
            is_whole = block.endswith(b"\n")
            raws = block[:-1].split(b"\n") if is_whole else []
            parsed = self._lines.parse_block(raws) if is_whole else None
            if parsed is not None and self._separator in (None, b"\n"):
                self._preparation.bytes_read += len(block)
                self._add_lines(raws, parsed)
                number += len(raws)
                continue
            rest: BinaryIO = io.BytesIO(block)
            if len(block) > MAX_RECORD_BYTES and not is_whole:
                stream.seek(-len(block), io.SEEK_CUR)
                rest = stream  # a line that is too long: the end of it is not in the block
            for piece in lines(rest, MAX_RECORD_BYTES):
                self._preparation.bytes_read += len(piece.before) + piece.size
                piece.position += number
                piece.before, self._tail = self._tail + piece.before, b""
                self._take(piece)
            number += len(raws)

    def _add_lines(self, raws: list[bytes], parsed: list[FastLine]) -> None:
        """Add the lines of a block, of which each follows from its parsed form."""
        self._place(self._tail)
        self._separator = self._tail = b"\n"
        metadata_of = self._lines.metadata_of
        run: LineRun | None = None
        session = self._session
        for raw, line in zip(raws, parsed, strict=True):
            metadata = metadata_of(line)
            if session is None or not _is_same_session(line, session):
                self._add_run(run)
                run, session = None, line
            if metadata is None or (run is None and (run := self._new_run(line)) is None):
                self._add_run(run)
                run, place = None, (self._number, self._count)
                self._count += 1
                self._take_exactly(Piece(self._count, b"", raw, len(raw)), place)
            else:
                run.lines.append(line)
                run.metadata.append(metadata)
                run.raws.append(raw)
        self._add_run(run)
        self._session = session

    def _new_run(self, line: FastLine) -> LineRun | None:
        """Begin a run with a line; return None if the line's group is not known yet."""
        group = self._preparation.group_of_line(line)
        if group is None:
            return None
        return LineRun(self._artifact, self._file, self._number, self._count, group)

    def _add_run(self, run: LineRun | None) -> None:
        if run is not None:
            self._preparation.add_run(run)
            self._count += len(run.lines)

    def _take(self, piece: Piece) -> None:
        """Add the next piece of the file."""
        if self._is_timeline:
            self._take_of_timeline(piece)
        elif piece.raw:
            place = (self._number, self._count)
            self._place(piece.before)
            self._count += 1
            self._take_exactly(piece, place)
        else:
            self._tail = piece.before
            self._is_complete = self._is_complete and not piece.problem
            self._report(piece)

    def _take_exactly(self, piece: Piece, place: tuple[int, int]) -> None:
        raw = piece.raw
        record = self._preparation.reader.record(self._artifact, self._file, piece)
        event = record.event
        if event is not None and event["timestamp_ns"] < _MAX_TIME:
            self._add_exact(place, raw, event)
            return
        if event is not None:
            self._preparation.on_finding(
                ReadingProblem(
                    self._file.name,
                    "out-of-range",
                    f"timestamp_ns is {event['timestamp_ns']}: expected less than 2^63",
                    path=record.path,
                )
            )
        self._note("texts", [*place, text_json(raw)], len(raw))

    def _report(self, piece: Piece) -> None:
        if piece.problem:
            self._preparation.reader.record(self._artifact, self._file, piece)

    def _take_of_timeline(self, piece: Piece) -> None:
        """Add a record of a timeline, whose text is in no file, or the file's own text."""
        if not piece.raw:
            self._report(piece)
            self._preparation.document(self._artifact, self._file.name, piece.before)
            return
        event = self._preparation.reader.record(self._artifact, self._file, piece).event
        if event is not None and event["timestamp_ns"] < _MAX_TIME:
            self._add_exact(NOWHERE, b"", event)

    def _place(self, before: bytes) -> None:
        """Note the text before a record if it is not the usual one."""
        if self._count == 0:
            self._head = before
        elif self._separator is None:
            self._separator = before
        elif before != self._separator:
            self._note("gaps", [self._number, self._count, text_json(before)], len(before))

    def _note(self, kind: str, value: Any, size: int) -> None:
        preparation = self._preparation
        preparation.note(preparation.group_of(self._artifact), kind, value, size + 50)

    def _add_exact(self, place: tuple[int, int], raw: bytes, event: dict[str, Any]) -> None:
        event = in_order(event)
        metadata = event["metadata"]
        kept = b"" if not raw or is_text_of(event, raw, self._form) else raw
        text = self._writer.write(
            event["timestamp_ns"], event["event_type"], event["allocator_allocated_bytes"],
            tuple(event[key] for key in COUNTERS), event["collector"],
            event["sampling_interval_ms"], event["context"],
            json_text(metadata) if metadata else "", kept,
        )  # fmt: skip
        repeated = event | {"metadata": with_sorted_keys(metadata)}
        is_plain = self._form == LINES or is_text_of(repeated, raw, self._form)
        sizes = (event["allocator_allocated_bytes"], event["allocator_reserved_bytes"])
        new = NewEvent(
            self._artifact, self._file, place, self._preparation.group(session_of(event)),
            identity_of(event), event["timestamp_ns"], event["event_type"],
            Sample.of(*sizes, event["collector"]), raw, not kept and is_plain,
            text, metadata, lambda: event,
        )  # fmt: skip
        self._preparation.add(new)

    def finish(self) -> None:
        """Note the text around the records."""
        if self._is_timeline:
            return
        default = "\n" if self._form == LINES else ",\n  "
        layout = {
            "file": self._number,
            "form": self._form,
            "records": self._count if self._is_complete else None,
            "head": text_json(self._head),
            "separator": default if self._separator is None else text_json(self._separator),
            "tail": text_json(self._tail),
        }
        self._note("layouts", layout, len(self._head) + len(self._tail))


def _is_same_session(line: FastLine, other: FastLine) -> bool:
    """Return whether two lines have equal session fields."""
    return (
        line.session_id == other.session_id
        and line.rank == other.rank
        and line.pid == other.pid
        and line.host == other.host
        and line.job_id == other.job_id
        and line.schema_version == other.schema_version
        and line.local_rank == other.local_rank
        and line.world_size == other.world_size
    )
