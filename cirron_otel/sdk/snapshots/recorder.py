"""Snapshots of the watched model, one at the end of each epoch (docs/snapshots.md).

The training thread measures and copies, because the weights change afterwards. A separate thread
writes files. The flush thread creates the records once a snapshot is measured and its files, if
requested, are written. Excess data is dropped and counted; training never waits for it.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from os import urandom
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.spool.blobs import GRADIENTS, WEIGHTS
from ...errors import CirronOtelError
from ..flush.rows import SnapshotRow
from ..session.errors import record_error
from ..tracing.buffers import local
from ..tracing.clock import now, wall
from ..tracing.rare_work import add_rare
from ..tracing.state import ignore_epoch, state

if TYPE_CHECKING:
    from ..tracing.scope import Scope
    from .capture import Capture

STATS, SAMPLED, FULL = "stats", "sampled", "full"

MOST_BYTES = 4 << 30
"""Maximum bytes of copied tensors that wait to be written; beyond that, tensors get no file."""
MOST_WAITING = 1_000
"""Maximum number of snapshots that wait to be written, however small."""
_ATTEMPTS = 2
"""Maximum number of attempts to write a snapshot's files if the thread is interrupted."""


class TakenSnapshot:
    """A snapshot whose records are created later."""

    def __init__(self, scope: Scope, capture: Capture, mode: str) -> None:
        """`mode` is the mode of records whose tensor is in a file."""
        self.scope = scope
        self._capture = capture
        self._mode = mode
        self._ts_ns = wall(scope._end or getattr(scope, "_until", 0) or now())
        self.copies = capture.copies
        self.bytes = sum(each.size for each in capture.copies)
        self.uris: dict[bool, str] = {}
        """URIs of the written files, by whether they contain gradients."""
        self.attempts = 0
        self.is_written = not capture.copies
        """Whether all files are written, or none is requested."""
        self._rows: list[SnapshotRow] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its records can be created."""
        return self.is_written and self._capture.is_measured

    def rows(self) -> list[SnapshotRow]:
        """Return the records in canonical order; each call returns the same records."""
        if self._rows is None:
            self._rows = self._new_rows()
        return self._rows

    def _new_rows(self) -> list[SnapshotRow]:
        scope = self.scope
        span_id, low = scope.id or "", scope._trace.low
        if not span_id:
            return []  # the scope was dropped
        records = list(self._capture.records())
        # With sorted ids, the canonical order is the model's order.
        halves = sorted(urandom(8 * len(records)).hex(" ", 8).split(" "))
        rows = []
        for half, record in zip(halves, records, strict=False):
            uri = self.uris.get(record.is_gradient) if record.is_stored else None
            rows.append(
                SnapshotRow(
                    half + low, span_id, record.name, record.shape, record.dtype,
                    STATS if uri is None else self._mode, record.stats, uri, self._ts_ns,
                    record.attrs,
                )
            )  # fmt: skip
        return rows

    @property
    def size(self) -> int:
        """The number of records."""
        return len(self._capture.subjects)


class Snapshots:
    """The snapshots of one session."""

    def __init__(
        self, mode: str, rate: float, directory: Path, roll: Callable[[], float] | None = None
    ) -> None:
        """Files are written below `directory`. `roll` returns a number in [0, 1) for each epoch.

        The default uses the operating system's generator, so that the state of the generators that
        training uses does not change.
        """
        self._mode, self._rate = mode, rate
        self._directory = directory.absolute()
        self._roll = roll or random.SystemRandom().random
        self._pending: deque[TakenSnapshot] = deque()
        self._last: Any = None
        # `put` is safe in a signal handler that interrupted another `put`.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self.count = 0
        """Number of snapshots taken."""
        self.files = self.file_bytes = 0
        self.files_dropped = 0
        """Number of files that were not written, because too many waited or the disk was full."""
        self.lost = 0
        """Number of records of snapshots that were not ready when the session ended."""
        self.seconds = self.longest = 0.0
        """Total and longest time that training threads were blocked, seconds."""

    def open(self) -> None:
        """Take a snapshot at the end of each epoch from now on."""
        state.epoch_ended = self.epoch_ended

    def close(self) -> None:
        """Stop taking snapshots; those already taken are still written."""
        if state.epoch_ended == self.epoch_ended:
            state.epoch_ended = ignore_epoch

    @property
    def waiting(self) -> int:
        """The number of snapshots whose records have not been created yet."""
        return 0 if self._is_over else len(self._pending)

    def stats(self) -> dict[str, Any]:
        """Return the numbers for `health()`: times in seconds, sizes in bytes."""
        return {
            "count": self.count,
            "seconds": self.seconds,
            "longest_seconds": self.longest,
            "files": self.files,
            "file_bytes": self.file_bytes,
        }

    # --- on the training thread -----------------------------------------------------------------

    def epoch_ended(self, scope: Any) -> None:
        """Take a snapshot of the watched model, if there is one. The hook for `state.epoch_ended`.

        A second call for the same scope does nothing. Nothing is raised.
        """
        try:
            model = watched.model
            if model is None or "torch" not in sys.modules or sys.is_finalizing():
                return
        except Exception as error:
            record_error("snapshot", error)
            return
        self.take(scope, model)

    def take(self, scope: Scope, model: Any) -> None:
        """Take a snapshot of `model` for a scope that ends. Nothing is raised."""
        begun = now()
        try:
            if scope is self._last or not scope._id:
                return
            self._last = scope
            self._take(scope, model)
        except Exception as error:
            record_error("snapshot", error)
        took = now() - begun
        add_rare(scope._above, took)
        self.seconds += took / 1e9
        self.longest = max(self.longest, took / 1e9)

    def _take(self, scope: Scope, model: Any) -> None:
        from . import capture  # noqa: PLC0415 - needs torch, which is imported by now

        is_copied = self._mode == FULL or (self._mode == SAMPLED and self._roll() < self._rate)
        captured = capture.take(model, self._room() if is_copied else None)
        if not captured.subjects:
            return
        for failure in captured.failures:
            record_error("snapshot of a tensor", failure)
        if captured.refused:
            self.files_dropped += captured.refused
            record_error(
                "snapshot file",
                f"more than {MOST_BYTES} bytes, or {MOST_WAITING} snapshots,"
                " would be waiting for the disk: the file is not written",
            )
        snapshot = TakenSnapshot(scope, captured, self._mode)
        # Segments count records (docs/otlp-mapping.md, "Trace layout"): use this thread's counter.
        local.b.drawn += snapshot.size
        self.count += 1
        self._pending.append(snapshot)
        if not snapshot.is_written:
            self._ensure_alive()
            self._wake.put(None)

    def _room(self) -> int:
        """Return how many bytes may be copied now."""
        waiting = [each.bytes for each in self._pending.copy() if not each.is_written]
        return 0 if len(waiting) >= MOST_WAITING else MOST_BYTES - sum(waiting)

    # --- on the writing thread ------------------------------------------------------------------

    def _ensure_alive(self) -> None:
        """Start the writing thread if it is not running."""
        thread = self._thread
        if (thread is None or not thread.is_alive()) and not self._is_over:
            self._thread = threading.Thread(
                target=self._run, name="cirron-otel-snapshots", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._wake.get()
                for snapshot in self._pending.copy():
                    if not snapshot.is_written:
                        self._write(snapshot)
            except BaseException as error:
                # Including SystemExit: retry what was interrupted.
                record_error("snapshot thread", error)
                self._wake.put(None)

    def _write(self, taken: TakenSnapshot) -> None:
        from ...core.spool import snapshot_files  # noqa: PLC0415 - needs torch

        taken.attempts += 1
        while taken.copies and taken.attempts <= _ATTEMPTS:
            copies = taken.copies[0]
            name = GRADIENTS if copies.is_gradients else WEIGHTS
            path = self._directory / str(taken.scope.id) / name
            try:
                self.file_bytes += snapshot_files.write(path, copies.tensors)
                self.files += 1
                taken.uris[copies.is_gradients] = f"file://{path}"
            except CirronOtelError as error:
                record_error("snapshot file", error)
                self.files_dropped += 1
            del taken.copies[0]
        self.files_dropped += len(taken.copies)
        taken.copies.clear()
        taken.is_written = True

    # --- on the flush thread --------------------------------------------------------------------

    def move_ready(self, taken: list[TakenSnapshot]) -> None:
        """Move snapshots that are ready into `taken`; after an interruption, call it again."""
        for each in self._pending.copy():
            if each.is_ready:
                if each not in taken:
                    taken.append(each)
                self._pending.remove(each)

    # --- at the end -----------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until all snapshots are ready; return whether they are.

        It takes no lock, so it may be called from a signal handler.
        """
        deadline = time.monotonic() + timeout
        pause_s = 0.001
        for snapshot in self._pending.copy():
            while not snapshot.is_ready:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if not snapshot.is_written:
                    self._ensure_alive()
                time.sleep(min(pause_s, left))
                pause_s = min(2 * pause_s, 0.05)
        return True

    def finish(self, timeout: float) -> bool:
        """Stop taking snapshots, and `wait`.

        Snapshots that are still not ready are discarded and counted as lost.
        """
        self.close()
        is_done = self.wait(timeout)
        self._is_over = True
        self._wake.put(None)
        for snapshot in self._pending.copy():
            if not snapshot.is_ready:
                with contextlib.suppress(ValueError):  # the flush thread took it in the meantime
                    self._pending.remove(snapshot)
                    self.lost += snapshot.size
        return is_done

    def abandon(self) -> None:
        """In a forked child: discard the parent's snapshots."""
        self.close()
        self._is_over = True
        self._pending.clear()


def snapshots_of(mode: str | None, rate: float, directory: Path) -> Snapshots | None:
    """Create the snapshots for the options `snapshots` and `sample_rate`; None if they are off."""
    return None if mode is None else Snapshots(mode, rate, directory)


T = TypeVar("T")


class Watched:
    """A weak reference to the watched model, so that the SDK does not keep the model alive."""

    def __init__(self) -> None:
        self._reference: Any = None

    def set(self, model: Any) -> None:
        """Watch `model`; None: no model."""
        self._reference = None if model is None else weakref.ref(model)

    @property
    def model(self) -> Any:
        """The model, or None if it was garbage-collected."""
        return None if self._reference is None else self._reference()


watched = Watched()


def watch(model: T) -> T:
    """Set the model whose weights and gradients snapshots contain; return it unchanged.

    None unsets it. The model is referenced weakly. Nothing is raised.
    """
    try:
        watched.set(model)
    except Exception as error:
        record_error("watch", error)
    return model
