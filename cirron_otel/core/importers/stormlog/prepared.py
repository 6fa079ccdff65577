"""Prepare the events of a recording as marks whose scopes are still to be found.

Files are read once, in order. Each event becomes the text of a mark without its scope; boundaries
and samples go into the phase store. What is needed to write the files again is noted beside the
marks of the same session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from ....errors import InputError
from ....ids import digest
from ...records.problems import ReadingProblem
from .batch_text import BATCH_MARKS
from .discovery import Artifact, SourceFile
from .duplicates import SeenEvents
from .fast_lines import BOUNDARIES, SCOPE, FastLine, LineParser, Metadata, event_of, mark_texts
from .ledger import SessionLedger
from .marks import (
    SESSION_FIELDS,
    MarkWriter,
    text_json,
)
from .phase_store import PhaseGroup, PhaseStore, Sample
from .reading import StormlogReader
from .replay import scope_of
from .safe_files import read_regular
from .session_ids import session_hex
from .sorting import Chunks, SeenIds

OnFinding = Callable[[ReadingProblem], None]
MAX_DOCUMENT_BYTES: Final = 16 * 2**20
CHUNK_MEMORY: Final = 32 * 2**20
"""The size of the chunks that are kept in memory, bytes."""
DOCUMENT_PART: Final = 200_000
"""The size of the parts that a document is stored in, characters."""
_MAX_OOMS: Final = 10_000
_MAX_TIME: Final = 2**63
SAMPLE, _ERROR, _STOP = "sample", "error", "stop"
_UNUSUAL: Final = (_ERROR, _STOP)
_TOO_LARGE: Final = (
    "a phase's thread_id or sequence has more than 64 bits: the event is a mark, and the phase has"
    " no span"
)
NOWHERE: Final = (-1, 0)
"""The place of an event that is in no file by itself."""

Item = tuple[int, str, str, int, int, Any]
"""Time, mark id, the mark's text without its ids, file, position in the file, cue.

The cue is None, a boundary's scope id, or a pair of the origin's scope id and thread id.
"""


@dataclass(slots=True)
class OutOfMemoryEvent:
    """An event that reports that memory ran out."""

    group: int
    """The number of its phase group."""
    session_id: str
    item: Item
    reason: str
    context: str
    bundle: str
    """The name of its bundle; "" if the event names none."""


@dataclass(slots=True)
class MarkGroup:
    """The events whose session fields are equal; each batch contains those of one group."""

    number: int
    fields: dict[str, Any]
    phases: PhaseGroup
    first_ns: int = _MAX_TIME
    """The time of the earliest event."""
    items: list[Item] = field(default_factory=list)
    size: int = 0
    notes: dict[str, list[Any]] = field(default_factory=dict)
    notes_size: int = 0


class NewEvent(NamedTuple):
    """An event that is added, with its text as a mark."""

    artifact: Artifact
    file: SourceFile
    place: tuple[int, int]
    """The number of the file, and the position in it."""
    group: MarkGroup
    identity: bytes
    time_ns: int
    kind: str
    sample: Sample
    raw: bytes
    """The record's text in the file."""
    is_plain: bool
    """Whether the text follows from a mark of the same event that another file gave."""
    text: str
    metadata: dict[str, Any]
    canonical: Callable[[], dict[str, Any]]
    """Returns its canonical form, which is rarely needed."""


@dataclass(slots=True)
class LineRun:
    """Consecutive lines of a segment with equal session fields."""

    artifact: Artifact
    file: SourceFile
    file_number: int
    first: int
    """The position of the first one."""
    group: MarkGroup
    lines: list[FastLine] = field(default_factory=list)
    metadata: list[Metadata] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)
    """Their texts."""

    def event(self, number: int, identity: bytes, text: str) -> NewEvent:
        """Return one of the lines as an event."""
        line, metadata = self.lines[number], self.metadata[number]
        return NewEvent(
            self.artifact, self.file, (self.file_number, self.first + number), self.group,
            identity, line.timestamp_ns, line.event_type, sample_of(line), self.raws[number],
            True, text, metadata.values, lambda: event_of(line, metadata),
        )  # fmt: skip


class Preparation:
    """Reads all files of a recording; the results are its attributes."""

    def __init__(self, reader: StormlogReader, folder: Path, on_finding: OnFinding) -> None:
        """Use temporary files in `folder`."""
        self.reader, self.on_finding = reader, on_finding
        self.store = PhaseStore(folder)
        self.chunks = Chunks(folder / "chunks", in_memory_bytes=CHUNK_MEMORY)
        """`(mark group, items, notes)`, in the order in which they became complete."""
        self.ledger = SessionLedger(reader.artifacts, reader.path.name)
        self.phase_groups: list[PhaseGroup] = []
        self.groups: list[MarkGroup] = []
        self.last_chunk: dict[int, int] = {}
        """The number of the last chunk of each mark group."""
        self.out_of_memory: list[OutOfMemoryEvent] = []
        self.files: list[str] = []
        """The names of the files that records refer to by number."""
        self.bytes_read = 0
        self.duplicates = 0
        self._seen = SeenIds(folder)
        """Ids of events: twice the number of the last recording, plus 1 if there is a mark."""
        self.lines = LineParser()
        self.writer = MarkWriter()
        self._by_fields: dict[tuple[Any, ...], MarkGroup] = {}
        self._by_rank: dict[tuple[str, int], PhaseGroup] = {}
        self._sessions: dict[str, int] = {}
        self._known = SeenEvents() if len(reader.artifacts) > 1 else None
        self._artifact = 0
        """The number of the recording that is being read."""
        self._repeated: dict[bytes, int] = {}
        """How often an event of this recording was repeated, by its id."""
        self._current: MarkGroup | None = None
        self._chunk_count = 0
        self._event_count = 0

    def close(self) -> None:
        """Close the temporary files."""
        for each in (self.store, self.chunks, self._seen, self._known):
            if each is not None:
                each.close()

    def begin(self) -> None:
        """Begin with the files of a recording."""
        self._current = None
        self._artifact += 1
        self._repeated.clear()

    def finish(self) -> None:
        """Complete all chunks, and replay the phases."""
        for group in self.groups:
            self._seal(group)
        self.store.replay(self.phase_groups)

    def attach(self, artifact: Artifact, path: Path) -> None:
        """Keep a file without records verbatim."""
        name = f"{artifact.name}/{path.name}" if artifact.name else path.name
        try:
            data = read_regular(path, MAX_DOCUMENT_BYTES)
        except InputError as error:
            self.on_finding(ReadingProblem(name, "not-kept", str(error)))
            return
        self.bytes_read += len(data)
        self.document(artifact, name, data)

    def document(self, artifact: Artifact, name: str, data: bytes) -> None:
        """Note the content of a file, in parts."""
        group = self.group_of(artifact)
        text = text_json(data)
        pieces: list[Any] = _parts(text) if isinstance(text, str) else [text]
        for number, piece in enumerate(pieces):
            self.note(group, "documents", [name, number, len(pieces), piece], DOCUMENT_PART)

    def note(self, group: MarkGroup, kind: str, value: Any, size: int = 50) -> None:
        """Add a note to the next batch of a group."""
        group.notes.setdefault(kind, []).append(value)
        group.notes_size += size
        if group.notes_size > 4 * DOCUMENT_PART:
            self._seal(group)

    def group_of(self, artifact: Artifact) -> MarkGroup:
        """Return the group of the artifact's last event, or of its first session."""
        if self._current is not None:
            return self._current
        if not artifact.summaries:
            return self.groups[-1] if self.groups else self.group((None,) * len(SESSION_FIELDS))
        summary = artifact.summaries[0]
        for group in reversed(self.groups):
            if group.fields["session_id"] == summary.session_id:
                return group
        values = (None, summary.session_id, summary.pid, summary.host, summary.job_id,
                  summary.rank, summary.local_rank, summary.world_size)  # fmt: skip
        return self.group(values)

    def group(self, values: tuple[Any, ...]) -> MarkGroup:
        """Return the group of the events with these session fields."""
        group = self._by_fields.get(values)
        if group is None:
            fields = dict(zip(SESSION_FIELDS, values, strict=True))
            group = MarkGroup(len(self.groups), fields, self._phase_group(fields))
            self._by_fields[values] = group
            self.groups.append(group)
        return group

    def _phase_group(self, fields: dict[str, Any]) -> PhaseGroup:
        session_id, rank = fields["session_id"] or "", fields["rank"] or 0
        group = self._by_rank.get((session_id, rank))
        if group is None:
            session = self._sessions.setdefault(session_id, len(self._sessions))
            half = session_hex(session_id)[16:] if session_id else ""
            group = PhaseGroup(len(self.phase_groups), session, session_id, rank, half)
            self._by_rank[session_id, rank] = group
            self.phase_groups.append(group)
        return group

    def _seal(self, group: MarkGroup) -> None:
        """Finish the chunk that is being collected for a group."""
        if not group.items and not group.notes:
            return
        size = group.size + group.notes_size
        self.chunks.append((group.number, group.items, group.notes), size)
        self.last_chunk[group.number] = self._chunk_count
        self._chunk_count += 1
        group.items, group.notes, group.size, group.notes_size = [], {}, 0, 0

    def group_of_line(self, line: FastLine) -> MarkGroup | None:
        """Return the group of a line; None before the exact parser has seen its session fields."""
        return self._by_fields.get(line.session)

    def add(self, new: NewEvent, *, is_new: bool = False) -> None:
        """Add an event; with `is_new`, its id has been recorded as seen for the first time."""
        group = self._current = new.group
        identity = new.identity
        if not is_new:
            known = self._known
            is_known = known is not None and known.is_duplicate(new.canonical(), self._artifact)
            identity, has_mark = self._identify(identity, is_new=not is_known)
            if is_known:
                self._note_duplicate(new, identity if has_mark and new.is_plain else None)
                return
        phases, time_ns, kind = group.phases, new.time_ns, new.kind
        self._event_count += 1
        if kind == _STOP or time_ns < group.first_ns:
            group.first_ns = min(group.first_ns, time_ns)
            self.ledger.add(new.canonical(), new.artifact, new.file.name)
        phases.last_ns = max(phases.last_ns, time_ns)
        cue: Any = None
        if kind == SAMPLE:
            self.store.add_sample(phases, time_ns, self._event_count, new.sample)
        elif kind in BOUNDARIES:
            scope = scope_of(new.metadata.get(SCOPE), kind)
            if scope is not None:
                cue = scope[2]
                if not self.store.add_boundary(phases, time_ns, kind, scope, self._event_count):
                    self.on_finding(ReadingProblem(new.file.name, "out-of-range", _TOO_LARGE))
        if cue is None and "origin_phase_scope_id" in new.metadata:
            cue = (new.metadata["origin_phase_scope_id"], new.metadata.get("origin_thread_id"))
        elif cue is None and "origin_thread_id" in new.metadata:
            cue = (None, new.metadata["origin_thread_id"])
        item = (time_ns, identity.hex(), new.text, *new.place, cue)
        if kind == _ERROR and "oom_reason" in new.metadata:
            self._note_out_of_memory(group, item, new.canonical())
        group.items.append(item)
        group.size += len(new.text) + 300
        if len(group.items) >= BATCH_MARKS:
            self._seal(group)

    def _identify(self, content: bytes, *, is_new: bool) -> tuple[bytes, bool]:
        """Return the id of an event, and whether there is a mark with this id already.

        `content` is the id of its content. An equal event of the same recording is another one,
        whose id is numbered. The mark of a new event has an id of its own.
        """
        here, identity = 2 * self._artifact, content
        while True:
            last = self._seen.visit(identity, here + is_new, only_new=True)
            has_mark = last is not None and last % 2 == 1
            if last is None or (last < here and not (is_new and has_mark)):
                break
            number = self._repeated[content] = self._repeated.get(content, 0) + 1
            identity = digest("stormlog-repeated", content, number)[:16]
        if last is not None:
            self._seen.visit(identity, here + (is_new or has_mark))
        return identity, has_mark

    def add_run(self, run: LineRun) -> None:
        """Add lines of a segment; most of them need no more than their mark."""
        group, file, first = run.group, run.file_number, run.first
        phases, store = group.phases, self.store
        ids = [sha256(raw).digest()[:16] for raw in run.raws]
        is_new = self._known is None and self._seen.add_new(ids, 2 * self._artifact + 1)
        self._current = group
        texts = mark_texts(run.lines, run.metadata)
        new = zip(run.lines, run.metadata, texts, ids, strict=True)
        for at, (line, metadata, text, identity) in enumerate(new):
            time_ns, kind = line.timestamp_ns, line.event_type
            if not is_new or time_ns < group.first_ns or kind in _UNUSUAL or metadata.has_origin:
                self.add(run.event(at, identity, text), is_new=is_new)
                continue
            self._event_count = number = self._event_count + 1
            phases.last_ns = max(phases.last_ns, time_ns)
            cue = None
            if kind == SAMPLE:
                store.add_sample(phases, time_ns, number, sample_of(line))
            elif kind in BOUNDARIES:
                scope = scope_of(metadata.scope, kind)
                if scope is not None:
                    cue = scope[2]
                    if not store.add_boundary(phases, time_ns, kind, scope, number):
                        self.on_finding(ReadingProblem(run.file.name, "out-of-range", _TOO_LARGE))
            group.items.append((time_ns, identity.hex(), text, file, first + at, cue))
            group.size += len(text) + 300
            if len(group.items) >= BATCH_MARKS:
                self._seal(group)

    def _note_duplicate(self, new: NewEvent, known: bytes | None) -> None:
        """Note the place of an event that is known already.

        `known` is the id of its mark, None if its text does not follow from the mark.
        """
        self.duplicates += 1
        if new.place == NOWHERE:
            return
        if known is not None:
            self.note(new.group, "repeats", [*new.place, known.hex()])
        else:
            self.note(new.group, "texts", [*new.place, text_json(new.raw)], len(new.raw))

    def _note_out_of_memory(self, group: MarkGroup, item: Item, event: dict[str, Any]) -> None:
        if len(self.out_of_memory) < _MAX_OOMS:
            reason, context = event["metadata"]["oom_reason"], event["context"] or ""
            self.out_of_memory.append(
                OutOfMemoryEvent(
                    group.phases.number,
                    group.phases.session_id,
                    item,
                    str(reason),
                    context,
                    _name_in(event["metadata"].get("oom_dump_path")),
                )
            )


def _name_in(path: Any) -> str:
    """Return the last part of a path, of any system; "" for another value."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2] if isinstance(path, str) else ""


def _parts(text: str) -> list[str]:
    size = DOCUMENT_PART
    return [text[begin : begin + size] for begin in range(0, len(text), size)] or [""]


def sample_of(line: FastLine) -> Sample:
    """Return the sample that a line reports."""
    return Sample.of(line.allocator_allocated_bytes, line.allocator_reserved_bytes, line.collector)
