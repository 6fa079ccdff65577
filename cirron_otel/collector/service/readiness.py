"""The readiness to accept requests, and the number and age of requests that await translation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ..receiver.journal.files import MAX_HEAD_BYTES, Position
from ..receiver.journal.writer import DEFAULT_SEGMENT_BYTES, IntakeJournal

FRAME_BYTES = MAX_HEAD_BYTES + 1024
"""The bytes that a request may take in the journal in addition to its body."""

_AGAIN_S = 5.0
"""The time for which the collector is not ready after a request could not be written, seconds."""
_MOST_MARKS = 1000
_LITTLE = 0.25
"""Space in the journal is short if less than this share of the journal's limit is free."""


class Readiness:
    """Determines whether a request of any allowed size would be accepted."""

    def __init__(
        self,
        journal: IntakeJournal,
        max_bytes: int,
        is_translating: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes` is the limit of the journal."""
        self._journal, self._max_bytes = journal, max_bytes
        self._is_translating, self._clock = is_translating, clock
        self._failed_at: float | None = None

    def note(self, *, is_kept: bool) -> None:
        """Record that a request was stored, or that a valid request could not be stored."""
        self._failed_at = None if is_kept else self._clock()

    def problem(self, request_bytes: int) -> str:
        """Return why requests are refused; empty if they are accepted.

        `request_bytes` is the size of the largest body.
        """
        if not self._is_translating():
            return "the translation is not running: it is being restarted"
        journal = self._journal
        journal.recount()
        room = self._max_bytes - journal.stored_bytes - journal.waiting_bytes
        if room < request_bytes + FRAME_BYTES:
            return "the journal is full: its requests must be translated first"
        if self._failed_at is not None and self._clock() - self._failed_at < _AGAIN_S:
            return "the last request could not be stored"
        return ""

    def is_short(self, request_bytes: int) -> bool:
        """Return whether the journal's free space is less than a quarter of its limit, or too small
        for the largest request.

        Segments that were removed since the last `recount` still count.
        """
        room = self._max_bytes - self._journal.stored_bytes - self._journal.waiting_bytes
        needed = request_bytes + FRAME_BYTES + DEFAULT_SEGMENT_BYTES
        return room < max(self._max_bytes * _LITTLE, needed)


class _JournalMark(NamedTuple):
    end: Position
    frames: int
    at: float


class Untranslated:
    """The requests in the journal that are not in the spool yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[_JournalMark] = deque()
        self._frames = self._done = 0

    def begin(self, end: Position) -> None:
        """Record, at startup, that an earlier collector left frames up to `end` in the journal."""
        self._marks.append(_JournalMark(end, 0, self._clock()))

    def keep(self, end: Position, frames: int) -> None:
        """Record that the journal now ends at `end`, with `frames` requests accepted since the
        start.
        """
        if frames == self._frames:
            return
        if len(self._marks) >= _MOST_MARKS:  # half as many marks are precise enough
            self._marks = deque([*self._marks][::2])
        self._frames = frames
        self._marks.append(_JournalMark(end, frames, self._clock()))

    def reach(self, position: Position) -> None:
        """Record that all frames before `position` are in the spool."""
        while self._marks and self._marks[0].end <= position:
            self._done = self._marks.popleft().frames

    @property
    def is_any(self) -> bool:
        """Whether any request waits."""
        return bool(self._marks)

    @property
    def requests(self) -> int:
        """The number of waiting requests that this process accepted."""
        return self._frames - self._done

    @property
    def age_s(self) -> float:
        """The age of the oldest waiting request, seconds; at most the age of this process."""
        return self._clock() - self._marks[0].at if self._marks else 0.0
