"""The boundaries of the scopes of a run of our own, in an order that replays to the same scopes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from .... import exactjson
from .own_run import OwnSession, ScopeRow
from .sorting import Row, SortedRows

_MAX_DEPTH: Final = 64
_MOST_CACHED: Final = 10_000


class ScopeBoundary(NamedTuple):
    """The start or the end of a scope."""

    time_ns: int
    is_enter: bool
    scope_id: str
    parent_id: str | None
    """None for a scope directly below the session."""
    path: tuple[str, ...]
    thread_id: int
    thread_name: str
    attrs: dict[str, Any]


def boundaries_of(session: OwnSession, folder: Path) -> Iterator[ScopeBoundary]:
    """Yield the boundaries in the order of time; of each thread, those of inner scopes inside.

    Scopes of one thread that overlap without nesting get threads of their own, with negative ids.
    """
    rows = SortedRows(folder, f"scopes-{session.session}")
    try:
        paths = _Paths(session)
        for scope in session.scopes():
            for row in _rows_of(scope, paths.path_of(scope)):
                rows.add(row)
        yield from _ThreadLanes().boundaries(rows.rows())
    finally:
        rows.close()


def _rows_of(scope: ScopeRow, path: tuple[tuple[str, ...], str | None]) -> Iterator[Row]:
    """Yield the rows of a scope's start and end.

    At equal times, ends come first, the inner scope's before the outer one's; then starts, the
    outer scope's first. A scope without duration starts and ends among the starts.
    """
    names, parent = path
    is_empty = scope.end_ns <= scope.start_ns
    details = exactjson.dumps([names, parent, scope.attrs])
    some_id, depth, thread = scope.id.encode(), len(names), scope.thread_id or 0
    ends = max(scope.end_ns, scope.start_ns)
    yield (scope.start_ns, 1, depth, some_id, 0, thread, ends, details)
    if is_empty:
        yield (ends, 1, depth, some_id, 1, thread, ends, b"")
    else:
        yield (ends, 0, -depth, some_id, 1, thread, ends, b"")


class _Paths:
    """The paths of scopes: the names of their ancestors below the session, and their own."""

    def __init__(self, session: OwnSession) -> None:
        self._session = session
        self._names: dict[str, tuple[str | None, str] | None] = {}

    def path_of(self, scope: ScopeRow) -> tuple[tuple[str, ...], str | None]:
        """Return the path, and the parent unless that is the session or not recorded."""
        names = [scope.name or "scope"]
        parent, above = None, scope.parent
        while above is not None and len(names) < _MAX_DEPTH:
            found = self._lookup(above)
            if found is None:
                break
            if parent is None:
                parent = above
            above, name = found
            names.append(name or "scope")
        return tuple(reversed(names)), parent

    def _lookup(self, scope_id: str) -> tuple[str | None, str] | None:
        if scope_id not in self._names:
            if len(self._names) >= _MOST_CACHED:
                self._names.clear()
            self._names[scope_id] = self._session.scope_names(scope_id)
        return self._names[scope_id]


class _ThreadLanes:
    """Assigns scopes to threads so that the scopes of each thread are nested."""

    def __init__(self) -> None:
        self._lanes: dict[int, list[list[tuple[int, ScopeBoundary]]]] = {}
        """For each thread its lanes: stacks of (end, boundary of the start)."""
        self._lane_of: dict[bytes, int] = {}

    def boundaries(self, rows: Iterator[Row]) -> Iterator[ScopeBoundary]:
        """Yield the boundaries of sorted rows."""
        for time_ns, _, _, some_id, is_exit, thread, end_ns, details in rows:
            if is_exit:
                yield from self._leave(time_ns, some_id, thread)
                continue
            names, parent, attrs = exactjson.loads(details)
            lane, number = self._enter(thread, end_ns)
            thread_id = -(abs(thread) + number) if number else thread
            boundary = ScopeBoundary(
                time_ns, True, some_id.decode(), parent, tuple(names), thread_id,
                f"thread {thread}", attrs,
            )  # fmt: skip
            lane.append((end_ns, boundary))
            self._lane_of[some_id] = number
            yield boundary

    def _enter(self, thread: int, end_ns: int) -> tuple[list[tuple[int, ScopeBoundary]], int]:
        """Return the first lane whose innermost scope does not end earlier, and its number."""
        lanes = self._lanes.setdefault(thread, [])
        for number, lane in enumerate(lanes):
            if not lane or lane[-1][0] >= end_ns:
                return lane, number
        lanes.append([])
        return lanes[-1], len(lanes) - 1

    def _leave(self, time_ns: int, some_id: bytes, thread: int) -> Iterator[ScopeBoundary]:
        """Yield the ends of a scope and of those inside that end at the same time."""
        number = self._lane_of.pop(some_id, None)
        if number is None:
            return
        lane = self._lanes[thread][number]
        while lane:
            _, start = lane.pop()
            yield start._replace(time_ns=time_ns, is_enter=False)
            if start.scope_id.encode() == some_id:
                return
            self._lane_of.pop(start.scope_id.encode(), None)
