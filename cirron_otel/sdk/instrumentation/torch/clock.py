"""Measure `gpu_ns` with pairs of events on the device's stream, without ever waiting for an event.

Each thread queries its own events, between its steps. A query from another thread, or while a CUDA
graph is being captured, would break the capture: the CUDA documentation calls cudaEventQuery a
potentially unsafe call ("cudaThreadExchangeStreamCaptureMode").
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from time import monotonic, sleep
from typing import Any, Protocol

from ...session.errors import record_error
from ..patches import Patches

DEADLINE_S = 10.0
"""Seconds after which a scope is written without the device's time."""
CLOSING_S = 2.0
"""The longest wait for events at the end of a session, seconds."""
OFTEN = 32
"""After this many settled scopes, a thread queries its events without waiting for the end of a
step, because an evaluation has no steps."""
_POOL = 4_096
_QUIET_S = 1.0


class EventSource(Protocol):
    """A source of events: CUDA, or a test."""

    def event(self) -> Any:
        """Return a new event, with `record()`, `query() -> bool` and `elapsed_time(end) -> ms`."""

    def is_off(self) -> bool:
        """Return whether events may neither be recorded nor queried.

        This is the case if the device is not in use yet, or while a graph is being captured.
        """

    def install(self, patches: Patches, wait_for_queries: Callable[[], None]) -> None:
        """Hook the functions that `is_off` depends on.

        `wait_for_queries` returns once no thread is querying.
        """


class EventQueue:
    """The events that one thread's scopes wait for; only that thread may use them."""

    __slots__ = ("expired", "ident", "is_over", "lock", "pool", "unqueried", "waiting")

    def __init__(self) -> None:
        self.ident = get_ident()
        self.pool: deque[Any] = deque(maxlen=_POOL)
        """Events that can be reused."""
        self.waiting: deque[_EndedScope | _CopiedValue] = deque()
        self.expired: deque[Stamp] = deque()
        """Stamps of scopes that were written at the deadline; the thread itself releases them."""
        self.unqueried = 0
        """Number of scopes settled since the last query."""
        self.is_over = False
        """Whether the thread has ended."""
        self.lock = threading.Lock()
        """Held while an entry is taken from `waiting`; usually acquired without blocking."""


class Stamp:
    """An event recorded on the stream, with the number of its readers."""

    __slots__ = ("event", "queue", "users")

    def __init__(self, event: Any, queue: EventQueue) -> None:
        self.event, self.queue = event, queue
        self.users = 1

    def acquire(self) -> Stamp:
        """Add one reader, and return this stamp."""
        self.users += 1
        return self

    def release(self) -> None:
        """Remove one reader; without readers, the event can be reused."""
        self.users -= 1
        if not self.users:
            self.queue.pool.append(self.event)


class Clock:
    """Measures the device time of scopes. Its methods never raise."""

    def __init__(
        self,
        source: EventSource,
        seconds: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        """`seconds` returns the time, for deadlines; `pause` sleeps."""
        self._source, self._seconds, self._pause = source, seconds, pause
        self._all_queues: set[EventQueue] = set()
        self._queues = _ThreadQueue(self._all_queues)
        self.unread = 0
        """Number of scopes that were written at the deadline, without the device's time."""

    def install(self, patches: Patches) -> None:
        """Hook the functions that the source depends on."""
        self._source.install(patches, self._wait_for_queries)

    # --- on the stream --------------------------------------------------------------------------

    def begin(self, scope: Any) -> None:
        """Mark the beginning of a scope on the stream."""
        try:
            first = self._stamp()
            scope._stamps = None if first is None else [first, first]
        except Exception as error:
            record_error("cuda", error)

    def end(self, scope: Any) -> None:
        """Mark the end of a scope on the stream; a later mark replaces an earlier one."""
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
        queue = self._queues.queue
        try:
            event = queue.pool.pop()
        except IndexError:
            event = source.event()
            event.record()
        else:
            try:
                event.record()
            except Exception:
                # An event belongs to one device, and the thread may have switched to another.
                queue.pool.clear()
                event = source.event()
                event.record()
        return Stamp(event, queue)

    # --- waiting --------------------------------------------------------------------------------

    def settle(self, scope: Any) -> None:
        """Finish the scope once its time is known, or at the deadline."""
        # The thread that waits for autograd's threads also queries their events.
        parent_stamps = getattr(scope._above, "_stamps", None)
        queue = (parent_stamps or scope._stamps)[0].queue
        queue.waiting.append(_EndedScope(scope, self._seconds() + DEADLINE_S))
        queue.unqueried += 1
        if queue.unqueried >= OFTEN and queue.ident == get_ident():
            self._query(queue)

    def read(self, step: Any, value: Any, callback: Callable[[Any], None]) -> None:
        """Call `callback(step)` once `value`, a scalar on the device, turns out not to be zero.

        The value is read before any step that is settled later is finished.
        """
        try:
            if self._source.is_off():
                return
            # For a non-blocking copy, torch uses pinned memory.
            copied = value.detach().to("cpu", non_blocking=True)
            stamp = self._stamp()
            if stamp is not None:
                due = self._seconds() + DEADLINE_S
                stamp.queue.waiting.append(_CopiedValue(stamp, copied, lambda: callback(step), due))
        except Exception as error:
            record_error("cuda", error)

    def poll(self) -> None:
        """Read the completed events of the calling thread."""
        queue = self._queues.queue
        if queue.waiting or queue.expired:
            self._query(queue)

    def _query(self, queue: EventQueue) -> None:
        queue.unqueried = 0
        if not queue.lock.acquire(blocking=False):
            return
        try:
            if (
                self._source.is_off()
            ):  # checked while holding the lock, which the beginning of a capture waits for
                return
            while queue.expired:
                queue.expired.popleft().release()
            now = self._seconds()
            while queue.waiting:
                entry = queue.waiting[0]
                is_done = self._is_done(entry)
                if not is_done and now < entry.due:
                    return
                queue.waiting.popleft()
                self._finish(entry, queue, is_done=is_done)
        except Exception as error:
            record_error("cuda", error)
        finally:
            queue.lock.release()

    def _is_done(self, entry: Any) -> bool:
        try:
            return bool(entry.is_done())
        except Exception as error:
            record_error("cuda", error)
            entry.due = 0.0
            return False

    def expire(self) -> None:
        """Finish the overdue scopes without querying the device. May be called on any thread."""
        now = self._seconds()
        for queue in tuple(self._all_queues):
            if not queue.lock.acquire(blocking=False):
                continue  # its thread is querying
            try:
                while queue.waiting and queue.waiting[0].due <= now:
                    self._finish(queue.waiting.popleft(), queue, is_done=False)
            finally:
                queue.lock.release()
            if queue.is_over and not queue.waiting:
                self._all_queues.discard(queue)

    def _finish(self, entry: Any, queue: EventQueue, *, is_done: bool) -> None:
        try:
            if is_done:
                entry.finish()
            else:
                self.unread += 1
                entry.give_up(queue.expired)
        except Exception as error:
            record_error("cuda", error)

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish all scopes at the end of the session.

        First wait briefly for the events of the calling thread and of ended threads.
        """
        try:
            until = self._seconds() + CLOSING_S
            stamps_of_scope = self._queues.queue
            queues = [
                queue for queue in self._all_queues if queue is stamps_of_scope or queue.is_over
            ]
            while not self._source.is_off() and self._seconds() < until:
                for queue in queues:
                    self._query(queue)
                if not any(queue.waiting for queue in queues):
                    break
                self._pause(0.002)
            for queue in tuple(self._all_queues):
                while queue.waiting:
                    self._finish(queue.waiting.popleft(), queue, is_done=False)
        except Exception as error:
            record_error("cuda", error)

    def _wait_for_queries(self) -> None:
        """Return once no thread is querying; a query that begins now sees the source as off."""
        for queue in tuple(self._all_queues):
            if queue.lock.acquire(timeout=_QUIET_S):
                queue.lock.release()


class _ThreadQueue(threading.local):
    """The calling thread's queue, as the attribute `queue`."""

    def __init__(self, all_queues: set[EventQueue]) -> None:
        self.queue = EventQueue()
        self._sentinel = _Sentinel(self.queue)
        all_queues.add(self.queue)


class _Sentinel:
    """Marks a queue as over when its thread ends."""

    __slots__ = ("_queue",)

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def __del__(self) -> None:
        self._queue.is_over = True


class _EndedScope:
    """A scope that has ended, and whose events may still be pending."""

    __slots__ = ("due", "scope")

    def __init__(self, scope: Any, due: float) -> None:
        self.scope, self.due = scope, due

    def is_done(self) -> bool:
        """Return whether both events are done, since they may be on two streams."""
        stamps = self.scope._stamps
        return stamps is None or (stamps[1].event.query() and stamps[0].event.query())

    def finish(self) -> None:
        """Finish the scope, whose events are done."""
        scope = self.scope
        stamps, scope._stamps = scope._stamps, None
        if stamps is None:
            return  # the scope was finished meanwhile
        first, last = stamps
        try:
            milliseconds = first.event.elapsed_time(last.event)
            scope.more.gpu_ns = max(round(milliseconds * 1e6), 0)
        finally:
            scope.finish()
            first.release()
            last.release()

    def give_up(self, expired: deque[Stamp]) -> None:
        """Finish the scope without a time, and append its stamps to `expired`."""
        scope = self.scope
        stamps, scope._stamps = scope._stamps, None
        if stamps is not None:
            scope.finish()
            expired.extend(stamps)


class _CopiedValue:
    """A value copied from the device."""

    __slots__ = ("callback", "due", "last", "value")

    def __init__(self, stamp: Stamp, value: Any, callback: Callable[[], None], due: float) -> None:
        self.last, self.value, self.callback, self.due = stamp, value, callback, due

    def is_done(self) -> bool:
        """Return whether the event recorded after the copy is done."""
        return bool(self.last.event.query())

    def finish(self) -> None:
        """Call the callback if the value is not zero."""
        try:
            if self.value.item():
                self.callback()
        finally:
            self.last.release()

    def give_up(self, expired: deque[Stamp]) -> None:
        """Give up waiting for the value."""
        expired.append(self.last)
