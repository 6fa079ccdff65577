"""ReplayedPhase replay in bounded memory: boundaries and samples in, phases with their peaks out.

The rules are those of `replay`. Boundaries and samples of a recording of any size are sorted,
replayed in the order of time, and the phases are read again in windows.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from .... import exactjson
from ....ids import digest
from .replay import PHASE_ENTER, ReplayedPhase, ScopeValues, ThreadStacks
from .sorting import Row, SortedRows

CPU_COLLECTOR: Final = "stormlog.cpu_tracker"
ROWS_IN_MEMORY: Final = 50_000
SLACK_NS: Final = 10_000_000_000
"""Phases that ended this much earlier are still at hand for events that are out of order."""
_INT64: Final = range(-(2**63), 2**63)


class Sample(NamedTuple):
    """The memory that a `sample` event reports, bytes; -1 if it is unknown."""

    allocated: int
    reserved: int
    is_cpu: bool
    """Whether it is the CPU tracker's: the resident set of the process."""

    @classmethod
    def of(cls, allocated: int | None, reserved: int | None, collector: str) -> Sample:
        """Return the sample of an event, from its fields."""
        return cls(
            -1 if allocated is None else allocated,
            -1 if reserved is None else reserved,
            collector == CPU_COLLECTOR,
        )


@dataclass(slots=True)
class _OpenPhase:
    """An open phase, and the largest samples since its start."""

    scope_key: bytes
    start_ns: int
    sequence: int
    thread_id: int
    data: bytes
    """The details."""
    half: bytes
    """The first half of its span's id."""
    parent_half: bytes
    """That of its parent; empty without one."""
    allocated: int = -1
    reserved: int = -1
    samples: int = 0
    is_cpu: bool = True

    def add(self, sample: Sample) -> None:
        self.samples += 1
        self.is_cpu = self.is_cpu and sample.is_cpu
        self.allocated = max(self.allocated, sample.allocated)
        self.reserved = max(self.reserved, sample.reserved)


@dataclass(slots=True)
class StoredPhase(ReplayedPhase):
    """A phase that ended, the ids of its span, and the peaks of the samples while it was open."""

    end_ns: int = 0
    id: str = ""
    parent_id: str | None = None
    """The id of its parent's span; None for a phase directly below the session."""
    allocated_peak: int = -1
    """Bytes; -1 without a sample."""
    reserved_peak: int = -1
    samples: int = 0
    is_cpu: bool = True


@dataclass(slots=True)
class PhaseGroup:
    """The events of one session and rank."""

    number: int
    session: int
    """The number of its session."""
    session_id: str
    """Stormlog's id."""
    rank: int
    half: str
    """The second half of the ids of the session's spans."""
    last_ns: int = 0
    """The time of the last event."""
    emitted_to: int = -1
    """`Windows.ended` has returned the phases that ended until then."""


class PhaseStore:
    """Collects boundaries and samples, and replays them into phases."""

    def __init__(self, folder: Path) -> None:
        """Use temporary files in `folder` if there are many rows of a kind."""
        in_memory = ROWS_IN_MEMORY
        self._boundaries = SortedRows(folder, "boundaries", in_memory=in_memory)
        self._samples = SortedRows(folder, "samples", in_memory=in_memory)
        self._phases = SortedRows(folder, "phases", in_memory=in_memory)
        self._scopes = SortedRows(folder, "scopes", in_memory=in_memory)
        self._used: dict[tuple[int, bytes], int] = {}
        """How many spans have been named after a scope id; only of those used several times."""

    def close(self) -> None:
        """Close the temporary files."""
        for rows in (self._boundaries, self._samples, self._phases, self._scopes):
            rows.close()

    def add_boundary(
        self, group: PhaseGroup, time_ns: int, event_type: str, scope: ScopeValues, number: int
    ) -> bool:
        """Add a boundary of a group; `number` increases from event to event.

        Return whether it takes part in the replay: numbers beyond 64 bits cannot be sorted.
        """
        _, _, scope_id, _, thread_id, _, sequence, _ = scope
        if sequence not in _INT64 or thread_id not in _INT64:
            return False
        key, of_group, thread_id = _scope_bytes(scope_id), group.number, int(thread_id)
        if event_type == PHASE_ENTER:
            row = (of_group, time_ns, sequence, key, number, True, thread_id, _data_of(scope))
            self._scopes.add((group.session, key, number))
        else:
            row = (of_group, time_ns, sequence, key, number, False, thread_id, b"")
        self._boundaries.add(row)
        return True

    def add_sample(self, group: PhaseGroup, time_ns: int, number: int, sample: Sample) -> None:
        """Add a sample of a group."""
        if sample.allocated in _INT64 and sample.reserved in _INT64:
            self._samples.add((group.number, time_ns, number, *sample))

    def replay(self, groups: list[PhaseGroup]) -> None:
        """Replay the boundaries of all groups."""
        previous: Row = ()
        for row in self._scopes.rows():
            if row[:2] == previous:
                self._used[previous] = 0
            previous = row[:2]
        for group in groups:
            self._replay(group)

    def _replay(self, group: PhaseGroup) -> None:
        stacks: ThreadStacks[_OpenPhase] = ThreadStacks()
        samples = _Samples(self._samples.rows(group.number))
        now: list[Sample] = []
        """The samples at the time of the boundary."""
        previous_ns = -1
        for _, time_ns, sequence, scope_key, _, is_enter, thread_id, data in (
            self._boundaries.rows(group.number)
        ):  # fmt: skip
            if time_ns != previous_ns:
                now = samples.until(time_ns, stacks)
                previous_ns = time_ns
            if is_enter:
                above = stacks.top(thread_id)
                parent_half = b"" if above is None else above.half
                half = self._new_id(group, scope_key)
                phase = _OpenPhase(scope_key, time_ns, sequence, thread_id, data, half, parent_half)
                for sample in now:
                    phase.add(sample)
                stacks.enter(thread_id, phase)
            else:
                closed = stacks.leave(thread_id, scope_key)
                if closed is not None:
                    self._add(group, closed, time_ns, is_synthetic=False)
        samples.until(group.last_ns, stacks)
        for phase in stacks.phases():
            self._add(group, phase, max(group.last_ns, phase.start_ns), is_synthetic=True)

    def _add(
        self, group: PhaseGroup, phase: _OpenPhase, end_ns: int, *, is_synthetic: bool
    ) -> None:
        row = (group.number, phase.start_ns, phase.sequence, phase.half, end_ns)
        more = (phase.scope_key, phase.thread_id, is_synthetic, phase.parent_half, phase.data)
        self._phases.add((*row, *more, phase.allocated, phase.reserved, phase.samples,
                          phase.is_cpu))  # fmt: skip

    def _new_id(self, group: PhaseGroup, scope_id: bytes) -> bytes:
        """Return the first half of a span's id; for a scope id that is used again, numbered."""
        key = (group.session, scope_id)
        number, text = self._used.get(key, 0), scope_id.decode("utf-8", "surrogatepass")
        if key in self._used:
            self._used[key] = number + 1
        parts = (group.session_id, text, number) if number else (group.session_id, text)
        return digest(*parts)[:8]

    def phases(self, group: PhaseGroup) -> Iterator[StoredPhase]:
        """Yield the phases of a group in the order of their starts."""
        for row in self._phases.rows(group.number):
            (_, start_ns, sequence, half, end_ns, scope_id, thread, is_synthetic, parent, data,
             allocated, reserved, samples, is_cpu) = row  # fmt: skip
            name, path, parent_scope, thread_name, attributes = marshal.loads(data)  # noqa: S302 - see `_data_of`
            if isinstance(attributes, str):
                attributes = exactjson.loads(attributes)
            yield StoredPhase(
                group.session_id, group.rank, start_ns, sequence,
                scope_id.decode("utf-8", "surrogatepass"), name, path, parent_scope, thread,
                thread_name, attributes, end_ns, bool(is_synthetic), None,
                half.hex() + group.half, parent.hex() + group.half if parent else None,
                allocated, reserved, samples, bool(is_cpu),
            )  # fmt: skip


def _scope_bytes(scope_id: str) -> bytes:
    return scope_id.encode("utf-8", "surrogatepass")


def _data_of(scope: ScopeValues) -> bytes:
    name, path, _, parent, _, thread_name, _, values = scope
    details, attributes = (name, path, parent, thread_name), cast("Any", values)
    try:
        return marshal.dumps((*details, attributes))
    except ValueError:  # there is an `exactjson.Raw`
        return marshal.dumps((*details, exactjson.dumps_ascii(attributes)))


class _Samples:
    """The samples of a group in the order of time."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._next = next(rows, None)

    def until(self, time_ns: int, stacks: ThreadStacks[_OpenPhase]) -> list[Sample]:
        """Count the samples until a time for the open phases; return those at that time."""
        row = self._next
        if row is None or row[1] > time_ns:
            return []
        now, phases = [], stacks.phases()
        while row is not None and row[1] <= time_ns:
            sample = Sample(row[3], row[4], bool(row[5]))
            for each in phases:
                each.add(sample)
            if row[1] == time_ns:
                now.append(sample)
            row = next(self._rows, None)
        self._next = row
        return now


class Windows:
    """The phases of a group around the times of one chunk of events after another."""

    def __init__(self, store: PhaseStore, group: PhaseGroup) -> None:
        self._store, self._group = store, group
        self._held: list[StoredPhase] = []
        self._dropped_before = -1
        self._rows = store.phases(group)
        self._next = next(self._rows, None)
        self._ended: list[StoredPhase] = []

    def around(self, first_ns: int, last_ns: int) -> list[StoredPhase]:
        """Return the phases that are open at some time of a chunk, in the order of their starts."""
        group = self._group
        if first_ns < self._dropped_before:
            self._dropped_before = max(first_ns - SLACK_NS, -1)
            self._held = []
            self._rows = self._store.phases(group)
            self._next = next(self._rows, None)
        needed_from = min(group.emitted_to + 1, self._dropped_before)
        while self._next is not None and self._next.start_ns <= last_ns:
            if self._next.end_ns >= needed_from:
                self._held.append(self._next)
            self._next = next(self._rows, None)
        self._ended += (p for p in self._held if group.emitted_to < p.end_ns <= last_ns)
        group.emitted_to = max(group.emitted_to, last_ns)
        self._dropped_before = max(self._dropped_before, first_ns - SLACK_NS)
        self._held = [phase for phase in self._held if phase.end_ns >= self._dropped_before]
        return [phase for phase in self._held if phase.end_ns >= first_ns]

    def ended(self) -> list[StoredPhase]:
        """Return the phases that ended until the end of the last chunk, each once."""
        ended, self._ended = self._ended, []
        return ended
