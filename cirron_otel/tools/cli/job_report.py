"""The report of a job of `cirron-otel run`, whose batches are read while it runs."""

# ruff: noqa: PLC0415 - imports in functions, so that a short job is not delayed

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...core.run.load.reducer import Reducer
    from .run_summary import ConcludedRun, RunBatches

_POLL_S: Final = 1.0
_SHARE: Final = 0.5
"""The maximum part of the time in which the thread reads, so that the job has the cores."""
_NICENESS: Final = 19


class JobReport:
    """Reads the batches of a job in a thread, at the lowest priority.

    Memory is that of `core.run`: the units are in temporary files from a size on. If batches cannot
    be read in one pass, or an error occurs, all are read at the end. Batches that the spool evicts
    meanwhile count if they were read.
    """

    def __init__(self, batches: RunBatches) -> None:
        self._batches = batches
        self._seen: set[str] = set()
        self._reducer: Reducer | None = None
        self._has_failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cirron-report", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread is available: all is read at the end
            self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        pause_s = _POLL_S
        while not self._has_failed and not self._stop.wait(pause_s):
            begun = time.monotonic()
            self._read(is_last=False)
            pause_s = max(_POLL_S, (time.monotonic() - begun) * (1 / _SHARE - 1))

    def _read(self, *, is_last: bool) -> None:
        try:
            from ...core.run.load.reducer import Reducer
            from ...core.run.relations import Texts

            if self._reducer is None:
                self._reducer = Reducer(Texts())
            for batch in self._batches.unread(self._seen):
                self._reducer.add_batch(batch)
                if self._stop.is_set() and not is_last:
                    return
        except Exception:  # all batches are read at the end, which reports the error
            self._has_failed, self._reducer = True, None

    def result(self) -> ConcludedRun:
        """End the thread, and return the conclusion. Raises the errors of reading a spool."""
        from ...core.run.files import RunFiles
        from ...core.run.load.errors import NotReducibleError
        from ...core.run.run import Run
        from ...core.spool.reader import SpoolReader
        from .run_summary import conclusion_of, conclusion_of_run

        self.close()
        if not self._has_failed:
            self._read(is_last=True)
        if self._reducer is not None:
            own = self._batches.own()
            try:
                for batch in own:
                    self._reducer.add_batch(batch)
                self._reducer.finish()
            except NotReducibleError:
                return conclusion_of(self._batches)
            reader = SpoolReader(self._batches.paths.root)
            run = Run(self._reducer, RunFiles.of(reader), slowest=0)
            return conclusion_of_run(self._batches, run, reader, own)
        return conclusion_of(self._batches)
