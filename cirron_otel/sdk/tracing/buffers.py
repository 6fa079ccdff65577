"""Per-thread buffers of records that the flush thread has not taken yet.

Appending to a deque and popping from it are atomic, so neither side takes a lock. A scope is
appended once, when it is entered; its end time shows whether it is over, so the flush thread also
sees the open scopes. The thread that pops an entry owns it, so every record is either sealed once
or counted as dropped once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from operator import length_hint
from os import urandom
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .state import OpenScope

MarkEntry = tuple["OpenScope", str, Any, int, str, "dict[str, Any] | None"]
"""Scope, name, value, time (monotonic ns), kind, attributes."""

EARLY_FLUSH = 4096
"""Number of scopes, or of marks of one thread, at which the flush thread is woken before its
interval is over: a smaller flush pauses the training thread for a shorter time."""
_IDS = 512
"""Number of random ids that a thread draws from the operating system at a time."""


@dataclass(slots=True)
class BufferLimits:
    """Maximum numbers of records that wait for the flush thread; the defaults are the options'."""

    scopes: int = 262_144
    """Maximum number of scopes of all threads together."""
    marks: int = 65_536
    """Maximum number of marks of one thread."""
    marks_checked: int = EARLY_FLUSH
    """A thread with at least this many marks checks the limit each time it adds a mark."""

    def set(self, scopes: int, marks: int) -> None:
        """Set the limits from the options of a session."""
        self.scopes, self.marks, self.marks_checked = scopes, marks, min(marks, EARLY_FLUSH)


limits = BufferLimits()


class BufferHooks:
    """Callbacks for full buffers and for threads that begin or draw ids; the pipeline sets most."""

    def __init__(self) -> None:
        self.wake = _nothing
        self.first = _nothing
        """Called when a thread has used up its ids, and for a mark made outside of every session. A
        pipeline then checks that its flush thread is alive, and a forked child opens its own
        session."""
        self.thread_begins: Callable[[int], None] = _ignore
        """Called with the id of a thread at its first record, which an ended thread may have had;
        set by the module of trainings."""


def _nothing() -> None:
    pass


def _ignore(_thread: int) -> None:
    pass


hooks = BufferHooks()


class Buffers:
    """One thread's records. `ids` yields the first halves of ids as integers, never zero."""

    __slots__ = (
        "are_samples", "dead", "drawn", "dropped_marks", "dropped_scopes", "foreign", "ident",
        "ids", "is_dropping", "marks", "newest", "put", "scopes", "taken_marks",
    )  # fmt: skip

    def __init__(self) -> None:
        self.scopes: deque[OpenScope] = deque()
        self.put = self.scopes.append
        self.marks: deque[MarkEntry] = deque()
        self.foreign: deque[Any] = deque()
        self.ident = threading.get_ident()
        self.newest: OpenScope | None = None
        """The last scope that the flush thread has taken, until the session ends."""
        self.ids: Iterator[int] = iter(())
        self.drawn = 0
        self.dropped_scopes = 0
        self.dropped_marks = 0
        self.is_dropping = False
        """Whether the thread is removing scopes from its full buffer."""
        self.taken_marks = 0
        """Number of marks that the flush thread has taken."""
        self.dead = False
        """Whether the thread has ended."""
        self.are_samples = False
        """Whether the marks are the sampler's, whose scopes another thread may have ended."""

    def next_id(self) -> int:
        """Return the next id; if none is left, draw more and check the limits."""
        for number in self.ids:
            return number
        numbers = [n for n in memoryview(urandom(8 * _IDS)).cast("Q") if n]
        self.drawn += len(numbers)
        ids = self.ids = iter(numbers)
        hooks.first()
        self._relieve()
        return next(ids)  # not `self.ids`, which another thread may have discarded

    def _relieve(self) -> None:
        waiting = sum(len(buffers.scopes) for buffers in tuple(registry))
        if waiting > min(EARLY_FLUSH, limits.scopes // 2):
            hooks.wake()
        over = min(waiting - limits.scopes, 2 * _IDS)
        if over > 0:
            self.is_dropping = True
            try:
                self._drop(over)
            finally:
                self.is_dropping = False

    def _drop(self, count: int) -> None:
        """Remove the oldest scopes, and drop those that may be dropped."""
        for _ in range(count):
            try:
                scope = self.scopes.popleft()
            except IndexError:
                return
            if scope.end_ns and scope not in undroppable.scopes:
                scope.drop()
                self.dropped_scopes += 1
            else:
                spared_scopes.append(scope)  # its children need its record

    def recorded(self) -> int:
        """Return the number of scopes begun and marks made in this thread so far."""
        waiting = len(self.marks)
        return self.drawn - length_hint(self.ids) + waiting + self.taken_marks


spared_scopes: deque[OpenScope] = deque()
"""Scopes removed from full buffers that must not be dropped; the flush thread takes them first."""


class UndroppableScopes:
    """Buffered scopes that must not be dropped, because records already taken refer to them."""

    def __init__(self) -> None:
        self.scopes: Set[OpenScope] = frozenset()


class _AllScopes(Set[Any]):
    """Contains every scope."""

    def __contains__(self, _scope: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


undroppable = UndroppableScopes()
_ALL_SCOPES = _AllScopes()
_DROPPING_S = 1.0
"""The longest wait for threads that are dropping scopes, seconds."""


def stop_dropping() -> None:
    """Let no scope be dropped until `undroppable.scopes` is replaced; called by the flush thread.

    A thread may have removed a scope from its buffer, and may be about to drop it: wait for that.
    Otherwise a record that refers to the scope could be written with the id that the scope had.
    """
    undroppable.scopes = _ALL_SCOPES
    until = monotonic() + _DROPPING_S
    for buffers in tuple(registry):
        while buffers.is_dropping and monotonic() < until:
            sleep(0.0001)


registry: set[Buffers] = set()
"""The buffers of all threads; those of an ended thread are removed once they are empty."""


class _Sentinel:
    """Marks a thread's buffers as dead when the end of the thread deletes this object."""

    __slots__ = ("_buffers",)

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def __del__(self) -> None:
        self._buffers.dead = True


class Local(threading.local):
    """The calling thread's buffers, in the attribute `b`."""

    def __init__(self) -> None:
        self.b = Buffers()
        self._sentinel = _Sentinel(self.b)
        registry.add(self.b)
        hooks.thread_begins(self.b.ident)


local = Local()


def reset_after_fork() -> None:
    """In a forked child, discard the records of the parent's threads; the child starts empty."""
    registry.clear()
    spared_scopes.clear()
    undroppable.scopes = frozenset()
    ended_threads.recorded = ended_threads.dropped_scopes = ended_threads.dropped_marks = 0
    buffers = Buffers()
    local.b = buffers
    local._sentinel = _Sentinel(buffers)
    registry.add(buffers)


def discard_ids() -> None:
    """Make every thread draw ids for its next scope, so that `hooks.first` is called."""
    for buffers in tuple(registry):
        buffers.drawn -= length_hint(buffers.ids)
        buffers.ids = iter(())


def forget_newest() -> None:
    """Release the last scopes that were taken, because their session has ended."""
    for buffers in tuple(registry):
        buffers.newest = None


def recorded() -> int:
    """Return the number of scopes begun and marks made in all threads so far."""
    return ended_threads.recorded + sum(buffers.recorded() for buffers in tuple(registry))


@dataclass(slots=True)
class EndedThreads:
    """Totals of threads that have ended."""

    recorded: int = 0
    dropped_scopes: int = 0
    dropped_marks: int = 0


ended_threads = EndedThreads()


def release(buffers: Buffers) -> None:
    """Release an ended thread's empty buffers, and add their counts to `ended_threads`."""
    ended_threads.recorded += buffers.recorded()
    ended_threads.dropped_scopes += buffers.dropped_scopes
    ended_threads.dropped_marks += buffers.dropped_marks
    registry.discard(buffers)


def dropped() -> tuple[int, int]:
    """Return the numbers of scopes and marks dropped because a buffer was full."""
    alive = tuple(registry)
    scopes = ended_threads.dropped_scopes + sum(b.dropped_scopes for b in alive)
    return scopes, ended_threads.dropped_marks + sum(b.dropped_marks for b in alive)
