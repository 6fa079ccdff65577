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

import numpy as np

from ...semconv import OVERHEAD_NS
from ..records.rows import number_of
from .figures.series import value_of
from .load.scopes import Scopes
from .relations import ABSENT, SUMS, known


def trace_events(scopes: Scopes) -> Iterator[str]:
    """Yield the document for the scopes of a run in pieces: one JSON object, in ASCII."""
    yield '{"displayTimeUnit": "ms", "traceEvents": ['
    separator = "\n"
    for event in _Events(scopes).all():
        yield separator + event
        separator = ",\n"
    yield "\n]}\n"


class _Events:
    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        rows, marks = scopes.rows, scopes.mark_rows
        names, times = scopes.mark_column("name")[marks], scopes.mark_column("ts_ns")[marks]
        is_shown = (names != scopes.texts.token(OVERHEAD_NS)) & (times != ABSENT)
        marks, times = marks[is_shown], times[is_shown]
        self._marks = marks[np.argsort(times, kind="stable")]
        self._ranks, self._pids, starts, ends = (
            scopes.column(each) for each in ("rank", "pid", "start_ns", "end_ns")
        )
        processes = np.unique(np.stack([self._ranks[rows], self._pids[rows]]), axis=1)
        self._numbers = {(rank, pid): at for at, (rank, pid) in enumerate(processes.T.tolist(), 1)}
        """The number of each process, by its rank and its id."""
        begun = starts[rows][(ends[rows] != ABSENT) & (starts[rows] != ABSENT)]
        self._first = min((int(each.min()) for each in (begun, times) if len(each)), default=0)
        self._rows = self._in_order(rows[(ends[rows] != ABSENT) & (starts[rows] != ABSENT)])

    def _in_order(self, rows: np.ndarray) -> np.ndarray:
        """Return the scopes with a position by process, thread and start; outer ones first."""
        scopes = self._scopes
        has_sums = scopes.rows[scopes.column("flags")[scopes.rows] & SUMS != 0]
        above = scopes.parent[rows]
        rows = rows[(above < 0) | ~np.isin(above, scopes.id[has_sums])]
        starts, ends, threads = (
            scopes.column(each)[rows] for each in ("start_ns", "end_ns", "thread_id")
        )
        ids = scopes.id[rows]
        is_parent = (ids >= 0) & np.isin(ids, scopes.parent[scopes.rows])
        keys = -rows, ~is_parent, ~ends, starts, threads, self._pids[rows], self._ranks[rows]
        ordered: np.ndarray = rows[np.lexsort(keys)]
        return ordered

    def all(self) -> Iterator[str]:
        """Yield all events: the scopes of each process, then the marks."""
        ranks, pids = self._ranks[self._rows], self._pids[self._rows]
        for (rank, pid), number in self._numbers.items():
            name = _process_name(known(rank), known(pid))
            yield _meta("process_name", number, 0, {"name": name})
            if rank != ABSENT:
                yield _meta("process_sort_index", number, 0, {"sort_index": rank})
            first, last = (np.searchsorted(ranks, rank, side) for side in ("left", "right"))
            of_rank = pids[first:last]
            begin, end = (first + np.searchsorted(of_rank, pid, side) for side in ("left", "right"))
            yield from self._of_process(self._rows[begin:end], number)
        yield from self._of_marks()

    def _of_process(self, rows: np.ndarray, number: int) -> Iterator[str]:
        scopes, text, tracks = self._scopes, self._scopes.texts.text, _Tracks(number)
        for row in rows:
            name, index, start, end, _, _, thread, error, flags, *_ = scopes.values(row)
            ns, id_ = max(end - start, 0), int(scopes.id[row])
            track, is_new = tracks.of(known(thread), start, start + ns)
            if is_new:
                thread_name = tracks.name(known(thread))
                yield _meta("thread_name", number, track, {"name": thread_name})
            about = {"id": scopes.id_of(id_), "index": text(index), "error": text(error)}
            args: dict[str, Any] = {key: value for key, value in about.items() if value is not None}
            if flags & SUMS and id_ >= 0:
                args["phases_us"] = self._sums(id_)
            category = text(name) or "?"
            shown = category if text(index) is None else f"{category} {text(index)}"
            yield (
                f'{{"ph": "X", "name": {json.dumps(shown)}, "cat": {json.dumps(category)},'
                f' "pid": {number}, "tid": {track}, "ts": {_us(start - self._first)},'
                f' "dur": {_us(ns)}, "args": {json.dumps(args)}}}'
            )

    def _sums(self, id_: int) -> dict[str, float]:
        """Return the durations of the scopes in a step, by name, in microseconds."""
        sums: dict[int, int] = {}
        for row in self._scopes.inside(id_):
            name, _, start, end, *_ = self._scopes.values(row)
            if ABSENT not in (start, end) and end >= start:
                sums[name] = sums.get(name, 0) + end - start
        text = self._scopes.texts.text
        return {text(name) or "?": float(_us(ns)) for name, ns in sums.items()}

    def _of_marks(self) -> Iterator[str]:
        scopes, texts = self._scopes, self._scopes.texts
        no_scope, is_named = len(self._numbers) + 1, False
        for row in self._marks:
            on = scopes.with_id(int(scopes.mark_scope[row]))
            if not len(on) and not is_named:
                is_named = True
                yield _meta("process_name", no_scope, 0, {"name": "no scope"})
            process = no_scope
            if len(on):
                process = self._numbers[int(self._ranks[on[0]]), int(self._pids[on[0]])]
            name, kind, value, _, at = scopes.mark(row)
            shown = value_of(texts, kind, value)
            yield _mark(texts.text(name) or "?", shown, _us(at - self._first), process)


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
