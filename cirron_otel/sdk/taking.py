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
from .foreign import Ended
from .scope import Scope

_AT_ONCE = 4096
"""Entries moved in one call: for so long, about 0.2 ms, no other thread runs."""


@dataclass(slots=True)
class Taken:
    """What one flush is about."""

    ended: list[Scope]
    foreign: list[Ended]
    marks: list[MarkEntry]
    open: dict[Scope, int]
    """Scopes that are open, by how many flushes have seen them so."""
    late: dict[Scope, None]
    """Scopes begun since, on which something of this hangs; they stay in the buffers."""
    is_last: bool


@dataclass(slots=True)
class Change:
    """What the collector is to be once all is put together; the counts are totals."""

    mark_ids: dict[Scope, bytearray] = field(default_factory=dict)
    announced: set[Scope] = field(default_factory=set)
    segments: list[Any] = field(default_factory=list)
    """Those that the batch names."""
    scopes: int = 0
    spans: int = 0
    marks: int = 0
    spans_lost: int = 0
    marks_lost: int = 0
    overhead_ns: int = 0


class Taking:
    """What was taken and is in no batch yet."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.foreign: list[Ended] = []
        self.marks: list[MarkEntry] = []

    def take_scopes(self) -> None:
        """Take the scopes begun so far.

        The marks are taken when it is known which of them have ended: those have all of theirs.
        """
        _move(buf.kept, self.scopes)
        for buffers in tuple(buf.registry):
            _move(buffers.scopes, self.scopes)

    def take_others(self) -> None:
        """Take the marks made so far, and the spans of others that have ended."""
        for buffers in tuple(buf.registry):
            _move(buffers.foreign, self.foreign)
        for buffers in tuple(buf.registry):
            is_dead = buffers.dead
            before = len(self.marks)
            _move(buffers.marks, self.marks)
            buffers.taken_marks += len(self.marks) - before
            if is_dead and not (buffers.scopes or buffers.marks or buffers.foreign):
                buf.forget(buffers)

    def late(self, ended: list[Scope]) -> dict[Scope, None]:
        """Scopes begun since scopes were taken, as far as the marks and `ended` ones name them.

        A mark, or a scope of another thread that has ended, may hang on one of them: it must be
        known to the journal, and stay. The open ones are all among them.
        """
        begun: dict[Any, None] = dict.fromkeys(buf.kept.copy())
        for buffers in tuple(buf.registry):
            begun.update(dict.fromkeys(buffers.scopes.copy()))
        buf.held.scopes = begun.keys()
        if not begun:
            return {}
        named = {entry[0] for entry in self.marks} | {scope._above for scope in ended}
        late: dict[Any, None] = {}
        for scope in begun:
            each: Any = scope if not scope._end or scope in named else None
            while each in begun and each not in late:
                late[each] = None
                each = each._above
        buf.held.scopes = late.keys()
        return {scope: None for scope in late if scope._id}

    def clear(self) -> None:
        """Forget what was taken: it is in batches."""
        self.scopes.clear()
        self.foreign.clear()
        self.marks.clear()


def _move(some: deque[Any], taken: list[Any]) -> None:
    """Move what stands in a deque now; producers may pop there, too, when it is full."""
    entries = iter(some.popleft, None)
    left = len(some)
    with contextlib.suppress(IndexError):
        while left > 0:
            taken.extend(islice(entries, min(left, _AT_ONCE)))
            left -= _AT_ONCE
