"""The flush thread: takes all new records once a second, seals them, and wakes the exporters.

The thread is supervised: after an error it continues, and if it ends it is replaced. After three
failures in 60 s, the pipeline only writes the spool and sends nothing (Cirron's concepts page,
"Error handling").

The thread owns the flush side while it collects and seals (`ownership`). If the process ends and
its time limit has passed, the thread that ends the process takes over the flush side and saves the
remaining records.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ..session.errors import record_error
from ..tracing import buffers as buf
from ..tracing.clock import wall_now
from ..tracing.state import state
from .deferred_signals import deferred_signals
from .drain import PORTION, waiting
from .flush_builder import FlushBuilder
from .flush_result import FlushResult
from .interfaces import Exporter, Leaving, Metrics
from .leaving import OVER_S, finish_exporters, leave
from .ownership import RetiredError
from .patience import wait
from .sealer import Sealer

DEATHS = 3
DEATHS_WITHIN_S = 60.0
_BACKOFF_S = (0.0, 0.2, 1.0)
_SEND_S = 5.0
"""Seconds for sending at the end of a session without a limit."""

NORMAL, SPOOL_ONLY, STOPPED = "normal", "spool_only", "stopped"


def _nothing() -> None:
    pass


class Pipeline:
    """Moves records from the buffers to the spool, on its own thread."""

    def __init__(
        self,
        collector: FlushBuilder,
        sealer: Sealer,
        interval: float,
        sinks: tuple[Callable[[FlushResult], None], ...] = (),
    ) -> None:
        """`interval` in seconds; `sinks` receive the result of each flush once it is sealed."""
        self.collector, self.sealer = collector, sealer
        self._ownership = collector.ownership
        self.exporters: list[Exporter] = []
        self.metrics: Metrics | None = None
        self._interval, self.sinks = interval, sinks
        self.before_first: Callable[[], None] = _nothing
        """Called by the flush thread before its first flush."""
        self.before_each: Callable[[], None] = _nothing
        self.after_last: Callable[[], None] = _nothing
        """Called once the session is sealed, saved, or counted as lost, on the flush thread or on
        the thread that ends the process."""
        self.announce: Callable[[], None] = _nothing
        """Called if an exit without a limit takes some time."""
        self.remainder: Leaving | None = None
        """Saves or counts what is left at the end of the process; None until the session starts."""
        # `put` is safe in a signal handler that interrupted another `put`; an Event is not.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._asked: deque[threading.Event] = deque()
        self._results: deque[FlushResult] = deque()
        """Results that are sealed, and that the sinks have not received."""
        self._is_last = False
        self._is_done = False
        self.is_sealed = False
        """Whether the session is sealed: all of its records are in the spool, or counted."""
        self._pid = os.getpid()
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._cannot_start = False
        """Whether the flush thread has ended, and no other can be started."""
        self._has_left = threading.Event()
        """Set once the rest is saved, or counted as lost."""
        self._failures = 0
        """How often the flush has failed since the last successful one."""
        self._last_failures = 0
        """How often the last flush of the session has failed."""
        self._tending = threading.Lock()
        self._rest = 0.0
        """Seconds that the flush thread waits before it continues after a failure."""
        self.restarts = 0
        self.mode = NORMAL
        self.flushes = 0
        self.last_flush_ns = 0
        self.flush_seconds = 0.0
        """Total time of all flushes so far, including waits for the disk."""
        self.longest_flush = 0.0
        self._thread = self._new_thread()

    def start(self) -> None:
        """Start the flush thread, and replace it if it ends."""
        self._thread.start()
        buf.hooks.wake, buf.hooks.first = self.request_flush, self.ensure_alive

    def request_flush(self) -> None:
        """Request a flush now; called from any thread, for example when a buffer fills up."""
        self.ensure_alive()
        self._wake.put(None)

    def written(self, name: str) -> None:
        """Notify the exporters that a batch is in the spool."""
        if self.mode == NORMAL:
            for exporter in self.exporters:
                exporter.notify(name)

    def flush(self, timeout: float | None, announce: Callable[[], None] = _nothing) -> bool:
        """Seal all records made so far; return whether they are in the spool within `timeout` s.

        None waits as long as there is progress. This method only requests a flush and waits, so a
        signal handler may call it. `announce` is called if the wait takes long. On the flush
        thread, it seals immediately, or returns False if a flush is in progress.
        """
        if os.getpid() != self._pid or self._is_done:
            return False
        if threading.current_thread() is self._thread:
            if self._ownership.is_in_use:
                self._wake.put(None)
                return False
            self._seal_all(is_last=False)
            return not self.sealer.waiting
        done = threading.Event()

        def arrives(seconds: float) -> bool:
            self.ensure_alive()
            return done.wait(seconds) or self._cannot_start

        self._asked.append(done)
        self._wake.put(None)
        wait(arrives, timeout, self._progress, announce)
        return done.is_set() and not self._ownership.is_demanded and not self.sealer.waiting

    def shutdown(self, timeout: float | None, *, is_exit: bool = False) -> bool:
        """Close, seal, and send everything; return whether that is done within `timeout` s.

        None waits for the sealing as long as there is progress, and for sending a few seconds. If
        the time is over, the flush thread continues to seal; with `is_exit`, the rest is saved.
        """
        if os.getpid() != self._pid:
            return False
        begun = time.monotonic()
        self._is_last = True
        is_whole = self._seal_last(timeout, is_exit=is_exit) and self.sealer.is_whole
        if timeout is None:
            timeout = time.monotonic() - begun + _SEND_S
        if self._ownership.is_demanded and self.mode == STOPPED:
            return False  # everything was done before
        is_sent = finish_exporters(
            self.exporters, self.metrics, begun + timeout,
            is_sending=self.mode == NORMAL, is_exit=is_exit,
        )  # fmt: skip
        self.mode = STOPPED
        return is_whole and is_sent

    def _seal_last(self, timeout: float | None, *, is_exit: bool) -> bool:
        """Wait until the session is sealed; return whether it is."""
        begun = time.monotonic()
        try:
            if not self.is_sealed and not self._ownership.is_demanded:
                self.flush(timeout, self.announce if is_exit and timeout is None else _nothing)
                if self._cannot_start and timeout is None and not self.is_sealed:
                    with deferred_signals():
                        self._tick()  # at the interpreter's exit, no thread can be started
        except (Exception, RetiredError) as error:
            record_error("flush thread", error)
        finally:
            # Also after Ctrl-C: the user does not want to wait.
            if is_exit and not self.is_sealed and os.getpid() == self._pid:
                over_by = 0.0 if timeout is None else time.monotonic() - begun - timeout
                self._leave(time.monotonic() - max(over_by, 0.0))
        if self.is_sealed and threading.current_thread() is not self._thread:
            self._thread.join(OVER_S)
        return self.is_sealed

    def _leave(self, begun: float) -> None:
        """Take the flush side over, and save the rest; `begun` is when the time was over."""
        with deferred_signals():
            self._is_done = True
            if not self._ownership.demand():
                self._has_left.wait(OVER_S)  # another thread saves the rest
                return
            if self._ownership.is_in_use or self._has_left.is_set():
                return
            state.recording = False  # a record that is made now cannot be saved
            self._wake.put(None)
            try:
                for exporter in self.exporters:
                    exporter.request_flush(0.0)
                if self.remainder is not None:
                    leave(self._ownership, self.remainder, begun)
                self.after_last()
            except Exception as error:
                record_error("exit", error)
            finally:
                self._has_left.set()

    def seal_late(self) -> None:
        """Seal records made after the end of the session, at the process's exit."""
        if os.getpid() == self._pid and not self._thread.is_alive() and self._ownership.take():
            try:
                self.sealer.seal_late(self.collector.collect(is_last=True))
            finally:
                self._ownership.give()

    @property
    def is_over(self) -> bool:
        """Whether the session is sealed, or its rest is saved or counted as lost."""
        return self.is_sealed or self._has_left.is_set()

    def _progress(self) -> object:
        # Repeated failures are not progress.
        checkpoints = 0 if self._failures else self._ownership.checkpoints
        return checkpoints, self.sealer.batches

    def abandon(self) -> None:
        """In a forked child: stop; the threads and the records belong to the parent."""
        self._is_done = True
        for exporter in self.exporters:
            exporter.abandon()
        if self.metrics is not None:
            self.metrics.abandon()

    def ensure_alive(self) -> None:
        """Replace a flush thread that has ended; recording threads call this occasionally."""
        if self._thread.is_alive() or self._is_done or os.getpid() != self._pid:
            return
        if not self._tending.acquire(blocking=False):
            return  # another thread is replacing the flush thread
        try:
            if not self._thread.is_alive():
                thread = self._new_thread()
                thread.start()
                self._thread, self._cannot_start = thread, False
                self._died("the thread ended unexpectedly")
        except Exception as error:
            self._cannot_start = True
            record_error("flush thread", error)
        finally:
            self._tending.release()

    @property
    def is_alive(self) -> bool:
        """Whether the flush thread is running."""
        return self._thread.is_alive()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="cirron-otel-flush", daemon=True)

    def _run(self) -> None:
        try:
            self._work()
        finally:  # also if an exception ends the thread at the end of the session
            while self._is_done and self._asked:  # requests made while this thread ended
                self._asked.popleft().set()

    def _work(self) -> None:
        while not self._is_done:
            try:
                if self._rest:
                    pause_s, self._rest = self._rest, 0.0
                    time.sleep(pause_s)
                first, self.before_first = self.before_first, _nothing
                first()
                self._wait()
                self._serve()
            except RetiredError:
                break
            except BaseException as error:
                # Including SystemExit: only the end of the session ends this thread.
                self._ownership.give()  # the exception may have struck anywhere
                try:
                    self._failures += 1
                    self._last_failures += self._is_last
                    self._died(f"{type(error).__name__}: {error}")
                    if self._last_failures >= DEATHS:
                        self._give_up()
                except Exception as failure:
                    self._rest = _BACKOFF_S[-1]
                    record_error("flush thread", failure)

    def _wait(self) -> None:
        """Wait for a request, or until the interval is over."""
        with contextlib.suppress(Empty):
            # Requests that are still waiting had been noticed before the thread failed.
            self._wake.get(timeout=0.0 if self._asked else self._interval)
            for _ in range(self._wake.qsize()):
                self._wake.get_nowait()

    def _serve(self) -> None:
        request_count = len(self._asked)
        try:
            self._tick()
        except BaseException:
            if request_count:
                self._wake.put(None)  # the requests are still waiting
            raise
        self._failures = 0
        for _ in range(request_count):
            self._asked.popleft().set()

    def _tick(self) -> None:
        begun = time.monotonic()
        is_last = self._is_last
        try:
            self.before_each()
        except Exception as error:
            record_error("flush thread", error)
        self.collector.background.begin()
        self._seal_all(is_last=is_last)
        self.collector.background.end()
        took = time.monotonic() - begun
        self.flushes += 1
        self.flush_seconds += took
        self.longest_flush = max(self.longest_flush, took)
        self.last_flush_ns = wall_now()
        if is_last:
            self._end()

    def _give_up(self) -> None:
        """End the session, although its last flush fails again and again: count what it leaves."""
        self.sealer.is_whole = False
        if self._ownership.take():
            if self.remainder is not None:
                self.remainder.count_lost()
            self._ownership.give()
        self._end()

    def _end(self) -> None:
        """End the thread: the session is sealed."""
        self.is_sealed = True
        try:
            self.after_last()
        except Exception as error:
            record_error("exit", error)
        self._is_done = True

    def _seal_all(self, *, is_last: bool) -> None:
        """Seal all records made so far, a backlog one portion at a time."""
        rounds = 2 * waiting() // PORTION
        while rounds > 0 and waiting() > PORTION:
            self._collect(is_portion=True)
            self._show()
            rounds -= 1
        self._collect(is_last=is_last)
        self._show()

    def _show(self) -> None:
        while self._results:
            result = self._results.popleft()
            for sink in self.sinks:
                try:
                    sink(result)
                except Exception as error:
                    record_error("output", error)
            result.forget()

    def _collect(self, *, is_last: bool = False, is_portion: bool = False) -> None:
        """Seal all records made so far; first finish an earlier flush that was interrupted.

        Raises RetiredError if another thread has taken the flush side over.
        """
        if not self._ownership.take():
            raise RetiredError
        try:
            try:
                left = self.collector.resume()
                if left is not None:
                    self.sealer.seal(left, self.collector)
                    self._results.append(left)
                result = self.collector.collect(is_last=is_last, is_portion=is_portion)
            except Exception as error:
                record_error("collect", error)
                raise
            self.sealer.seal(result, self.collector)
            self._results.append(result)
            if is_last:
                self.sealer.finish()
        finally:
            self._ownership.give()

    def _died(self, why: str) -> None:
        record_error("flush thread", why)
        self.restarts += 1
        now = time.monotonic()
        self._deaths.append(now)
        lately = [death for death in self._deaths if now - death < DEATHS_WITHIN_S]
        if len(lately) >= DEATHS and self.mode == NORMAL:
            self.mode = SPOOL_ONLY
            record_error(
                "degraded",
                "the flush thread failed three times in 60 s: now only the spool is written",
            )
        self._rest = _BACKOFF_S[min(len(lately), len(_BACKOFF_S)) - 1]
