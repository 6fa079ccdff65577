"""Translate groups of TraceML's frames into batches, one stream for each connection.

The batches of a stream depend on its frames only, so they equal those of an import of the same
bytes. A batch may contain the frames of several groups: `traceml.sqlite` has the state of each
stream after its last batch, and the frames since then. It also has the position in the journal up
to which groups were applied, because after a crash the last group is applied again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...core.importers.sealing import ImportedBatch
from ...core.importers.traceml.framing import HEADER_BYTES, MissingFrames
from ...core.importers.traceml.stream import TraceMLStream
from ...core.records.problems import ReadingProblem
from ...errors import InputError
from ...ids import digest
from .journal.files import Frame, Position
from .state_file import StateFile
from .traceml_groups import FrameRecordKind, GroupRecord, decode_group

logger = logging.getLogger(__name__)

FILE_NAME: Final = "traceml.sqlite"
_MOST_PROCESSES: Final = 10_000
"""The number of processes of which the last step is stored."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS applied (
  id INTEGER PRIMARY KEY, segment INTEGER NOT NULL, offset INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS stream (
  process BLOB, connection INTEGER, offset INTEGER NOT NULL, state BLOB NOT NULL,
  PRIMARY KEY (process, connection)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS frame (
  process BLOB, connection INTEGER, offset INTEGER, content BLOB NOT NULL,
  PRIMARY KEY (process, connection, offset)
);
CREATE TABLE IF NOT EXISTS progress (
  sender BLOB PRIMARY KEY, last_step INTEGER NOT NULL, at_ns INTEGER NOT NULL
) WITHOUT ROWID;
"""

StreamKey = tuple[bytes, int]
"""The id of the receiving process, and the number of the connection."""


class _OpenStream:
    """A stream that has not ended."""

    def __init__(self, key: StreamKey, stream: TraceMLStream, offset: int) -> None:
        self.key, self.stream, self.offset = key, stream, offset
        self.sealed_offset = offset
        """The end of the frames in complete batches."""
        self.is_compared = False
        """Whether its first step was compared with the last one of an earlier connection."""
        self.sender = b""


class _Changes(NamedTuple):
    """The changes of one group of frames, which are written together."""

    frames: dict[StreamKey, list[tuple[int, bytes]]]
    """The frames that are in no complete batch yet, each with its offset."""
    sealed: dict[StreamKey, _OpenStream]
    ended: list[StreamKey]
    touched: dict[StreamKey, _OpenStream]


Write = Callable[[ImportedBatch], None]


class TracemlStorage:
    """The streams of TraceML's connections; for one process."""

    def __init__(self, directory: Path) -> None:
        """Open the state in `directory`. Raises TargetError."""
        loss = "the connections of TraceML's processes continue as new sessions"
        self._file = StateFile(directory / FILE_NAME, _SCHEMA, loss)
        self._streams: dict[StreamKey, _OpenStream] = {}
        self._stored: set[StreamKey] | None = None
        """The streams in the file; None until it is read."""
        self.counts: Counter[str] = Counter()
        """`missing_steps`, since the last group."""

    def apply(self, frames: Sequence[Frame], write: Write) -> None:
        """Apply groups of frames, and call `write` with each batch that they complete.

        Raises InputError if a group is not valid, TargetError, and the errors of `write`; the same
        groups can then be applied again.
        """
        try:
            self._apply(frames, write)
        except BaseException:
            self._streams, self._stored = {}, None
            self.counts.clear()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _apply(self, frames: Sequence[Frame], write: Write) -> None:
        rows = self._file.read("SELECT segment, offset FROM applied")
        reached = Position(*rows[0]) if rows else Position(0, 0)
        changes = _Changes({}, {}, [], {})
        for frame in frames:
            if frame.end > reached:
                process, records = decode_group(frame.body)
                for record in records:
                    self._add(process, record, changes, write)
        self._save(changes, frames[-1], max(reached, frames[-1].end))

    def _add(self, process: bytes, record: GroupRecord, changes: _Changes, write: Write) -> None:
        if record.kind is FrameRecordKind.START:
            self._end_earlier(process, changes, write)
            return
        key = process, record.connection
        open_stream = self._stream(key)
        changes.touched[key] = open_stream
        if record.offset < open_stream.offset:
            return
        self._feed(open_stream, record, changes, write)

    def _feed(
        self, open_stream: _OpenStream, record: GroupRecord, changes: _Changes, write: Write
    ) -> None:
        stream, key = open_stream.stream, open_stream.key
        missing = stream.missing_steps
        if record.offset > open_stream.offset:
            stream.feed(MissingFrames(record.offset - open_stream.offset))
        open_stream.offset = record.offset + len(record.content)
        if record.kind is FrameRecordKind.END:
            batches = stream.finish(record.content)
            changes.ended.append(key)
            changes.frames.pop(key, None)
            del self._streams[key]
        else:
            batches = stream.feed(record.content[HEADER_BYTES:])
            if batches:
                open_stream.sealed_offset = open_stream.offset
                changes.sealed[key] = open_stream
                changes.frames.pop(key, None)
            else:
                changes.frames.setdefault(key, []).append((record.offset, record.content))
        self.counts["missing_steps"] += stream.missing_steps - missing
        for batch in batches:
            write(batch)
        if not open_stream.is_compared:
            self._compare(open_stream)

    def _end_earlier(self, process: bytes, changes: _Changes, write: Write) -> None:
        """End the streams of earlier receiving processes, which were killed."""
        stored = self._known()
        for key in sorted({*self._streams, *stored}):
            if key[0] != process:
                open_stream = self._stream(key)
                shown = _shown(open_stream.stream)
                logger.warning(
                    "the connection of %s ended because the collector was killed", shown,
                    extra={"cause": "traceml killed"},
                )  # fmt: skip
                for batch in open_stream.stream.finish():
                    write(batch)
                changes.ended.append(key)
                changes.touched[key] = open_stream
                del self._streams[key]

    # --- streams --------------------------------------------------------------------------------

    def _known(self) -> set[StreamKey]:
        if self._stored is None:
            query = (
                "SELECT process, connection FROM stream UNION SELECT process, connection FROM frame"
            )
            self._stored = {(bytes(process), number) for process, number in self._file.read(query)}
        return self._stored

    def _stream(self, key: StreamKey) -> _OpenStream:
        """Return a stream: from memory, from the file, or a new one."""
        found = self._streams.get(key)
        if found is None:
            found = self._load(key) if key in self._known() else self._new(key, b"", 0)
            self._streams[key] = found
        return found

    def _new(self, key: StreamKey, state: bytes, offset: int) -> _OpenStream:
        def report(finding: ReadingProblem) -> None:
            shown = _shown(stream)
            logger.warning(
                "TraceML's %s: %s", shown, finding.message,
                extra={"cause": f"traceml {finding.code}"},
            )  # fmt: skip

        try:
            stream = TraceMLStream.resume(state, "traceml", report)
        except InputError as error:
            logger.warning("a connection of TraceML's continues as a new session: %s", error)
            stream = TraceMLStream("traceml", report)
        return _OpenStream(key, stream, offset)

    def _load(self, key: StreamKey) -> _OpenStream:
        where = "WHERE process = ? AND connection = ?"
        rows = self._file.read(f"SELECT offset, state FROM stream {where}", key)  # noqa: S608
        offset, state = rows[0] if rows else (0, b"")
        found = self._new(key, bytes(state), offset)
        query = f"SELECT offset, content FROM frame {where} ORDER BY offset"  # noqa: S608
        for at, content in self._file.read(query, key):
            if at > found.offset:
                found.stream.feed(MissingFrames(at - found.offset))
            found.stream.feed(bytes(content)[HEADER_BYTES:])
            found.offset = at + len(content)
        return found

    # --- missing steps --------------------------------------------------------------------------

    def _compare(self, open_stream: _OpenStream) -> None:
        """Report the steps between an earlier connection of the same process and this one."""
        steps, identity = open_stream.stream.step_range, open_stream.stream.identity
        if steps is None or identity is None:
            return
        open_stream.is_compared = True
        open_stream.sender = digest(
            "traceml-sender",
            *(repr(each) for each in (identity.host, identity.pid, identity.rank)),
            *(repr(each) for each in (identity.session_id, identity.run_nonce)),
        )[:16]
        rows = self._file.read(
            "SELECT last_step FROM progress WHERE sender = ?", (open_stream.sender,)
        )
        expected = rows[0][0] + 1 if rows else 1
        if steps[0] > expected:
            missing = steps[0] - expected
            self.counts["missing_steps"] += missing
            shown = _shown(open_stream.stream)
            logger.warning(
                "TraceML's %s: steps %d to %d did not arrive", shown, expected, steps[0] - 1,
                extra={"cause": "traceml missing"},
            )  # fmt: skip

    # --- the file -------------------------------------------------------------------------------

    def _save(self, changes: _Changes, last: Frame, position: Position) -> None:
        """Write the changes of a group in one transaction. Raises TargetError."""
        gone = changes.ended
        frames = [(*key, *each) for key, some in changes.frames.items() for each in some]
        sealed = [each for key, each in changes.sealed.items() if key in self._streams]
        progress = [
            (each.sender, each.stream.step_range[1], last.head.received_ns)
            for each in changes.touched.values()
            if each.sender and each.stream.step_range is not None
        ]
        where = "WHERE process = ? AND connection = ?"
        self._file.write(
            ("REPLACE INTO frame VALUES (?, ?, ?, ?)", frames),
            (f"DELETE FROM frame {where} AND offset < ?",  # noqa: S608
             [(*each.key, each.sealed_offset) for each in sealed]),
            ("REPLACE INTO stream VALUES (?, ?, ?, ?)",
             [(*each.key, each.sealed_offset, each.stream.state()) for each in sealed]),
            (f"DELETE FROM frame {where}", gone),  # noqa: S608
            (f"DELETE FROM stream {where}", gone),  # noqa: S608
            ("REPLACE INTO progress VALUES (?, ?, ?)", progress),
            ("DELETE FROM progress WHERE at_ns < (SELECT at_ns FROM progress ORDER BY at_ns DESC"
             " LIMIT 1 OFFSET ?)", [(_MOST_PROCESSES,)] if progress else []),
            ("REPLACE INTO applied VALUES (1, ?, ?)", [position]),
        )  # fmt: skip
        known = self._known()
        known.difference_update(gone)
        known.update(key for key in changes.touched if key in self._streams)


def _shown(stream: TraceMLStream) -> str:
    """Return the words that name the sender of a stream."""
    identity = stream.identity
    if identity is None:
        return "process (no valid frame)"
    run = f" of {identity.session_id!a:.80}" if identity.session_id else ""
    return f"rank {identity.rank} (pid {identity.pid}){run}"
