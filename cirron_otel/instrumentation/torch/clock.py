"""`gpu_ns`: pairs of events on the device's stream, read when they are done, never waited for.

Events are asked on the thread that trains, between steps: asking from another thread while a CUDA
graph is captured would break the capture. While one is captured nothing is recorded or asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Protocol

from ...config import Config
from ...sdk.errors import swallowed

DEADLINE_S = 10.0
"""After this a scope goes out without the device's time."""
CLOSING_S = 2.0
"""So long the end of a session waits for events."""
_POOL = 4_096


class Source(Protocol):
    """Where events come from: CUDA, or a test."""

    def event(self) -> Any:
        """A new event: `record()`, `query() -> bool`, `elapsed_time(end) -> ms`."""

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""


class Stamp:
    """An event that was put on the stream, with the number of those who read it."""

    __slots__ = ("_pool", "event", "users")

    def __init__(self, event: Any, pool: deque[Any]) -> None:
        self.event = event
        self.users = 1
        self._pool = pool

    def shared(self) -> Stamp:
        """The same, for one more reader."""
        self.users += 1
        return self

    def release(self) -> None:
        """One reader less; the event is used again when there is none."""
        self.users -= 1
        if not self.users and len(self._pool) < _POOL:
            self._pool.append(self.event)


class Clock:
    """A device's time of scopes. Its methods raise nothing."""

    def __init__(self, source: Source, seconds: Callable[[], float] = monotonic) -> None:
        self._source, self._seconds = source, seconds
        self._pool: deque[Any] = deque()
        self._waiting: deque[_Ended | _Told] = deque()
        self.unread = 0
        """Scopes that went out without the device's time, by the deadline."""

    def _stamp(self) -> Stamp | None:
        if self._source.is_capturing():
            return None
        try:
            event = self._pool.pop()
        except IndexError:
            event = self._source.event()
        event.record()
        return Stamp(event, self._pool)

    def begin(self, scope: Any) -> None:
        """The scope begins on the stream, here."""
        try:
            first = self._stamp()
            scope._stamps = None if first is None else [first, first]
        except Exception as error:
            swallowed("cuda", error)

    def end(self, scope: Any) -> None:
        """It ends on the stream, here."""
        stamps, scope._stamps = scope._stamps, None
        try:
            last = self._stamp()
            if last is None:
                stamps[0].release()
            else:
                scope._stamps = [stamps[0], last]
        except Exception as error:
            swallowed("cuda", error)

    def settle(self, scope: Any) -> None:
        """Finish the scope when its time is known, or the deadline is over."""
        self._waiting.append(_Ended(scope, self._due()))

    def read(self, step: Any, value: Any, then: Callable[[Any], None]) -> None:
        """Call `then(step)` when `value`, a scalar on the device, turns out not to be zero.

        It is asked before a step that is settled later is finished.
        """
        told = value.detach().to("cpu", non_blocking=True)
        stamp = self._stamp()
        if stamp is not None:
            self._waiting.append(_Told(stamp, told, lambda: then(step), self._due()))

    def _due(self) -> float:
        return self._seconds() + DEADLINE_S

    def poll(self) -> None:
        """Read what is done, on the thread that trains."""
        waiting = self._waiting
        if not waiting or self._source.is_capturing():
            return
        now = self._seconds()
        while waiting:
            try:
                entry = waiting.popleft()
            except IndexError:
                return
            is_done = self._is_done(entry)
            if not is_done and now < entry.due:
                waiting.appendleft(entry)
                return
            self._finish(entry, is_done=is_done)

    def _is_done(self, entry: Any) -> bool:
        try:
            return bool(entry.last.event.query())
        except Exception as error:
            swallowed("cuda", error)
            entry.due = 0.0
            return False

    def expire(self) -> None:
        """Let go of what is overdue, asking the device nothing: on any thread."""
        now = self._seconds()
        while self._waiting:
            try:
                entry = self._waiting.popleft()
            except IndexError:
                return
            if now < entry.due:
                self._waiting.appendleft(entry)
                return
            self._finish(entry, is_done=False)

    def _finish(self, entry: Any, *, is_done: bool) -> None:
        if not is_done:
            self.unread += 1
        try:
            entry.finish(is_done)
        except Exception as error:
            swallowed("cuda", error)

    def close(self) -> None:
        """The session ends: wait a little, and let go of everything."""
        until = self._seconds() + CLOSING_S
        self.poll()
        while self._waiting and self._seconds() < until:
            sleep(0.002)
            self.poll()
        while self._waiting:
            self._finish(self._waiting.popleft(), is_done=False)


class _Ended:
    """A scope that is over, and whose events may not be."""

    __slots__ = ("due", "last", "scope")

    def __init__(self, scope: Any, due: float) -> None:
        self.scope, self.due = scope, due
        self.last: Stamp = scope._stamps[1]

    def finish(self, is_done: bool) -> None:
        scope = self.scope
        first, last = scope._stamps
        scope._stamps = None
        try:
            if is_done:
                milliseconds = first.event.elapsed_time(last.event)
                scope.more.gpu_ns = max(round(milliseconds * 1e6), 0)
        finally:
            scope.finish()
            if is_done:
                first.release()
                last.release()


class _Told:
    """A value that was copied from the device."""

    __slots__ = ("due", "last", "then", "value")

    def __init__(self, stamp: Stamp, value: Any, then: Callable[[], None], due: float) -> None:
        self.last, self.value, self.then, self.due = stamp, value, then, due

    def finish(self, is_done: bool) -> None:
        if is_done:
            if self.value.item():
                self.then()
            self.last.release()


class _Cuda:
    """CUDA's events (ROCm's, too)."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415

        self._event = torch.cuda.Event
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing

    def event(self) -> Any:
        """An event that measures time."""
        return self._event(enable_timing=True)


class Memory:
    """The allocator's peaks of a step. It resets the peak statistics that torch keeps."""

    def begin(self, _step: Any) -> None:
        """A step begins."""
        import torch  # noqa: PLC0415

        torch.cuda.reset_peak_memory_stats()

    def end(self, step: Any) -> None:
        """It ends: `cuda.memory_peak_bytes` and `cuda.memory_reserved_peak_bytes`."""
        import torch  # noqa: PLC0415

        step._attrs["cuda.memory_peak_bytes"] = torch.cuda.max_memory_allocated()
        step._attrs["cuda.memory_reserved_peak_bytes"] = torch.cuda.max_memory_reserved()


def clock_of(config: Config) -> Clock | None:
    """The clock of this process's device; None where there is none, or it is not wanted."""
    return Clock(_Cuda()) if config.cuda_timing and _has_cuda() else None


def memory_of(config: Config) -> Memory | None:
    """What reads the device's memory; None where there is none, or it is not wanted."""
    return Memory() if config.cuda_memory and _has_cuda() else None


def devices() -> frozenset[str]:
    """Types of the devices that data are copied to."""
    import torch  # noqa: PLC0415

    found = set()
    if _has_cuda():
        found.add("cuda")
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        found.add(accelerator.current_accelerator().type)
    return frozenset(found - {"cpu"})


def _has_cuda() -> bool:
    import torch  # noqa: PLC0415

    return bool(torch.cuda.is_available())
