"""The batches of a growing spool, without reading its directory for each new batch.

The process that seals batches passes their names to `note`. Other processes may write into the same
directory, and a batch that was sealed earlier may be renamed into place later. So the directory is
also read when it has changed, but so rarely that its size adds little to the cost of a batch.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable

from ..spool.reader import SpoolReader

MOST_NOTED = 10_000
"""The maximum number of names that `note` keeps until `take`. Above it, the directory is read."""
_AGAIN_S = 5.0
"""A directory that looks unchanged is read again after this time: some file systems do not store
exact times."""
_SHARE = 50.0
"""Reading the directory takes at most one fiftieth of the time."""
_NOTED_SHARE = 1000.0
"""If `note` is called, reading takes at most one thousandth of the time."""
_GRAIN_NS = 10**9
"""A change within this time of the last reading may not change the directory's time."""


class Listing:
    """The batches in the directory of a spool."""

    def __init__(self, reader: SpoolReader, *, is_noted: bool = False) -> None:
        """Read nothing yet. `is_noted` means that `note` is called for most new batches."""
        self.present: set[str] = set()
        """The batches in the directory, by the last reading and by `note`."""
        self._reader, self._is_noted = reader, is_noted
        self._noted: deque[str] = deque()
        self._is_full = False
        """Whether `note` has discarded names."""
        self._read_at = self._due_at = float("-inf")
        self._seen_ns = -1

    def note(self, names: Iterable[str]) -> None:
        """Add the names of sealed batches, from any thread."""
        if len(self._noted) < MOST_NOTED:
            self._noted.extend(names)
        else:
            self._is_full = True

    def noted(self) -> list[str] | None:
        """Return what `take` will return, from any thread; None if some names were discarded."""
        while not self._is_full:
            with contextlib.suppress(RuntimeError):  # another thread changed it
                return list(self._noted)
        return None

    def take(self) -> list[str]:
        """Return the new names since the last call."""
        new = []
        for _ in range(len(self._noted)):
            name = self._noted.popleft()
            if name not in self.present:
                self.present.add(name)
                new.append(name)
        return new

    def is_due(self) -> bool:
        """Return whether the directory has to be read now."""
        now = time.monotonic()
        if self._is_full:
            return True
        if now < self._due_at:
            return False
        return now - self._read_at >= _AGAIN_S or self._has_changed()

    def _has_changed(self) -> bool:
        modified_ns = self._modified_ns()
        return modified_ns != self._seen_ns or modified_ns >= time.time_ns() - _GRAIN_NS

    def _modified_ns(self) -> int:
        try:
            return self._reader.paths.spool.stat().st_mtime_ns
        except OSError:
            return time.time_ns()

    def read(self) -> list[str]:
        """Read the directory; return the new names, in order. Raises InputError."""
        begun = self._read_at = time.monotonic()
        self._seen_ns, self._is_full = self._modified_ns(), False
        names = list(self._reader.names())
        new = [name for name in names if name not in self.present]
        self.present = set(names)
        took = time.monotonic() - begun
        if self._is_noted:
            self._due_at = begun + max(took * _NOTED_SHARE, _AGAIN_S)
        else:
            self._due_at = begun + took * _SHARE
        return new
