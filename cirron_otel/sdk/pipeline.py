"""The flush thread: takes what was recorded once a second, seals it, and wakes the exporters.

It is supervised: an error is counted and the thread goes on, a thread that is gone is replaced;
three deaths in 60 s leave a mode that writes the spool and sends nothing (Cirron's concepts page,
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

from . import buffers as buf
from .clock import wall_now
from .collector import FlushBuilder, FlushResult
from .errors import record_error
from .sealer import Sealer
from .taking import PORTION, waiting

DEATHS = 3
DEATHS_WITHIN_S = 60.0
_BACKOFF_S = (0.0, 0.2, 1.0)

NORMAL, SPOOL_ONLY, STOPPED = "normal", "spool_only", "stopped"


def _nothing() -> None:
    pass


class Exporter(Protocol):
    """What is told of sealed batches: `exporter.delivery.Delivery`."""

    def notify(self, name: str) -> None:
        """A batch is in the spool."""

    def look_again(self) -> None:
        """Batches of dead processes were recovered."""

    def hurry(self, timeout: float) -> None:
        """Say that `finish` comes, with that time from now; it does not wait."""

    def finish(self, timeout: float) -> bool:
        """Send what is left, within `timeout` seconds."""

    def abandon(self) -> None:
        """In a forked child: let go."""

    def stats(self) -> dict[str, Any]:
        """Where it stands."""


class Metrics(Protocol):
    """What sends metrics: `metrics_push.MetricsPush`. Nothing waits for it but the end."""

    def hurry(self) -> None:
        """All that there will be is recorded: send it, and end; it does not wait."""

    def finish(self, timeout: float) -> None:
        """Wait for that, for `timeout` seconds at most, and let go."""

    def abandon(self) -> None:
        """In a forked child: let go."""

    def stats(self) -> dict[str, Any]:
        """Where it stands."""


class Pipeline:
    """From the buffers to the spool, on a thread of its own."""

    def __init__(
        self,
        collector: FlushBuilder,
        sealer: Sealer,
        interval: float,
        sinks: tuple[Callable[[FlushResult], None], ...] = (),
    ) -> None:
        """`interval` in seconds; `sinks` are shown what each flush found, after it is sealed."""
        self.collector, self.sealer = collector, sealer
        self.exporters: list[Exporter] = []
        self.metrics: Metrics | None = None
        self._interval, self.sinks = interval, sinks
        self.before_first: Callable[[], None] = _nothing
        """Done by the flush thread before its first flush."""
        self.before_each: Callable[[], None] = _nothing
        # To put into it is safe in a signal handler that interrupted another put; an Event is not.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._asked: deque[threading.Event] = deque()
        self._is_last = False
        self._is_done = False
        self._pid = os.getpid()
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._tending = threading.Lock()
        self._rest = 0.0
        """How long a flush thread waits before it goes on: another one has died just now."""
        self.restarts = 0
        self.mode = NORMAL
        self.flushes = 0
        self.last_flush_ns = 0
        self.flush_seconds = 0.0
        """How long flushes took so far, waiting for the disk included."""
        self.longest_flush = 0.0
        self._thread = self._new_thread()

    def start(self) -> None:
        """Start the flush thread, and look after it from here on."""
        self._thread.start()
        buf.hooks.wake, buf.hooks.first = self.hurry, self.tend

    def hurry(self) -> None:
        """Flush now; called where a buffer fills up, from any thread."""
        self.tend()
        self._wake.put(None)

    def written(self, name: str) -> None:
        """A batch is in the spool: the exporters may read it."""
        if self.mode == NORMAL:
            for exporter in self.exporters:
                exporter.notify(name)

    def flush(self, timeout: float) -> bool:
        """Seal what was recorded until now; whether it is in the spool within `timeout` seconds.

        It only asks the flush thread and waits, so it may be called from a signal handler.
        """
        if os.getpid() != self._pid or self._is_done:
            return False
        if threading.current_thread() is self._thread:
            self._tick()
            return True
        done = threading.Event()
        self._asked.append(done)
        self.hurry()
        return done.wait(timeout) and not self.sealer.waiting

    def shutdown(self, timeout: float) -> bool:
        """Close what is open, seal it, send it within `timeout` seconds; whether all is done."""
        deadline = time.monotonic() + timeout
        self._is_last = True
        done = self.flush(timeout) and self.sealer.is_whole
        self._is_done = True
        self._wake.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(max(deadline - time.monotonic(), 0.1))
        is_sending = self.mode == NORMAL
        for exporter in self.exporters:  # all at once: one that is away costs the others no time
            exporter.hurry(max(deadline - time.monotonic(), 0.0) if is_sending else 0.0)
        if self.metrics is not None:
            self.metrics.hurry()
        for exporter in self.exporters:
            left = max(deadline - time.monotonic(), 0.0) if is_sending else 0.0
            done = exporter.finish(left) and is_sending and done
        if self.metrics is not None:
            self.metrics.finish(max(deadline - time.monotonic(), 0.0) if is_sending else 0.0)
        self.mode = STOPPED
        return done

    def abandon(self) -> None:
        """In a forked child: this is the parent's; there is no thread here."""
        self._is_done = True
        for exporter in self.exporters:
            exporter.abandon()
        if self.metrics is not None:
            self.metrics.abandon()

    def tend(self) -> None:
        """Replace a flush thread that is gone; called now and then by the threads that record."""
        if self._thread.is_alive() or self._is_done or os.getpid() != self._pid:
            return
        if not self._tending.acquire(blocking=False):
            return  # another thread is at it
        try:
            if not self._thread.is_alive():
                self._died("the thread was gone")
                thread = self._new_thread()
                thread.start()
                self._thread = thread
        except Exception as error:  # no thread is to be had now
            record_error("flush thread", error)
        finally:
            self._tending.release()

    @property
    def is_alive(self) -> bool:
        """Whether the flush thread runs."""
        return self._thread.is_alive()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="cirron-otel-flush", daemon=True)

    def _run(self) -> None:
        while not self._is_done:
            try:
                if self._rest:
                    rest, self._rest = self._rest, 0.0
                    time.sleep(rest)
                first, self.before_first = self.before_first, _nothing
                first()
                self._wait()
                self._serve()
            except BaseException as error:
                # SystemExit, too: nothing but the end of the session ends this thread.
                try:
                    self._died(f"{type(error).__name__}: {error}")
                except Exception as failure:
                    self._rest = _BACKOFF_S[-1]
                    record_error("flush thread", failure)
        while self._asked:  # who asked while this thread ended
            self._asked.popleft().set()

    def _wait(self) -> None:
        """Until the interval is over, or somebody asks."""
        with contextlib.suppress(Empty):
            self._wake.get(timeout=self._interval)
            for _ in range(self._wake.qsize()):
                self._wake.get_nowait()

    def _serve(self) -> None:
        asked = len(self._asked)
        try:
            self._tick()
        except BaseException:
            if asked:
                self._wake.put(None)  # who asked still waits
            raise
        for _ in range(asked):
            self._asked.popleft().set()

    def _tick(self) -> None:
        begun = time.monotonic()
        self.before_each()
        self._work_off()
        found = self._collected(is_last=self._is_last)
        if self._is_last:
            self.sealer.finish()
        self._show(found)
        took = time.monotonic() - begun
        self.flushes += 1
        self.flush_seconds += took
        self.longest_flush = max(self.longest_flush, took)
        self.last_flush_ns = wall_now()

    def _work_off(self) -> None:
        """Seal a backlog a portion at a time, for as long as it takes to come to its end."""
        rounds = 2 * waiting() // PORTION
        while rounds > 0 and waiting() > PORTION:
            self._show(self._collected(is_portion=True))
            rounds -= 1

    def _show(self, found: FlushResult) -> None:
        for sink in self.sinks:
            try:
                sink(found)
            except Exception as error:
                record_error("output", error)
        found.forget()

    def _collected(self, *, is_last: bool = False, is_portion: bool = False) -> FlushResult:
        """What was recorded until now, sealed; first what an earlier flush was broken off at."""
        try:
            left = self.collector.resume()
            if left is not None:
                self.sealer.seal(left, self.collector)
                self._show(left)
            found = self.collector.collect(is_last=is_last, is_portion=is_portion)
        except Exception as error:
            record_error("collect", error)
            raise
        self.sealer.seal(found, self.collector)
        return found

    def _died(self, why: str) -> None:
        record_error("flush thread", why)
        self.restarts += 1
        now = time.monotonic()
        self._deaths.append(now)
        lately = [death for death in self._deaths if now - death < DEATHS_WITHIN_S]
        if len(lately) >= DEATHS and self.mode == NORMAL:
            self.mode = SPOOL_ONLY
            record_error(
                "degraded", "three deaths of the flush thread in 60 s: spool only from here"
            )
        self._rest = _BACKOFF_S[min(len(lately), len(_BACKOFF_S)) - 1]
