"""A run in Chrome's Trace Event Format, which the Perfetto UI and Speedscope open.

Source of the format: "Trace Event Format" (Chromium project). A scope is a complete event (`X`) on
the track of its process and thread. A mark is a counter event (`C`) if its value is a finite
number, otherwise an instant event (`i`). Times are microseconds since the first scope or mark, with
nanosecond precision.

The events of a track must be nested. Scopes of a thread that overlap without being nested (tasks of
an event loop) are placed on additional tracks of that thread.

If only the sums of a step's phases were recorded, the phases have no position. They are arguments
of the step, in microseconds, and no events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ...semconv import OVERHEAD_NS
from ..records.rows import number_of
from .index import SpoolIndex, id_of

_FIRST = """
SELECT min(at) FROM (
    SELECT min(start_ns) AS at FROM span WHERE end_ns IS NOT NULL
    UNION ALL SELECT min(ts_ns) FROM mark WHERE name IS NOT ?
)
"""
_PROCESSES = "SELECT DISTINCT rank, pid FROM span ORDER BY rank, pid"
_SCOPES = """
SELECT thread_id, name, id, idx, start_ns, end_ns, error, phases_are_sums FROM span
WHERE rank IS ? AND pid IS ? AND start_ns IS NOT NULL AND end_ns IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM span AS outer WHERE outer.id = span.parent
        AND outer.phases_are_sums)
ORDER BY thread_id, start_ns, end_ns DESC,
    EXISTS (SELECT 1 FROM span AS child WHERE child.parent = span.id) DESC, no DESC
"""
_SUMS = """
SELECT name, sum(end_ns - start_ns) FROM span WHERE parent = ? AND end_ns >= start_ns
GROUP BY name ORDER BY min(start_ns), min(no)
"""
_MARKS = """
SELECT mark.name, mark.value, mark.ts_ns, span.no IS NOT NULL, span.rank, span.pid FROM mark
LEFT JOIN span ON span.id = mark.span
WHERE mark.name IS NOT ? AND mark.ts_ns IS NOT NULL ORDER BY mark.ts_ns, mark.no
"""

Process = tuple[int | None, int | None]
"""A rank and a process id."""


def trace_events(index: SpoolIndex) -> Iterator[str]:
    """Yield the document for an index from `run_index` in pieces: one JSON object, in ASCII."""
    first = index.one(_FIRST, OVERHEAD_NS) or 0
    numbers: dict[Process, int] = {}
    for rank, pid in list(index.rows(_PROCESSES)):
        numbers[rank, pid] = len(numbers) + 1
    yield '{"displayTimeUnit": "ms", "traceEvents": ['
    separator = "\n"
    for event in _events(index, first, numbers):
        yield separator + event
        separator = ",\n"
    yield "\n]}\n"


def _events(index: SpoolIndex, first: int, numbers: dict[Process, int]) -> Iterator[str]:
    for (rank, pid), number in numbers.items():
        yield _meta("process_name", number, 0, {"name": _process_name(rank, pid)})
        if rank is not None:
            yield _meta("process_sort_index", number, 0, {"sort_index": rank})
        yield from _scopes(index, first, (rank, pid), number)
    no_scope = len(numbers) + 1
    is_named = False
    for name, value, at, has_scope, rank, pid in index.rows(_MARKS, OVERHEAD_NS):
        if not has_scope and not is_named:
            is_named = True
            yield _meta("process_name", no_scope, 0, {"name": "no scope"})
        process = numbers[rank, pid] if has_scope else no_scope
        yield _mark(name or "?", value, _us(at - first), process)


def _scopes(index: SpoolIndex, first: int, process: Process, number: int) -> Iterator[str]:
    tracks = _Tracks(number)
    for row in index.rows(_SCOPES, *process):
        thread, name, key, position, start, end, error, has_sums = row
        ns = max(end - start, 0)
        track, is_new = tracks.of(thread, start, start + ns)
        if is_new:
            yield _meta("thread_name", number, track, {"name": tracks.name(thread)})
        about = {"id": id_of(key) if key is not None else None, "index": position, "error": error}
        args: dict[str, Any] = {key: value for key, value in about.items() if value is not None}
        if has_sums and key is not None:
            sums = index.rows(_SUMS, key)
            args["phases_us"] = {phase or "?": float(_us(phase_ns)) for phase, phase_ns in sums}
        shown = name or "?"
        if position is not None:
            shown = f"{shown} {position}"
        yield (
            f'{{"ph": "X", "name": {json.dumps(shown)}, "cat": {json.dumps(name or "?")},'
            f' "pid": {number}, "tid": {track}, "ts": {_us(start - first)},'
            f' "dur": {_us(ns)}, "args": {json.dumps(args)}}}'
        )


class _Tracks:
    """The tracks of a process. Scopes must be added thread by thread, in order of their start."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._count = 0
        self._thread: Any = self
        self._open: list[tuple[int, list[int]]] = []
        """The current thread's tracks, each with the ends of its open scopes, outermost first."""

    def of(self, thread: int | None, start: int, end: int) -> tuple[int, bool]:
        """Return the first track on which the scope is nested, and whether the track is new."""
        if thread != self._thread:
            self._thread, self._open = thread, []
        for track, ends in self._open:
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return track, False
        self._count += 1
        self._open.append((self._count, [end]))
        return self._count, True

    def name(self, thread: int | None) -> str:
        """Return the name of the track that was created last."""
        known = "no thread" if thread is None else f"thread {thread}"
        return known if len(self._open) == 1 else f"{known} ({len(self._open)})"


def _mark(name: str, value: str | None, at: str, process: int) -> str:
    number = number_of(value)
    head = f'"name": {json.dumps(name)}, "pid": {process}, "ts": {at}'
    if number is not None:
        return f'{{"ph": "C", {head}, "args": {{"value": {number!r}}}}}'
    return f'{{"ph": "i", "s": "p", {head}, "tid": 0, "args": {json.dumps({"value": value})}}}'


def _meta(name: str, process: int, thread: int, args: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": process, "tid": thread, "args": args})


def _process_name(rank: int | None, pid: int | None) -> str:
    who = "no rank" if rank is None else f"rank {rank}"
    return who if pid is None else f"{who}, process {pid}"


def _us(ns: int) -> str:
    """Convert nanoseconds to microseconds exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"
