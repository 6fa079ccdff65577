"""A limit for the copies of damaged files, which use disk space of the intake journal.

Each crash may leave a damaged segment, of which a copy is kept. All its readable data is in the
spool before the segment is removed, so the copy only serves later examination.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from .journal.files import DAMAGED_SUFFIX

_SEGMENT = re.compile(r"intake-([0-9a-f]{16})\.log" + re.escape(DAMAGED_SUFFIX), re.ASCII)


class Removed(NamedTuple):
    """A copy of a damaged file that was removed."""

    path: Path
    size: int
    """Bytes."""


def remove_damaged(directory: Path, most_bytes: int) -> list[Removed]:
    """Remove copies of damaged files, the oldest first, until they have `most_bytes` in total.

    A copy is retained if it is a hard link to a segment of the journal, since it takes no space
    then. Copies of other files, such as `seen.sqlite`, are removed first. The order is that of
    segment numbers rather than of times, because the clock may be wrong.
    """
    copies = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if DAMAGED_SUFFIX in entry.name:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                        match = _SEGMENT.fullmatch(entry.name)
                        number = int(match[1], 16) if match else -1
                        copies.append((number, entry.name, status.st_size))
    total = sum(size for *_, size in copies)
    removed = []
    for _, name, size in sorted(copies):
        if total <= most_bytes:
            break
        with contextlib.suppress(OSError):
            (directory / name).unlink()
            total -= size
            removed.append(Removed(directory / name, size))
    return removed
