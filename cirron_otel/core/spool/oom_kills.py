"""The number of processes of a cgroup that the kernel has killed for lack of memory.

A process records the counter when its session starts. Whoever closes its scopes after its death
reads the counter again: if it has risen, the kernel killed a process of that cgroup meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from ..cgroup import MemoryCgroup, memory_groups, oom_kills_in, read_small

KILLS_CAUSE = "for lack of memory (oom_kill)"
"""The words by which a reader recognises such a status message."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_Count = Annotated[int, Meta(ge=0)]


class OomKillCounter(Struct, frozen=True):
    """The counter of a cgroup at one time, in a form that another process can read again."""

    file: str
    """The kernel's file with the counter."""
    inode: int
    """The inode of that file: another cgroup of the same name has another one."""
    boot_id: str
    """The kernel's boot: after a restart, and on another machine, the counter is another one."""
    count: _Count
    risen: _Count | None = None
    """The increase that the first recovery found, so that each later one writes the same."""


def read_counter(
    process: Path = Path("/proc/self"), boot_id: Path = BOOT_ID
) -> OomKillCounter | None:
    """Return the counter of a process's own memory cgroup; None if the kernel reports none.

    `process` is the kernel's directory of the process.
    """
    group: MemoryCgroup | None = next(memory_groups(process), None)
    if group is None:
        return None
    file = group.directory / group.files.events
    try:
        count = oom_kills_in(file)
        return OomKillCounter(str(file), file.stat().st_ino, _boot(boot_id), count)
    except (OSError, ValueError):
        return None


def risen(counter: OomKillCounter | None, boot_id: Path = BOOT_ID) -> int:
    """Return by how much a counter has risen since it was read; 0 if that cannot be determined."""
    if counter is None:
        return 0
    if counter.risen is not None:
        return counter.risen
    file = Path(counter.file)
    try:
        if file.stat().st_ino != counter.inode or _boot(boot_id) != counter.boot_id:
            return 0
        return max(oom_kills_in(file) - counter.count, 0)
    except (OSError, ValueError):
        return 0


def kills_text(kills: int) -> str:
    """Return the part of a status message that reports kills; "" without kills."""
    if not kills:
        return ""
    who = "1 process" if kills == 1 else f"{kills:,} processes"
    return f"; the kernel killed {who} of its cgroup {KILLS_CAUSE} meanwhile"


def _boot(path: Path) -> str:
    return read_small(path).strip().decode("ascii")
