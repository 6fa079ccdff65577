"""`cirron-otel` with a clock that advances when the command opens a file of a spool.

Arguments: the seconds for each file, the number of the file at which the process interrupts itself
(0 for none), and those of the command.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from cirron_otel.tools.cli import progress
from cirron_otel.tools.cli.main import main

_POLL_S = 0.002


class PassingClock(progress.DisplayClock):
    """A clock that advances only by `advance`, and not before the display has used each moment."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: float | None = None
        self._changed = threading.Condition()

    def now(self) -> float:
        return self._now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        with self._changed:
            self._due = self._now + seconds
            self._changed.notify_all()
            while not stop.is_set() and self._now < self._due:
                self._changed.wait(_POLL_S)
            self._due = None
            return stop.is_set()

    def advance(self, seconds: float) -> None:
        """Stop at each moment at which the display is due, until it waits again."""
        until = self._now + seconds
        with self._changed:
            while _is_shown():
                if self._due is None or self._due <= self._now:
                    self._changed.wait(_POLL_S)
                elif self._due <= until:
                    self._now = self._due
                    self._changed.notify_all()
                else:
                    break
            self._now = until


def _is_shown() -> bool:
    return any(each.name == progress.THREAD for each in threading.enumerate())


class _Files:
    """Counts the files of spools that this process opens, and lets time pass."""

    def __init__(self, seconds: float, interrupted_at: int) -> None:
        self._seconds, self._interrupted_at = seconds, interrupted_at
        self._count = 0
        self._clock = PassingClock()
        progress.clock = self._clock

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | os.PathLike):
            return
        path = Path(arguments[0])
        if path.parent.name == "spool" and ".json" in path.suffixes:
            self._count += 1
            self._clock.advance(self._seconds)
            if self._count == self._interrupted_at:
                os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.addaudithook(_Files(float(sys.argv[1]), int(sys.argv[2])).hook)
    main(sys.argv[3:])
