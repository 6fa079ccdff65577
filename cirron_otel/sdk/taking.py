"""Out of the threads' buffers, so that nothing is lost where the flush thread dies in between.

What was taken stays in lists of this object until `clear`. The moves into them are single calls
into the interpreter: an exception raised in the thread from outside comes before or after one.
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from . import buffers as buf
from .buffers import MarkEntry
from .enclosing import EnclosingSpan
from .foreign import Ended
from .scope import Scope
from .step_places import StepPlaces

PORTION = 16_384
"""Scopes that are taken at once where many wait: what is made of them stands in memory."""
_FEW = 512
_AT_ONCE = 4096
"""Entries moved in one call: for so long, about 0.2 ms, no other thread runs."""


@dataclass(slots=True)
class Drained:
    """What one flush is about."""

    ended: list[Scope]
    foreign: list[Ended]
    marks: list[MarkEntry]
    open: dict[Scope, int]
    """Scopes that are open, by how many flushes have seen them so."""
    late: dict[Scope, None]
    """Scopes begun since, on which something of this hangs; they stay in the buffers."""
    is_last: bool
    snapshots: list[Any] = field(default_factory=list)
    """Snapshots whose records can be made: `snapshots.Taken`."""


@dataclass(slots=True)
class FlushChanges:
    """What the collector is to be once all is put together; the counts are totals."""

    mark_ids: dict[Scope, bytearray] = field(default_factory=dict)
    announced: set[Scope] = field(default_factory=set)
    segments: list[Any] = field(default_factory=list)
    """Those that the batch names."""
    scopes: int = 0
    spans: int = 0
    marks: int = 0
    snapshots: int = 0
    spans_lost: int = 0
    marks_lost: int = 0
    snapshots_lost: int = 0
    overhead_ns: int = 0
    places: StepPlaces = field(default_factory=StepPlaces)


class BufferDrain:
    """What was taken and is in no batch yet."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.foreign: list[Ended] = []
        self.marks: list[MarkEntry] = []
        self.snapshots: list[Any] = []
        self._is_portion = False

    def take_scopes(self, *, is_portion: bool = False) -> None:
        """Take the scopes begun so far, or about a portion of them, the oldest first.

        The marks are taken when it is known which of them have ended: those have all of theirs.
        """
        self._is_portion = is_portion
        _move(buf.spared_scopes, self.scopes)
        until = _portion_end() if is_portion else None
        for buffers in tuple(buf.registry):
            if until is None:
                _move(buffers.scopes, self.scopes)
            else:
                _move_begun(buffers.scopes, self.scopes, until)

    def take_others(self) -> None:
        """Take the spans of others that have ended, and the marks made so far; where a portion of
        the scopes was taken, the marks up to the end of the last of them.
        """
        for buffers in tuple(buf.registry):
            _move(buffers.foreign, self.foreign)
        until = 0
        if self._is_portion:
            until = max((scope._end for scope in self.scopes), default=0)
        for buffers in tuple(buf.registry):
            is_dead = buffers.dead
            before = len(self.marks)
            if self._is_portion:
                _move_until(buffers.marks, self.marks, until)
            else:
                _move(buffers.marks, self.marks)
            buffers.taken_marks += len(self.marks) - before
            if is_dead and not (buffers.scopes or buffers.marks or buffers.foreign):
                buf.release(buffers)

    def late(self, ended: list[Scope]) -> dict[Scope, None]:
        """Scopes begun since scopes were taken, as far as the marks and `ended` ones name them.

        A mark, or a scope of another thread that has ended, may hang on one of them: it must be
        known to the journal, and stay. The open ones are all among them.
        """
        begun: dict[Any, None] = dict.fromkeys(buf.spared_scopes.copy())
        for buffers in tuple(buf.registry):
            begun.update(dict.fromkeys(buffers.scopes.copy()))
        buf.undroppable.scopes = begun.keys()
        if not begun:
            return {}
        named = {entry[0] for entry in self.marks} | {scope._above for scope in ended}
        named |= {each.scope for each in named if type(each) is EnclosingSpan}
        late: dict[Any, None] = {}
        for scope in begun:
            each: Any = scope if not scope._end or scope in named else None
            while each in begun and each not in late:
                late[each] = None
                each = each._above.scope if type(each._above) is EnclosingSpan else each._above
        buf.undroppable.scopes = late.keys()
        return {scope: None for scope in late if scope._id}

    def clear(self) -> None:
        """Forget what was taken: it is in batches."""
        self.scopes.clear()
        self.foreign.clear()
        self.marks.clear()
        self.snapshots.clear()


def waiting() -> int:
    """Scopes, or marks if they are more, that stand in the buffers."""
    alive = tuple(buf.registry)
    return max(sum(len(b.scopes) for b in alive), sum(len(b.marks) for b in alive))


def _portion_end() -> int | None:
    """Up to which start scopes are taken for a portion: threads may be far apart."""
    each = PORTION // max(len(buf.registry), 1)
    ends = []
    for buffers in tuple(buf.registry):
        with contextlib.suppress(IndexError):
            ends.append(buffers.scopes[each]._start)
    return min(ends, default=None)


def _move(some: deque[Any], taken: list[Any]) -> None:
    """Move what stands in a deque now; producers may pop there, too, when it is full."""
    entries = iter(some.popleft, None)
    left = len(some)
    with contextlib.suppress(IndexError):
        while left > 0:
            taken.extend(islice(entries, min(left, _AT_ONCE)))
            left -= _AT_ONCE


def _move_begun(some: deque[Any], taken: list[Any], until: int) -> None:
    """Move scopes that were begun up to the time `until`."""
    with contextlib.suppress(IndexError):
        while some[0]._start <= until:
            taken.extend(islice(iter(some.popleft, None), 1))


def _move_until(some: deque[Any], taken: list[Any], until: int) -> None:
    """Move marks made up to the time `until`, and a portion at least."""
    left = len(some)
    least = PORTION
    entries = iter(some.popleft, None)
    with contextlib.suppress(IndexError):
        while left > 0 and (least > 0 or some[0][3] <= until):
            at_once = min(left, _FEW)
            taken.extend(islice(entries, at_once))
            left -= at_once
            least -= at_once
