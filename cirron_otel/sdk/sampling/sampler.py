"""The sampler's thread: takes a sample at each interval and makes its marks.

It is started and supervised by the flush thread. Its errors are counted and reach no other thread.
docs/memory.md defines the marks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Final

from ...core.config.options import Config
from ...semconv import CPU_WAIT_NS, MEMORY, PLACE
from ..session.errors import record_error
from ..tracing.buffers import limits, local
from ..tracing.clock import wall
from ..tracing.mark import POINT, SampleAttributes, check_room
from ..tracing.open_scopes import TrainingThread, pinned
from .host_readers import cpu_wait_reader
from .places import Places
from .sample import SampleReader

AUTO: Final = "auto"
AUTOMATIC_S: Final = 1.0
"""The longest interval if the option is `auto`, seconds."""
_FIRST_S: Final = 0.2
_PART: Final = 0.05
"""The automatic interval as a part of the time since the sampling, or the first scope, began. It
begins with `_FIRST_S`, so that a short run has enough samples for a slope."""
DEATHS: Final = 3
DEATHS_WITHIN_S: Final = 60.0
STOP_S: Final = 1.0
"""The longest time that the end of the session waits for a sample in progress, seconds."""
LAST_SAMPLES: Final = 256


class Sampler:
    """Samples of one session. Its methods raise nothing."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        run_variable: str,
        make_reader: Callable[[], SampleReader] = SampleReader,
    ) -> None:
        """Create the sampler without starting it.

        `run_variable` is the variable that `cirron-otel run` sets in its processes.
        """
        interval = config.sample_interval
        self._is_auto = interval == AUTO
        self.interval = AUTOMATIC_S if interval == AUTO else interval
        """Seconds between samples; None if sampling is off."""
        self._is_under_run = bool(environ.get(run_variable))
        self._make_reader = make_reader
        self._reader: SampleReader | None = None
        self._training = TrainingThread(threading.get_ident())
        self._begun = 0.0
        """The time when the sampling began, or when it first found a scope open, seconds."""
        self._has_scope = False
        self._places = Places(self._training) if config.places else None
        self._cpu_wait = cpu_wait_reader() if config.cpu_wait else None
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._pid = os.getpid()
        self._is_over = False
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self.restarts = 0
        self.samples = 0
        self.cpu_ns = 0
        """CPU time of the sampler's thread so far, ns."""
        self.last: deque[tuple[int, int, SampleAttributes]] = deque(maxlen=LAST_SAMPLES)
        """The time (monotonic ns), value and attributes of the last marks about memory, for the
        record of an out-of-memory error; not their scopes, whose memory may be freed."""

    def ensure_running(self, *, is_torch_hooked: bool) -> bool:
        """Start the thread if samples are wanted, or start it again if it has ended.

        Return whether it was started for the first time. The thread that opens the session calls
        this, and the flush thread; while one of them does, the other has nothing to do.
        """
        if not self._starting.acquire(blocking=False):
            return False
        try:
            return self._start(is_wanted=not self._is_auto or self._is_under_run or is_torch_hooked)
        finally:
            self._starting.release()

    def _start(self, *, is_wanted: bool) -> bool:
        thread = self._thread
        if (thread is None and not is_wanted) or (thread is not None and thread.is_alive()):
            return False
        # After the thread: if that has ended because all is over, this is known here.
        if self.interval is None or self._is_over or os.getpid() != self._pid:
            return False
        try:
            if thread is not None and not self._may_restart():
                return False
            self._thread = threading.Thread(
                target=self._run, name="cirron-otel-sampler", daemon=True
            )  # fmt: skip
            self._thread.start()
        except Exception as error:  # no thread can be started now
            self._thread = thread
            record_error("sampler", error)
            return False
        return thread is None

    def stop(self) -> None:
        """End the thread; wait a limited time for a sample in progress."""
        self._is_over = True
        self._wake.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join(STOP_S)
        pinned.scope = None

    def abandon(self) -> None:
        """In a forked child: stop; the thread belongs to the parent."""
        self._is_over = True
        pinned.scope = None

    def stats(self) -> dict[str, Any]:
        """Return the state for `health()`."""
        thread, reader = self._thread, self._reader
        states = {} if reader is None else dict(reader.states)
        return {
            "interval": self.interval if thread is not None else None,
            "is_alive": thread is not None and thread.is_alive(),
            "samples": self.samples,
            "cpu_ns": self.cpu_ns,
            "failures": 0 if reader is None else reader.failures,
            "degraded": [name for name, state in states.items() if state.failures],
            "restarts": self.restarts,
        }

    def recent_samples(self) -> list[dict[str, Any]]:
        """Return the last readings of memory, oldest first, for the record of an OOM.

        Each has `ts_ns` (Unix ns), `allocated_bytes`, and the attributes of its mark. Callable from
        any thread.
        """
        return [
            {"ts_ns": wall(at), "allocated_bytes": value, **attributes}
            for at, value, attributes in self.last.copy()
        ]

    # --- the thread -----------------------------------------------------------------------------

    def _may_restart(self) -> bool:
        record_error("sampler", "the thread ended unexpectedly")
        now = time.monotonic()
        self._deaths.append(now)
        lately = [death for death in self._deaths if now - death < DEATHS_WITHIN_S]
        if len(lately) >= DEATHS:
            self.interval = None
            record_error("sampler", "the thread ended three times in 60 s: sampling stops")
            return False
        self.restarts += 1
        return True

    def _run(self) -> None:
        try:
            self._reader = self._reader or self._make_reader()
        except Exception as error:
            record_error("sampler", error)
            return
        local.b.are_samples = True
        self._begun = due = time.monotonic()
        while not self._is_over and self.interval is not None:
            if time.monotonic() >= due:
                self._guarded(self._sample, self._reader)
                now = time.monotonic()
                interval = self._interval_at(now - self._begun)
                due += interval
                if due < now:
                    due = now + interval  # skip the samples that were missed
            next_due, places = due, self._places
            if places is not None:
                if time.monotonic() >= places.due:
                    self._guarded(self._take_place, places)
                next_due = min(due, places.due)
            with contextlib.suppress(Empty):
                self._wake.get(timeout=max(next_due - time.monotonic(), 0))
        self._close()

    def _interval_at(self, seconds: float) -> float:
        """Return the interval these seconds after the beginning."""
        interval = self.interval or AUTOMATIC_S
        return min(max(_FIRST_S, _PART * seconds), interval) if self._is_auto else interval

    def _guarded(self, take: Callable[[Any], None], reader: Any) -> None:
        """Call a function; count its error and the CPU time that it takes."""
        begun = time.thread_time_ns()
        try:
            take(reader)
        except Exception as error:
            record_error("sampler", error)
            if reader is self._places:
                self._places = None
        finally:
            pinned.scope = None
            self.cpu_ns += time.thread_time_ns() - begun

    def _take_place(self, places: Places) -> None:
        """Mark the line at which the program is."""
        found = places.take()
        if found is not None and not self._is_over:
            scope, at, place = found
            self._mark(scope, PLACE, place, at, SampleAttributes())
            self._mark_cpu_wait(scope, at)

    def _sample(self, reader: SampleReader) -> None:
        scope, at = self._training.pin()
        if scope._depth and not self._has_scope:
            self._has_scope, self._begun = True, time.monotonic()
        marks = reader.take()
        # After the end of the session, its scopes are sealed.
        if not self._is_over:
            for name, value, attributes in marks:
                self._mark(scope, name, value, at, attributes)
            self._mark_cpu_wait(scope, at)
            self.samples += 1

    def _mark_cpu_wait(self, scope: Any, at: int) -> None:
        """Mark how long the training thread waited for a CPU since the previous mark."""
        if self._cpu_wait is None:
            return
        try:
            wait = self._cpu_wait.read(self._training.ident)
        except Exception as error:
            record_error("sampler", error)
            self._cpu_wait = None
            return
        if wait is not None:
            self._mark(scope, CPU_WAIT_NS, wait, at, SampleAttributes())

    def _mark(
        self, scope: Any, name: str, value: Any, at: int, attributes: SampleAttributes
    ) -> None:
        buffers = local.b
        waiting = len(buffers.marks)
        if waiting >= limits.marks_checked:
            check_room(buffers, waiting)
        buffers.marks.append((scope, name, value, at, POINT, attributes))
        if name == MEMORY:
            self.last.append((at, value, attributes))

    def _close(self) -> None:
        try:
            if self._reader is not None:
                self._reader.close()
        except Exception as error:
            record_error("sampler", error)
