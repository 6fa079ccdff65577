"""The flush thread: takes all new records once a second, seals them, and wakes the exporters.

The thread is supervised: after an error it continues, and if it ends it is replaced. After three
failures in 60 s, the pipeline only writes the spool and sends nothing (Cirron's concepts page,
"Error handling").
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from ..session.errors import record_error
from ..tracing import buffers as buf
from ..tracing.clock import wall_now
from .drain import PORTION, waiting
from .flush_builder import FlushBuilder
from .flush_result import FlushResult
from .sealer import Sealer

DEATHS = 3
DEATHS_WITHIN_S = 60.0
_BACKOFF_S = (0.0, 0.2, 1.0)

NORMAL, SPOOL_ONLY, STOPPED = "normal", "spool_only", "stopped"


def _nothing() -> None:
    pass


class Exporter(Protocol):
    """Receives the names of sealed batches; implemented by the delivery thread."""

    def notify(self, name: str) -> None:
        """Process a batch that is in the spool."""

    def rescan(self) -> None:
        """Look for batches that were recovered from dead processes."""

    def request_flush(self, timeout: float) -> None:
        """Announce, without waiting, that `finish` follows and has `timeout` seconds from now."""

    def finish(self, timeout: float) -> bool:
        """Send the remaining batches within `timeout` seconds; return whether all are sent."""

    def abandon(self) -> None:
        """In a forked child: release everything without sending."""

    def stats(self) -> dict[str, Any]:
        """Return the state for `health()`."""


class Metrics(Protocol):
    """Sends metrics; implemented by `metrics_push.MetricsPush`.

    Only the end of the session waits for it.
    """

    def request_flush(self) -> None:
        """Request the last export and the end of the thread, without waiting."""

    def finish(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the last export, and release the connection."""

    def abandon(self) -> None:
        """In a forked child: release everything without sending."""

    def stats(self) -> dict[str, Any]:
        """Return the state for `health()`."""


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
        self.exporters: list[Exporter] = []
        self.metrics: Metrics | None = None
        self._interval, self.sinks = interval, sinks
        self.before_first: Callable[[], None] = _nothing
        """Called by the flush thread before its first flush."""
        self.before_each: Callable[[], None] = _nothing
        # `put` is safe in a signal handler that interrupted another `put`; an Event is not.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._asked: deque[threading.Event] = deque()
        self._is_last = False
        self._is_done = False
        self._pid = os.getpid()
        self._deaths: deque[float] = deque(maxlen=DEATHS)
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

    def flush(self, timeout: float) -> bool:
        """Seal all records made so far; return whether they are in the spool within `timeout` s.

        This method only requests a flush and waits, so a signal handler may call it.
        """
        if os.getpid() != self._pid or self._is_done:
            return False
        if threading.current_thread() is self._thread:
            self._tick()
            return True
        done = threading.Event()
        self._asked.append(done)
        self.request_flush()
        return done.wait(timeout) and not self.sealer.waiting

    def shutdown(self, timeout: float) -> bool:
        """Close, seal, and send everything; return whether that is done within `timeout` s."""
        deadline = time.monotonic() + timeout
        self._is_last = True
        done = self.flush(timeout) and self.sealer.is_whole
        self._is_done = True
        self._wake.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(max(deadline - time.monotonic(), 0.1))
        is_sending = self.mode == NORMAL
        # Flush all exporters at once, so that an unreachable target does not delay the others.
        for exporter in self.exporters:
            exporter.request_flush(max(deadline - time.monotonic(), 0.0) if is_sending else 0.0)
        if self.metrics is not None:
            self.metrics.request_flush()
        for exporter in self.exporters:
            left = max(deadline - time.monotonic(), 0.0) if is_sending else 0.0
            done = exporter.finish(left) and is_sending and done
        if self.metrics is not None:
            self.metrics.finish(max(deadline - time.monotonic(), 0.0) if is_sending else 0.0)
        self.mode = STOPPED
        return done

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
                self._died("the thread ended unexpectedly")
                thread = self._new_thread()
                thread.start()
                self._thread = thread
        except Exception as error:  # no thread can be started now
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
        while not self._is_done:
            try:
                if self._rest:
                    pause_s, self._rest = self._rest, 0.0
                    time.sleep(pause_s)
                first, self.before_first = self.before_first, _nothing
                first()
                self._wait()
                self._serve()
            except BaseException as error:
                # Including SystemExit: only the end of the session ends this thread.
                try:
                    self._died(f"{type(error).__name__}: {error}")
                except Exception as failure:
                    self._rest = _BACKOFF_S[-1]
                    record_error("flush thread", failure)
        while self._asked:  # requests made while this thread ended
            self._asked.popleft().set()

    def _wait(self) -> None:
        """Wait for a request, or until the interval is over."""
        with contextlib.suppress(Empty):
            self._wake.get(timeout=self._interval)
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
        for _ in range(request_count):
            self._asked.popleft().set()

    def _tick(self) -> None:
        begun = time.monotonic()
        self.before_each()
        self._work_off()
        result = self._collected(is_last=self._is_last)
        if self._is_last:
            self.sealer.finish()
        self._show(result)
        took = time.monotonic() - begun
        self.flushes += 1
        self.flush_seconds += took
        self.longest_flush = max(self.longest_flush, took)
        self.last_flush_ns = wall_now()

    def _work_off(self) -> None:
        """Seal a backlog one portion at a time, up to a limited number of portions."""
        rounds = 2 * waiting() // PORTION
        while rounds > 0 and waiting() > PORTION:
            self._show(self._collected(is_portion=True))
            rounds -= 1

    def _show(self, result: FlushResult) -> None:
        for sink in self.sinks:
            try:
                sink(result)
            except Exception as error:
                record_error("output", error)
        result.forget()

    def _collected(self, *, is_last: bool = False, is_portion: bool = False) -> FlushResult:
        """Seal all records made so far; first finish an earlier flush that was interrupted."""
        try:
            left = self.collector.resume()
            if left is not None:
                self.sealer.seal(left, self.collector)
                self._show(left)
            result = self.collector.collect(is_last=is_last, is_portion=is_portion)
        except Exception as error:
            record_error("collect", error)
            raise
        self.sealer.seal(result, self.collector)
        return result

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
