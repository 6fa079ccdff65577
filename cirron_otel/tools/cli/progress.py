"""Progress on stderr for commands that take longer than two seconds.

On a terminal, one line with a bar is redrawn; otherwise a line is written every ten seconds. A
thread writes both, because stages such as SQL statements have no loop that could. Loops only store
two numbers: they neither read the clock nor write, so they cannot fail or slow down.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ...core.durations import SECOND_NS
from ..convert.progress import BATCHES, BYTES
from ..present.formatting import duration, size
from . import output

T = TypeVar("T")

THREAD: Final = "cirron-otel-progress"
"""The name of the thread that writes."""
DELAY_S: Final = 2.0
"""The time after which the bar appears, seconds."""
REDRAW_S: Final = 0.2
LINE_S: Final = 10.0
"""The time between two lines if stderr is not a terminal, seconds."""
SOON_S: Final = 1.0
"""The time after which a command that waits for an endpoint first shows its progress, seconds."""

_SWITCH: Final = "CIRRON_OTEL_PROGRESS"
"""`no` switches progress off, for example for cron, which mails what a command writes."""
_BARS: Final = (40, 20, 10)
"""The lengths of bars, of which the longest that fits is drawn: few, so that it seldom changes."""
_DEFAULT_COLUMNS: Final = 80
_WITHOUT_CURSOR: Final = ("dumb", "unknown")
"""The values of TERM for terminals that cannot erase a line."""


class DisplayClock:
    """The time of the display; tests replace it."""

    def now(self) -> float:
        """Return the time in seconds, from any origin."""
        return time.monotonic()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait until `stop` is set, at most `seconds`; return whether it is set."""
        return stop.wait(seconds)


@dataclass(slots=True)
class ProgressStage:
    """A named part of a command's work."""

    name: str
    unit: str
    """The unit of `done` and `total`."""
    then: str | None
    """The name of the work after the reading; None if no work follows."""
    began: float
    done: int = 0
    total: int | None = None

    def text(self, now: float, elapsed_s: float) -> tuple[str, float | None, str]:
        """Return the name, the completed share if it is known, and the numbers."""
        done, total = self.done, self.total
        elapsed = duration(int(elapsed_s) * SECOND_NS) if elapsed_s >= 1 else "0 s"
        if self.then is not None and total is not None and done >= total:
            return self.then, None, f"still working, {elapsed}"
        if not (done or total):
            return self.name, None, f"still working, {elapsed}"
        if not total:
            return self.name, None, f"{self._counted(done)}, {elapsed}"
        done = min(done, total)
        part = size(done) if self.unit == BYTES else f"{done:,}"
        left = self._left(done / total, now - self.began)
        numbers = f"{100 * done // total} %, {part} of {self._counted(total)}, {elapsed}{left}"
        return self.name, done / total, numbers

    def _left(self, share: float, spent_s: float) -> str:
        if not 0 < share < 1 or spent_s < DELAY_S:
            return ""
        left_s = max(round(spent_s * (1 - share) / share), 1)
        return f", about {duration(left_s * SECOND_NS)} left"

    def _counted(self, number: int) -> str:
        return size(number) if self.unit == BYTES else f"{number:,} {self.unit}"


class ShownProgress:
    """The progress of a command: the current stage, and how much of it is done."""

    def __init__(self, stage: ProgressStage) -> None:
        self.began = stage.began
        self.current = stage

    def stage(self, name: str, unit: str = BATCHES, then: str | None = None) -> None:
        """Begin a stage. `then` names the work that follows when all of it has been read."""
        self.current = ProgressStage(name, unit, then, clock.now())

    def __call__(self, done: int, total: int | None) -> None:
        """Store how much of the stage is done; a lower number than before is ignored."""
        stage = self.current
        stage.total = total
        stage.done = max(stage.done, done)

    def each(self, items: Sequence[T]) -> Iterator[T]:
        """Yield the items, and count those that the caller is done with."""
        for number, item in enumerate(items):
            self(number, len(items))
            yield item
        self(len(items), len(items))


clock = DisplayClock()
_active: list[ShownProgress] = []
"""The progress of the command, if it is shown; at most one."""


@contextlib.contextmanager
def progress(
    stage: str,
    unit: str = BATCHES,
    then: str | None = None,
    *,
    is_shown: bool = True,
    is_soon: bool = False,
) -> Iterator[ShownProgress]:
    """Show the progress of the block on stderr once it has taken two seconds (`is_soon`: one).

    Within another such block, only begin a stage. Afterwards the line on the terminal is cleared.
    """
    if _active:
        _active[0].stage(stage, unit, then)
        yield _active[0]
        return
    current = ShownProgress(ProgressStage(stage, unit, then, clock.now()))
    if not is_shown or sys.stderr is None or os.environ.get(_SWITCH) == "no":
        yield current
        return
    stop = threading.Event()
    thread = threading.Thread(target=_show, args=(current, stop, is_soon), name=THREAD, daemon=True)
    _active.append(current)
    try:
        with contextlib.suppress(RuntimeError):  # no thread can be started: show nothing
            thread.start()
        yield current
    finally:
        _active.clear()
        stop.set()
        try:
            if thread.ident is not None:
                thread.join()
        finally:
            with output.status_line.cleared():
                pass


def _show(current: ShownProgress, stop: threading.Event, is_soon: bool) -> None:
    """Draw the bar, or write lines, until `stop` is set."""
    is_bar = sys.stderr.isatty() and os.environ.get("TERM") not in _WITHOUT_CURSOR
    due = current.began + (SOON_S if is_soon else DELAY_S if is_bar else LINE_S)
    while not clock.wait(stop, max(due - clock.now(), 0.0)):
        now = clock.now()
        text = current.current.text(now, now - current.began)
        if is_bar:
            output.status_line.draw(bar(*text, _columns()))
            due = now + REDRAW_S
        else:
            name, _, details = text
            output.message(f"{name}: {details}")
            due += LINE_S * (1 + (now - due) // LINE_S)


def bar(name: str, share: float | None, details: str, columns: int) -> str:
    """Return the line for a terminal; it leaves the last column free, and so never wraps."""
    room = columns - len(f"{name} [] {details}") - 1
    length = next((each for each in _BARS if each <= room), None)
    if share is None or length is None:
        return f"{name}: {details}"[: columns - 1]
    filled = int(share * length)
    return f"{name} [{'#' * filled}{'-' * (length - filled)}] {details}"


def _columns() -> int:
    # Not shutil.get_terminal_size, which returns the width of stdout.
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or _DEFAULT_COLUMNS
    return _DEFAULT_COLUMNS
