"""Convert a recording of Stormlog's to batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ....semconv import SESSION
from ...placement.joined_scopes import ScopeTimes
from ...records.rows import PEAK_SAMPLES
from .batch_text import ImportedBatchText, PhaseSpanText, WrittenBatch
from .exceptions import exceptions_of
from .file_reading import read_recording
from .ledger import CaptureSession
from .mark_ids import MarkIds
from .phase_store import PhaseGroup, StoredPhase, Windows
from .prepared import Item, MarkGroup, OnFinding, Preparation
from .reading import StormlogReader
from .replay import ReplayedPhase, attribute
from .session_ids import session_hex

PEAK: Final = "cuda.memory_peak_bytes"
RESERVED_PEAK: Final = "cuda.memory_reserved_peak_bytes"
"""The attributes of `cuda_memory`, which the sampled peaks of a device also have."""
SYNTHETIC_END: Final = "synthetic_end"
INCOMPLETE: Final = "incomplete"
_ERROR: Final = 2
_NUMBERED: Final = ("epoch", "step")


class StormlogImport:
    """The batches of one recording; ids are digests, so that importing again gives the same."""

    def __init__(
        self, path: str | os.PathLike[str], *, folder: Path, on_finding: OnFinding,
        joined: ScopeTimes | None = None,
    ) -> None:  # fmt: skip
        """Find the recording, and use temporary files in `folder`. Raises InputError.

        Events are attached to the scopes of `joined`, if it has one of the same process.
        """
        self._joined = joined
        self._joined_sessions: dict[int, str] = {}
        """The session of the other spool that a mark group's events are attached to."""
        self._prepared = Preparation(
            StormlogReader(path, on_finding=on_finding), folder, on_finding
        )
        self._mark_ids = MarkIds(folder / "mark-ids")
        self._windows: dict[int, Windows] = {}
        self._errors: dict[str, list[dict[str, Any]]] = {}
        """The `exception` events of each scope."""

    @property
    def duplicates(self) -> int:
        """The number of events that were found more than once."""
        return self._prepared.duplicates

    @property
    def bytes_read(self) -> int:
        """The size of everything that was read."""
        return self._prepared.bytes_read

    def batches(self, progress: Callable[[int], None] = lambda _: None) -> Iterator[WrittenBatch]:
        """Read the recording, and yield its batches."""
        prepared = self._prepared
        try:
            read_recording(prepared, progress)
            self._find_errors()
            sessions = {each.session_id: each for each in prepared.ledger.sessions()}
            last = self._last_chunks()
            for number, (group_number, items, notes) in enumerate(prepared.chunks):
                group = prepared.groups[group_number]
                yield self._batch(group, items, notes, last.get(number, ()), sessions)
            unwritten = sessions.keys() - {group.fields["session_id"] for group in prepared.groups}
            for session_id in sorted(unwritten):
                yield self._empty_session(sessions[session_id])
        finally:
            prepared.close()
            self._mark_ids.close()

    def _last_chunks(self) -> dict[int, list[PhaseGroup]]:
        """Return the phase groups that end with each chunk, by the chunk's number."""
        ends: dict[int, int] = {}
        for group in self._prepared.groups:
            chunk = self._prepared.last_chunk.get(group.number)
            if chunk is not None:
                ends[group.phases.number] = max(ends.get(group.phases.number, 0), chunk)
        last: dict[int, list[PhaseGroup]] = {}
        for number, chunk in ends.items():
            last.setdefault(chunk, []).append(self._prepared.phase_groups[number])
        return last

    def _batch(
        self, group: MarkGroup, items: list[Item], notes: dict[str, list[Any]],
        ending: Iterable[PhaseGroup], sessions: dict[str, CaptureSession],
    ) -> WrittenBatch:  # fmt: skip
        batch, phases = ImportedBatchText(), group.phases
        session = sessions.get(phases.session_id)
        hexadecimal = session_hex(phases.session_id) if phases.session_id else ""
        items.sort()
        if items:
            self._add_marks(batch, group, items, hexadecimal)
        ended = self._windows[phases.number].ended() if phases.number in self._windows else []
        for each in ending:
            ended += self._rest(each)
        for stored in ended:
            self._add_phase(batch, group, stored, hexadecimal)
        is_joined = group.number in self._joined_sessions
        if session is not None and not is_joined and self._is_last(phases, ending):
            self._add_session(batch, session, hexadecimal)
        joined = self._joined_sessions.get(group.number)
        otel = {} if session is None else otel_of(joined or hexadecimal, group.fields)
        return batch.write(otel, self._stormlog_of(group, items, notes))

    def _is_last(self, phases: PhaseGroup, ending: Iterable[PhaseGroup]) -> bool:
        """Return whether the session of `phases` ends with the last of its groups."""
        groups = self._prepared.phase_groups
        same = [each for each in groups if each.session == phases.session]
        final = max(same, key=self._end)
        return any(each is final for each in ending)

    def _end(self, group: PhaseGroup) -> int:
        numbers = (
            self._prepared.last_chunk.get(each.number, -1)
            for each in self._prepared.groups
            if each.phases is group
        )
        return max(numbers, default=-1)

    def _add_marks(
        self, batch: ImportedBatchText, group: MarkGroup, items: list[Item], session: str
    ) -> None:
        phases = group.phases
        windows = self._windows.get(phases.number)
        if windows is None:
            windows = self._windows[phases.number] = Windows(self._prepared.store, phases)
        candidates = windows.around(items[0][0], items[-1][0])
        texts = []
        mark_ids: dict[str, list[str]] = {}
        last, ids = "", mark_ids.setdefault("", [])
        for item, scope in attributed(items, candidates):
            span_id, mark_id = session if scope is None else scope.id, item[1]
            if self._joined is not None:
                thread = _origin_thread(item) if scope is None else scope.thread_id
                joined = self._join(group, thread, item[0])
                if joined is not None:  # a scope that the other spool has
                    texts.append(f'{{"id":"{mark_id}","span_id":"{joined}",{item[2][1:]}')
                    continue
            texts.append(f'{{"id":"{mark_id}","span_id":"{span_id}",{item[2][1:]}')
            if span_id != last:
                last, ids = span_id, mark_ids.setdefault(span_id, [])
            ids.append(mark_id)
        if not mark_ids[""]:
            del mark_ids[""]
        self._mark_ids.add(mark_ids)
        batch.add_marks(texts, items[-1][0])

    def _join(self, group: MarkGroup, thread_id: int | None, time_ns: int) -> str | None:
        """Return the scope of the other spool that was open in a thread of the same process."""
        if self._joined is None:
            return None
        pid, last_ns = group.fields["pid"], group.phases.last_ns
        found = self._joined.at(pid, thread_id, time_ns)
        # An event before or after the run belongs to its session if the recordings overlap.
        found = found or self._joined.session_during(pid, group.first_ns, last_ns)
        if found is None:
            return None
        self._joined_sessions.setdefault(group.number, found.session)
        return found.id

    def _rest(self, group: PhaseGroup) -> list[StoredPhase]:
        """Return the phases of a group that were not written yet."""
        windows = self._windows.get(group.number) or Windows(self._prepared.store, group)
        windows.around(group.last_ns, 2**63)
        return windows.ended()

    def _find_errors(self) -> None:
        """Find the scopes in which memory ran out, and describe the exceptions."""
        prepared = self._prepared
        events = exceptions_of(prepared.reader.artifacts, prepared.out_of_memory)
        by_group: dict[int, list[tuple[Item, dict[str, Any]]]] = {}
        for error, event in zip(prepared.out_of_memory, events, strict=True):
            by_group.setdefault(error.group, []).append((error.item, event))
        for number, found in by_group.items():
            group = replace(prepared.phase_groups[number])  # a copy: it counts what was yielded
            found.sort(key=lambda pair: pair[0])
            windows = Windows(prepared.store, group)
            for item, event in found:
                candidates = windows.around(item[0], item[0])
                ((_, scope),) = attributed([item], candidates)
                span_id = session_hex(group.session_id) if scope is None else scope.id
                self._errors.setdefault(span_id, []).append(event)

    def _add_phase(
        self, batch: ImportedBatchText, group: MarkGroup, phase: StoredPhase, session: str
    ) -> None:
        parent = phase.parent_id or self._join(group, phase.thread_id, phase.start_ns)
        errors = self._errors.pop(phase.id, [])
        span = PhaseSpanText(
            phase.id,
            phase.name,
            parent or session,
            phase.start_ns,
            phase.end_ns,
            group.fields["pid"],
            phase.rank,
            phase_attributes(phase),
            self._mark_ids.take(phase.id),
            index=index_of(phase),
            memory_peak_bytes=phase.allocated_peak if _is_resident_set(phase) else None,
            thread_id=phase.thread_id,
            otel={"status": _status(errors), "events": errors} if errors else {},
        )
        batch.add_span(span)

    def _add_session(
        self, batch: ImportedBatchText, session: CaptureSession, hexadecimal: str
    ) -> None:
        summary = session.summary
        first = session.first.get("timestamp_ns", summary.started_at_ns)
        groups = self._prepared.phase_groups
        lasts = (each.last_ns for each in groups if each.session_id == session.session_id)
        start = min(summary.started_at_ns, first)
        end = max(start, summary.ended_at_ns or 0, *lasts)
        attrs: dict[str, Any] = {
            "status": summary.status,
            "source": summary.source,
            "session_id": summary.session_id,
        }
        errors = self._errors.pop(hexadecimal, [])
        otel: dict[str, Any] = {}
        if summary.status != "completed":
            attrs[INCOMPLETE] = True
            message = f"incomplete: Stormlog reports the status {summary.status}"
            otel = {"status": {"code": _ERROR, "message": message}}
        if errors:
            otel = {"status": _status(errors), "events": errors}
        span = PhaseSpanText(
            hexadecimal,
            SESSION,
            None,
            start,
            end,
            summary.pid,
            summary.rank,
            attrs,
            self._mark_ids.take(hexadecimal),
            otel=otel,
        )
        batch.add_span(span)

    def _empty_session(self, session: CaptureSession) -> WrittenBatch:
        """Return the batch of a session of a manifest that has no events."""
        batch, hexadecimal = ImportedBatchText(), session_hex(session.session_id)
        self._add_session(batch, session, hexadecimal)
        fields = session.summary.to_json()
        return batch.write(otel_of(hexadecimal, fields), {})

    def _stormlog_of(
        self, group: MarkGroup, items: list[Item], notes: dict[str, list[Any]]
    ) -> dict[str, Any]:
        """Return the batch's object with what marks and spans do not contain."""
        runs: list[list[int]] = []
        run, last, following = [-1, 0, 0], -1, -1
        for item in items:
            file, position = item[3], item[4]
            if file == last and position == following and runs:
                run[2] += 1
            else:
                run = [file, position, 1]
                runs.append(run)
                last, following = file, position
            following += 1
        used = {run[0] for run in runs}
        used |= {note[0] for key in _BY_FILE for note in notes.get(key, ())}
        used |= {layout["file"] for layout in notes.get("layouts", ())}
        files = {str(number): self._prepared.files[number] for number in sorted(used - {-1})}
        fields = {key: value for key, value in group.fields.items() if value is not None}
        return {"session": fields, "files": files, "at": runs, **notes}


_BY_FILE: Final = ("repeats", "texts", "gaps")


def _origin_thread(item: Item) -> int | None:
    """Return the thread that an event names as its origin."""
    thread = item[5][1] if isinstance(item[5], tuple) else None
    return thread if type(thread) is int else None


def attributed(
    items: Iterable[Item], phases: list[StoredPhase]
) -> Iterator[tuple[Item, StoredPhase | None]]:
    """Yield each event with its phase; None if it has none, or if several are possible.

    `items` are in the order of time, `phases` in the order of their starts.
    """
    active: list[StoredPhase] = []
    usual: StoredPhase | None = None
    is_known = False
    next_phase, first_end = 0, -1
    for item in items:
        time_ns, cue = item[0], item[5]
        if first_end < time_ns and active:
            active = [phase for phase in active if phase.end_ns >= time_ns]
            first_end = min([phase.end_ns for phase in active], default=-1)
            is_known = False
        while next_phase < len(phases) and phases[next_phase].start_ns <= time_ns:
            phase = phases[next_phase]
            next_phase += 1
            if phase.end_ns >= time_ns:
                active.append(phase)
                first_end = phase.end_ns if first_end == -1 else min(first_end, phase.end_ns)
                is_known = False
        if cue is not None and active:
            if isinstance(cue, str):
                own = _own_phase(active, cue, time_ns)
                if own is not None:
                    yield item, own
                    continue
            else:
                origin = {"origin_phase_scope_id": cue[0], "origin_thread_id": cue[1]}
                yield item, _chosen(active, origin)
                continue
        if not is_known:
            usual, is_known = _chosen(active, {}), True
        yield item, usual


def _own_phase(active: list[StoredPhase], scope_id: str, time_ns: int) -> StoredPhase | None:
    """Return the phase that begins or ends with a boundary of this scope id at this time."""
    for each in reversed(active):
        if each.scope_id == scope_id and time_ns in (each.start_ns, each.end_ns):
            return each
    return None


def _chosen(active: list[StoredPhase], metadata: dict[str, Any]) -> StoredPhase | None:
    if len(active) <= 1 and not metadata:
        return active[0] if active else None
    if not metadata and _is_nested(active):
        return active[-1]
    attribution = attribute(active, metadata)
    return attribution.phases[0] if attribution is not None and attribution.is_unique else None


def _is_nested(active: list[StoredPhase]) -> bool:
    """Return whether phases are of one thread, and each one is deeper than those before it."""
    thread_id, depth = active[0].thread_id, 0
    for phase in active:
        if phase.thread_id != thread_id or len(phase.path) <= depth:
            return False
        depth = len(phase.path)
    return True


def index_of(phase: ReplayedPhase) -> int | None:
    """Return the number of an epoch or a step, if the phase has it as an attribute."""
    number = phase.attributes.get(phase.name) if phase.name in _NUMBERED else None
    return number if type(number) is int else None


def _is_resident_set(stored: StoredPhase) -> bool:
    return stored.is_cpu and stored.allocated_peak >= 0


def phase_attributes(stored: StoredPhase) -> dict[str, Any]:
    """Return the attributes of a phase's span: the phase's own, and those of the mapping."""
    attrs = dict(stored.attributes)
    if stored.allocated_peak >= 0:
        attrs[PEAK_SAMPLES] = stored.samples
        if not stored.is_cpu:
            attrs[PEAK] = stored.allocated_peak
            if stored.reserved_peak >= 0:
                attrs[RESERVED_PEAK] = stored.reserved_peak
    if stored.synthetic_end:
        attrs[SYNTHETIC_END] = True
    return attrs


def otel_of(session: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the batch's `otel`: its session, and the resource attributes that the SDK uses."""
    values = {
        "host.name": fields["host"],
        "cirron.job.id": fields["job_id"],
        "cirron.world_size": fields["world_size"],
        "cirron.local_rank": fields["local_rank"],
    }
    attributes = {key: value for key, value in values.items() if value is not None}
    return {"session": session, "resource": {"attributes": attributes}}


def _status(errors: list[dict[str, Any]]) -> dict[str, Any]:
    attributes = errors[-1]["attributes"]
    return {
        "code": _ERROR,
        "message": f"{attributes['exception.type']}: {attributes['exception.message']}",
    }
