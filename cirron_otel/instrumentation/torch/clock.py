"""`gpu_ns`: pairs of events on the device's stream, read when they are done, never waited for.

Each thread asks for what it put on the stream itself, between its steps: a question from another
thread, or while a CUDA graph is captured, would break the capture (cudaEventQuery is what the
CUDA documentation calls a potentially unsafe call, in "cudaThreadExchangeStreamCaptureMode").
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic, sleep
from typing import Any, Protocol

from ...sdk.errors import record_error
from ..patches import Patches

DEADLINE_S = 10.0
"""After this a scope goes out without the device's time."""
CLOSING_S = 2.0
"""So long the end of a session waits for events."""
OFTEN = 32
"""Scopes that were settled since the last question, after which a thread asks between steps, too:
an evaluation has none."""
_POOL = 4_096
_QUIET_S = 1.0


class Source(Protocol):
    """Where events come from: CUDA, or a test."""

    def event(self) -> Any:
        """A new event: `record()`, `query() -> bool`, `elapsed_time(end) -> ms`."""

    def is_off(self) -> bool:
        """Whether nothing may be put on the stream, and nothing asked: the device is not in use
        yet, or a graph is captured.
        """

    def install(self, patches: Patches, quiet: Callable[[], None]) -> None:
        """Hook what `is_off` has to know; `quiet` returns when no thread is asking any more."""


class Line:
    """What one thread's scopes wait for. That thread alone uses the events."""

    __slots__ = ("ident", "is_over", "left", "lock", "pool", "unasked", "waiting")

    def __init__(self) -> None:
        self.ident = get_ident()
        self.pool: deque[Any] = deque(maxlen=_POOL)
        """Events that nobody uses."""
        self.waiting: deque[_Ended | _Told] = deque()
        self.left: deque[Stamp] = deque()
        """Stamps of what went out by the deadline: to be released by the thread itself."""
        self.unasked = 0
        """Scopes that were settled since it asked."""
        self.is_over = False
        """Whether the thread has ended."""
        self.lock = threading.Lock()
        """Held while something is taken from `waiting`; nobody waits for it."""


class Stamp:
    """An event that was put on the stream, with the number of those who read it."""

    __slots__ = ("event", "line", "users")

    def __init__(self, event: Any, line: Line) -> None:
        self.event, self.line = event, line
        self.users = 1

    def shared(self) -> Stamp:
        """The same, for one more reader."""
        self.users += 1
        return self

    def release(self) -> None:
        """One reader less; the event is used again when there is none."""
        self.users -= 1
        if not self.users:
            self.line.pool.append(self.event)


def span(scope: Any, stamps: list[Stamp]) -> None:
    """Let a scope's time on the stream reach to the end of what lies in it: `stamps`, its ends."""
    first, last = stamps
    own = scope._stamps
    if own is None:
        scope._stamps = [first.shared(), last.shared()]
    else:
        own[1].release()
        own[1] = last.shared()


class Clock:
    """A device's time of scopes. Its methods raise nothing."""

    def __init__(
        self,
        source: Source,
        seconds: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        """`seconds` tells the time, for deadlines; `pause` lets some pass."""
        self._source, self._seconds, self._pause = source, seconds, pause
        self._every: set[Line] = set()
        self._lines = _Lines(self._every)
        self.unread = 0
        """Scopes that went out without the device's time, by the deadline."""

    def install(self, patches: Patches) -> None:
        """Hook what the source has to know of."""
        self._source.install(patches, self._quiet)

    # --- on the stream --------------------------------------------------------------------------

    def begin(self, scope: Any) -> None:
        """The scope begins on the stream, here."""
        try:
            first = self._stamp()
            scope._stamps = None if first is None else [first, first]
        except Exception as error:
            record_error("cuda", error)

    def end(self, scope: Any) -> None:
        """It ends on the stream, here; again, if it has ended before."""
        stamps, scope._stamps = scope._stamps, None
        try:
            first, before = stamps
            last = None
            try:
                last = self._stamp()
            finally:
                if before is not first:
                    before.release()
                if last is None:
                    first.release()
            if last is not None:
                scope._stamps = [first, last]
        except Exception as error:
            record_error("cuda", error)

    def _stamp(self) -> Stamp | None:
        source = self._source
        if source.is_off():
            return None
        line = self._lines.line
        try:
            event = line.pool.pop()
        except IndexError:
            event = source.event()
            event.record()
        else:
            try:
                event.record()
            except Exception:
                # An event is its device's; the thread may have turned to another.
                line.pool.clear()
                event = source.event()
                event.record()
        return Stamp(event, line)

    # --- waiting --------------------------------------------------------------------------------

    def settle(self, scope: Any) -> None:
        """Finish the scope when its time is known, or the deadline is over."""
        # What autograd computes on a thread of its own is asked for by the one that waits for it.
        around = getattr(scope._above, "_stamps", None)
        line = (around or scope._stamps)[0].line
        line.waiting.append(_Ended(scope, self._seconds() + DEADLINE_S))
        line.unasked += 1
        if line.unasked >= OFTEN and line.ident == get_ident():
            self._ask(line)

    def read(self, step: Any, value: Any, then: Callable[[Any], None]) -> None:
        """Call `then(step)` when `value`, a scalar on the device, turns out not to be zero.

        It is asked before a step that is settled later is finished.
        """
        try:
            if self._source.is_off():
                return
            # Not blocking, torch copies it into pinned memory.
            told = value.detach().to("cpu", non_blocking=True)
            stamp = self._stamp()
            if stamp is not None:
                due = self._seconds() + DEADLINE_S
                stamp.line.waiting.append(_Told(stamp, told, lambda: then(step), due))
        except Exception as error:
            record_error("cuda", error)

    def poll(self) -> None:
        """Read what is done of the calling thread's."""
        line = self._lines.line
        if line.waiting or line.left:
            self._ask(line)

    def _ask(self, line: Line) -> None:
        line.unasked = 0
        if not line.lock.acquire(blocking=False):
            return
        try:
            if self._source.is_off():  # asked under the lock: who begins a capture waits for it
                return
            while line.left:
                line.left.popleft().release()
            now = self._seconds()
            while line.waiting:
                entry = line.waiting[0]
                is_done = self._is_done(entry)
                if not is_done and now < entry.due:
                    return
                line.waiting.popleft()
                self._finish(entry, line, is_done=is_done)
        except Exception as error:
            record_error("cuda", error)
        finally:
            line.lock.release()

    def _is_done(self, entry: Any) -> bool:
        try:
            return bool(entry.is_done())
        except Exception as error:
            record_error("cuda", error)
            entry.due = 0.0
            return False

    def expire(self) -> None:
        """Let go of what is overdue, asking the device nothing: on any thread."""
        now = self._seconds()
        for line in tuple(self._every):
            if not line.lock.acquire(blocking=False):
                continue  # its thread is asking just now
            try:
                while line.waiting and line.waiting[0].due <= now:
                    self._finish(line.waiting.popleft(), line, is_done=False)
            finally:
                line.lock.release()
            if line.is_over and not line.waiting:
                self._every.discard(line)

    def _finish(self, entry: Any, line: Line, *, is_done: bool) -> None:
        try:
            if is_done:
                entry.finish()
            else:
                self.unread += 1
                entry.give_up(line.left)
        except Exception as error:
            record_error("cuda", error)

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """The session ends: wait a little for the calling thread's scopes, and for those of
        threads that have ended; let go of everything.
        """
        try:
            until = self._seconds() + CLOSING_S
            own = self._lines.line
            lines = [line for line in self._every if line is own or line.is_over]
            while not self._source.is_off() and self._seconds() < until:
                for line in lines:
                    self._ask(line)
                if not any(line.waiting for line in lines):
                    break
                self._pause(0.002)
            for line in tuple(self._every):
                while line.waiting:
                    self._finish(line.waiting.popleft(), line, is_done=False)
        except Exception as error:
            record_error("cuda", error)

    def _quiet(self) -> None:
        """Return when no thread is asking any more. Those that come now know that they may not."""
        for line in tuple(self._every):
            if line.lock.acquire(timeout=_QUIET_S):
                line.lock.release()


class _Lines(threading.local):
    """The calling thread's, as `line`."""

    def __init__(self, every: set[Line]) -> None:
        self.line = Line()
        self._sentinel = _Sentinel(self.line)
        every.add(self.line)


class _Sentinel:
    """Dies with its thread."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def __del__(self) -> None:
        self._line.is_over = True


class _Ended:
    """A scope that is over, and whose events may not be."""

    __slots__ = ("due", "scope")

    def __init__(self, scope: Any, due: float) -> None:
        self.scope, self.due = scope, due

    def is_done(self) -> bool:
        """Whether both events are: they may lie on two streams."""
        stamps = self.scope._stamps
        return stamps is None or (stamps[1].event.query() and stamps[0].event.query())

    def finish(self) -> None:
        """Its events are done."""
        scope = self.scope
        stamps, scope._stamps = scope._stamps, None
        if stamps is None:
            return  # somebody has closed it
        first, last = stamps
        try:
            milliseconds = first.event.elapsed_time(last.event)
            scope.more.gpu_ns = max(round(milliseconds * 1e6), 0)
        finally:
            scope.finish()
            first.release()
            last.release()

    def give_up(self, left: deque[Stamp]) -> None:
        """It goes out as it is; its stamps are `left`."""
        scope = self.scope
        stamps, scope._stamps = scope._stamps, None
        if stamps is not None:
            scope.finish()
            left.extend(stamps)


class _Told:
    """A value that was copied from the device."""

    __slots__ = ("due", "last", "then", "value")

    def __init__(self, stamp: Stamp, value: Any, then: Callable[[], None], due: float) -> None:
        self.last, self.value, self.then, self.due = stamp, value, then, due

    def is_done(self) -> bool:
        """Whether the copy behind which its event lies has arrived."""
        return bool(self.last.event.query())

    def finish(self) -> None:
        """The copy is done."""
        try:
            if self.value.item():
                self.then()
        finally:
            self.last.release()

    def give_up(self, left: deque[Stamp]) -> None:
        """Nobody knows."""
        left.append(self.last)
