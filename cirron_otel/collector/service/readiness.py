"""Whether requests are taken, and what waits behind those that were."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..receiver.journal.files import MAX_HEAD_BYTES, Position
from ..receiver.journal.writer import DEFAULT_SEGMENT_BYTES, IntakeJournal

FRAME_BYTES = MAX_HEAD_BYTES + 1024
"""What a request may take in the journal beyond its body."""

_AGAIN_S = 5.0
"""So long a request that the disk did not take says that it takes none."""
_MOST_MARKS = 1000
_LITTLE = 0.25
"""Of all room."""


class Readiness:
    """Whether a request of any size that is allowed would be taken."""

    def __init__(
        self,
        journal: IntakeJournal,
        max_bytes: int,
        is_translating: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes` is what the journal may hold."""
        self._journal, self._max_bytes = journal, max_bytes
        self._is_translating, self._clock = is_translating, clock
        self._failed_at: float | None = None

    def note(self, *, is_kept: bool) -> None:
        """A request was kept, or could not be though nothing was wrong with it."""
        self._failed_at = None if is_kept else self._clock()

    def problem(self, request_bytes: int) -> str:
        """Why none is taken; empty where they are. `request_bytes` is the largest body."""
        if not self._is_translating():
            return "the translation does not run: it is started again"
        journal = self._journal
        journal.recount()
        room = self._max_bytes - journal.stored_bytes - journal.waiting_bytes
        if room < request_bytes + FRAME_BYTES:
            return "the journal is full: what is in it must be stored first"
        if self._failed_at is not None and self._clock() - self._failed_at < _AGAIN_S:
            return "the last request could not be kept"
        return ""

    def is_short(self, request_bytes: int) -> bool:
        """Whether a quarter of all room is left, or less than a request of that size may need.

        Segments that were removed since the last `recount` count as if they were there.
        """
        room = self._max_bytes - self._journal.stored_bytes - self._journal.waiting_bytes
        needed = request_bytes + FRAME_BYTES + DEFAULT_SEGMENT_BYTES
        return room < max(self._max_bytes * _LITTLE, needed)


class _JournalMark(NamedTuple):
    end: Position
    frames: int
    at: float


class Untranslated:
    """What is in the journal and not in the spool yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[_JournalMark] = deque()
        self._kept = self._done = 0

    def begin(self, end: Position) -> None:
        """The journal reaches `end` at the start: an earlier collector left something there."""
        self._marks.append(_JournalMark(end, 0, self._clock()))

    def keep(self, end: Position, frames: int) -> None:
        """The journal reaches `end` now, with so many requests since the start."""
        if frames == self._kept:
            return
        if len(self._marks) >= _MOST_MARKS:  # every other one tells enough
            self._marks = deque([*self._marks][::2])
        self._kept = frames
        self._marks.append(_JournalMark(end, frames, self._clock()))

    def reach(self, position: Position) -> None:
        """All before `position` is in the spool."""
        while self._marks and self._marks[0].end <= position:
            self._done = self._marks.popleft().frames

    @property
    def is_any(self) -> bool:
        """Whether something waits."""
        return bool(self._marks)

    @property
    def requests(self) -> int:
        """How many requests wait that this process took."""
        return self._kept - self._done

    @property
    def age_s(self) -> float:
        """How long the oldest waits, seconds; what was there at the start, from there."""
        return self._clock() - self._marks[0].at if self._marks else 0.0
