"""Take records out of the threads' buffers without losing any if the flush thread dies.

Records stay in the lists of `BufferDrain` until `clear`. Each move into these lists is a single
call that runs no Python code, so an exception raised from outside the thread cannot interrupt it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..tracing import buffers as buf
from ..tracing.buffers import MarkEntry
from ..tracing.enclosing import EnclosingSpan
from ..tracing.foreign_spans import Ended, OpenForeignSpan
from ..tracing.open_scopes import end_of
from ..tracing.scope import Scope
from ..tracing.step_places import StepPlaces
from .hook_marks import HookMarks
from .span_rows import recorded_above
from .step_figures import StepFigures
from .undecided import UndecidedSamples

PORTION = 16_384
"""Number of scopes or marks taken at once if many are waiting; it limits the memory of records."""
_AT_ONCE = 4096
"""Entries moved in one call, during which (about 0.2 ms) no other thread runs."""


@dataclass(slots=True)
class Drained:
    """The records of one flush."""

    ended: list[Scope]
    foreign: list[Ended]
    marks: list[MarkEntry]
    open: dict[Scope, int]
    """The open scopes, with the number of flushes that have seen each of them open."""
    late: dict[Scope, None]
    """Scopes that began after the drain and must be in the journal; they stay in the buffers."""
    still: dict[EnclosingSpan, OpenForeignSpan]
    """The spans of other libraries that are open after the drain."""
    is_last: bool
    snapshots: list[Any] = field(default_factory=list)
    """Snapshots whose records can be created: `snapshots.TakenSnapshot`."""


@dataclass(slots=True)
class FlushChanges:
    """The builder's state after a flush, applied once all batches are built; counts are totals."""

    mark_ids: dict[Scope, bytearray] = field(default_factory=dict)
    announced: set[Scope] = field(default_factory=set)
    segments: list[Any] = field(default_factory=list)
    """The segments that the batch contains."""
    scopes: int = 0
    spans: int = 0
    marks: int = 0
    snapshots: int = 0
    spans_lost: int = 0
    marks_lost: int = 0
    snapshots_lost: int = 0
    overhead_ns: int = 0
    inside: dict[Any, int] = field(default_factory=dict)
    """The SDK's own time inside scopes that are not recorded yet, apart from their own hooks."""
    windows: int = 0
    """The number of flushes whose lost time is in the records."""
    rare: int = 0
    """The number of entries of `rare_work` that are in the records."""
    places: StepPlaces = field(default_factory=StepPlaces)
    figures: StepFigures = field(default_factory=StepFigures)


class BufferDrain:
    """Records that were taken from the buffers and are not in a batch yet."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.foreign: list[Ended] = []
        self.marks: list[MarkEntry] = []
        self.snapshots: list[Any] = []
        self.waiting: Set[Scope] = frozenset()
        """The scopes that were in the buffers after the last drain."""
        self.undecided = UndecidedSamples()
        self.hook_marks = HookMarks()
        self.until: int | None = None
        """The end of the portion that is taken, on the clock of `now`; None if all is taken."""
        self._samples: list[slice] = []
        """The places in `marks` of the sampler's marks that were taken last."""

    def take_scopes(self, *, is_portion: bool = False) -> None:
        """Take all scopes begun so far, or about one portion of them, the oldest first.

        The marks are taken afterwards: by then, every scope that has ended has all of its marks.
        """
        self.until = _portion_end() if is_portion else None
        _move(buf.spared_scopes, self.scopes)
        until = self.until
        for buffers in tuple(buf.registry):
            before = len(self.scopes)
            with contextlib.suppress(IndexError):
                buffers.newest = buffers.scopes[-1]
            if until is None:
                _move(buffers.scopes, self.scopes)
            else:
                _move_begun(buffers.scopes, self.scopes, until)
            if until is None and len(self.scopes) > before:
                buffers.newest = self.scopes[-1]

    def take_others(self) -> None:
        """Take the ended spans of other libraries, and the marks made so far.

        Of a portion, take only the marks up to its end, so that their scopes are taken, too: other
        scopes would have to be in the journal.
        """
        for buffers in tuple(buf.registry):
            _move(buffers.foreign, self.foreign)
        self._samples = []
        for buffers in tuple(buf.registry):
            is_dead = buffers.dead
            before = len(self.marks)
            if self.until is not None:
                _move_until(buffers.marks, self.marks, self.until)
            else:
                _move(buffers.marks, self.marks)
            buffers.taken_marks += len(self.marks) - before
            if buffers.are_samples:
                self._samples.append(slice(before, len(self.marks)))
            if is_dead and not (buffers.scopes or buffers.marks or buffers.foreign):
                buf.release(buffers)

    def unfinished(self, ended: list[Scope]) -> set[Scope]:
        """Return the scopes among `ended` that a later portion may have marks or scopes of.

        They must not be recorded yet, because a span lists its marks, and a step decides on the
        scopes inside it.
        """
        until = self.until
        if until is None:
            return set()
        left = {entry[0] for b in tuple(buf.registry) for entry in b.marks.copy()}
        left = {scope if scope._id else recorded_above(scope) for scope in left}
        return {scope for scope in ended if scope._end > until or scope in left}

    def hold_samples(self, ended: list[Scope], *, is_last: bool = False) -> None:
        """Hold back the sampler's marks on scopes that may be discarded, unless `is_last`.

        `ended` are the scopes that are recorded now.
        """
        if self._samples or self.undecided.held:
            self._hold(self._samples, ended, is_last=is_last)

    def select_hook_marks(self) -> None:
        """Leave out the marks of the hooks that are not recorded."""
        selected = self.hook_marks.select(self.marks)
        if selected is not None:
            self.marks[:] = selected

    def _hold(self, samples: list[slice], ended: list[Scope], *, is_last: bool) -> None:
        """Retain those marks of the sampler whose scopes are certain to be recorded.

        `samples` are the places of the new ones in `marks`. The marks of a discarded scope move to
        the nearest recorded scope around it. The time of a mark is limited to the end of its scope:
        an end is determined before it is stored, and a sample may be taken in between.
        """
        others = self.marks.copy()
        new: list[MarkEntry] = []
        for place in reversed(samples):
            new[:0] = others[place]
            del others[place]
        self.undecided.see(ended)
        ready, held = self.undecided.split(new, is_last=is_last)
        for entry in ready:
            scope: Any = entry[0] if entry[0]._id else recorded_above(entry[0])
            end = end_of(scope)
            at = min(entry[3], end) if end else entry[3]
            others.append((scope, *entry[1:3], at, *entry[4:]))
        self.marks[:], self.undecided.held = others, held

    def late(self, ended: list[Scope]) -> dict[Scope, None]:
        """Return the scopes that began after `take_scopes` and that the journal must contain.

        These are the open scopes, the scopes that taken records refer to, and their ancestors.

        Such a scope may be the parent of a mark, or of an ended scope of another thread, so it must
        be in the journal and must not be dropped.
        """
        buf.stop_dropping()
        in_buffers = [buffers.scopes.copy() for buffers in tuple(buf.registry)]
        # Copied last, because threads move scopes from their buffers there.
        begun: dict[Any, None] = dict.fromkeys(buf.spared_scopes.copy())
        self.waiting = begun.keys()
        for scopes in in_buffers:
            begun.update(dict.fromkeys(scopes))
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
        """Discard the taken records, which are now in batches or counted as lost."""
        self.scopes.clear()
        self.foreign.clear()
        self.marks.clear()
        self.snapshots.clear()


def waiting() -> int:
    """Return the number of scopes in the buffers, or of marks if there are more of them."""
    alive = tuple(buf.registry)
    return max(sum(len(b.scopes) for b in alive), sum(len(b.marks) for b in alive))


def _portion_end() -> int | None:
    """Return the time up to which scopes begin and marks are made in a portion; None for no limit.

    A portion is limited by time, not by number, because threads may record at different rates.
    """
    each = PORTION // max(len(buf.registry), 1)
    ends = []
    for buffers in tuple(buf.registry):
        with contextlib.suppress(IndexError):
            ends.append(buffers.scopes[each]._start)
        with contextlib.suppress(IndexError):
            ends.append(buffers.marks[each][3])
    return min(ends, default=None)


def _move(source: deque[Any], taken: list[Any]) -> None:
    """Move the current entries of a deque; when it is full, producers may also pop entries."""
    entries = iter(source.popleft, None)
    left = len(source)
    with contextlib.suppress(IndexError):
        while left > 0:
            taken.extend(islice(entries, min(left, _AT_ONCE)))
            left -= _AT_ONCE


def _move_begun(source: deque[Any], taken: list[Any], until: int) -> None:
    """Move the scopes that began no later than `until`."""
    with contextlib.suppress(IndexError):
        while source[0]._start <= until:
            taken.extend(islice(iter(source.popleft, None), 1))


def _move_until(source: deque[Any], taken: list[Any], until: int) -> None:
    """Move the marks made no later than `until`."""
    with contextlib.suppress(IndexError):
        while source[0][3] <= until:
            taken.extend(islice(iter(source.popleft, None), 1))
