"""Decide whether the wall clock can be trusted for removing old data.

The guard compares the wall clock with a clock that is never set. It saves its state in a file, so
that a process also detects a clock jump that happened before its start, and a wrong clock after a
reboot.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...errors import TargetError
from ..receiver.journal.files import write_synced

FILE_NAME = "clock.json"
FIRST_S = 600.0
"""A new process does not trust the clock for this many seconds after its start: the machine may not
have set its clock yet."""
TRUST_S = 3600.0
"""The time for which the clock is not trusted after a jump, seconds."""
_JUMP_S = 60.0
_SAVE_S = 60.0
_LONGEST_OFF_S = 86_400.0
"""If a machine seems to have been off for more seconds than this, its clock may be ahead
instead."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAX_BYTES = 4096


def _passed_s() -> float:
    """Return the seconds of a clock that is never set and that also runs during suspend."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot_id() -> str:
    """Return the id of the current boot; empty if the system has none."""
    with contextlib.suppress(OSError, ValueError):
        return _BOOT_ID.read_text("ascii").strip()
    return ""


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    """The saved state."""

    boot: str
    offset_s: float
    """Wall clock minus the clock that is never set."""
    wall_s: float
    """The latest wall time that was observed, Unix seconds."""
    jumped_at_s: float | None
    """The time of the latest jump, measured by the clock that is never set, seconds; None if there
    was none."""


class ClockGuard:
    """Compares the wall clock with a clock that is never set; for one thread."""

    def __init__(
        self,
        path: Path,
        wall: Callable[[], float] = time.time,
        passed: Callable[[], float] = _passed_s,
        boot: Callable[[], str] = _boot_id,
    ) -> None:
        """`path` is the file of the state; `wall` and `passed` return seconds, `boot` a boot id."""
        self._path, self._wall, self._passed, self._boot = path, wall, passed, boot()
        self._started = passed()
        self._offset = wall() - self._started
        self._jumped_at: float | None = None
        self._save_at = self._started
        record = _read(path)
        if record is not None and record.boot == self._boot != "":
            self._offset, self._jumped_at = record.offset_s, record.jumped_at_s
        elif record is not None and not self._goes_on(record):
            self._jumped_at = self._started
        self.look()

    def _goes_on(self, record: _Record) -> bool:
        """Return whether the wall clock is plausible after a reboot, given the saved record."""
        off_s = self._wall() - record.wall_s
        return record.jumped_at_s is None and -_JUMP_S <= off_s <= _LONGEST_OFF_S

    def look(self) -> None:
        """Check for a jump and save the state; call this at least once a minute."""
        passed = self._passed()
        offset = self._wall() - passed
        is_jump = abs(offset - self._offset) > _JUMP_S
        if is_jump:
            self._offset, self._jumped_at = offset, passed
        elif self._jumped_at is not None and passed - self._jumped_at >= TRUST_S:
            self._jumped_at = None
        if is_jump or passed >= self._save_at:
            self._save_at = passed + _SAVE_S
            # If saving fails, the next process compares with the previously saved state.
            with contextlib.suppress(TargetError):
                self._save(passed)

    @property
    def has_jumped(self) -> bool:
        """Whether the clock jumped by more than a minute within the last hour."""
        return self._jumped_at is not None

    def is_trusted(self) -> bool:
        """Return whether data may be removed now because of its age."""
        self.look()
        return not self.has_jumped and self._passed() - self._started >= FIRST_S

    def _save(self, passed: float) -> None:
        record = _Record(self._boot, self._offset, passed + self._offset, self._jumped_at)
        write_synced(self._path, msgspec.json.encode(record))


def _read(path: Path) -> _Record | None:
    """Return the saved record; None if there is none, or if it is damaged."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=_Record)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
