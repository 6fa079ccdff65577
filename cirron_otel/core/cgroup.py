"""The control group of a process: its memory, the limits, and its count of OOM kills.

It reads cgroup v2 and v1 (Linux, cgroups(7)). In a container, the group's path may be relative to
another root than that of the mounted file system; the mount's root is then used.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_UNLIMITED: Final = 1 << 62
"""v1 reports a limit of about 2^63 bytes for a group without a limit."""
_READ: Final = 16_384
_OCTAL = re.compile(r"\\([0-7]{3})")
_MOST_LEVELS = 64


@dataclass(frozen=True, slots=True)
class CgroupFiles:
    """The names of the files of one version of the memory controller."""

    used: str
    limit: str
    inactive: bytes
    """The key in `memory.stat` of the page cache that the kernel reclaims first."""
    events: str
    """The file with the key `oom_kill`."""


V2: Final = CgroupFiles("memory.current", "memory.max", b"inactive_file", "memory.events")
V1: Final = CgroupFiles(
    "memory.usage_in_bytes", "memory.limit_in_bytes", b"total_inactive_file", "memory.oom_control"
)


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """The group of a process that limits its memory most, or its own group without a limit."""

    directory: Path
    files: CgroupFiles

    def used(self) -> int:
        """Return the bytes that the group uses, without its inactive page cache.

        Raises OSError or ValueError if a file cannot be read.
        """
        current = int(read_small(self.directory / self.files.used))
        inactive = _value(read_small(self.directory / "memory.stat"), self.files.inactive)
        return max(current - (inactive or 0), 0)

    def limit(self) -> int | None:
        """Return the group's limit in bytes; None without one. Raises OSError or ValueError."""
        return _limit(self.directory / self.files.limit)

    def oom_kills(self) -> int:
        """Return how many processes of the group the kernel has killed for lack of memory.

        Raises OSError or ValueError if the kernel does not report it.
        """
        return oom_kills_in(self.directory / self.files.events)


def memory_cgroup(process: Path = Path("/proc/self")) -> MemoryCgroup | None:
    """Return the memory cgroup of a process; None without a cgroup, or with an unreadable one.

    `process` is the kernel's directory of the process.
    """
    strictest: tuple[int, MemoryCgroup] | None = None
    own: MemoryCgroup | None = None
    for group in memory_groups(process):
        own = own or group
        with contextlib.suppress(OSError, ValueError):
            limit = group.limit()
            if limit is not None and (strictest is None or limit < strictest[0]):
                strictest = limit, group
    return strictest[1] if strictest is not None else own


def cpu_limit(process: Path = Path("/proc/self")) -> float | None:
    """Return how many CPUs the cgroups of a process allow, in CPU seconds a second (v2).

    None without a limit, and if it cannot be read.
    """
    limits = []
    for group in memory_groups(process):
        with contextlib.suppress(OSError, ValueError):
            quota, period = read_small(group.directory / "cpu.max").split()[:2]
            if quota != b"max" and int(period) > 0:
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_groups(process: Path = Path("/proc/self")) -> Iterator[MemoryCgroup]:
    """Yield the memory cgroup of a process and those around it, the innermost first.

    Only v2 counts the kills in a group also in the groups around it.
    """
    try:
        paths = _paths(read_small(process / "cgroup").decode("utf-8", "surrogateescape"))
        mounts = list(_mounts(process))
    except (OSError, ValueError):
        return
    for files, controller in ((V1, "memory"), (V2, "")):
        path = paths.get(controller)
        for kind, root, point in mounts if path is not None else ():
            if kind == controller:
                groups = list(_groups(point, _below(path or "/", root), files))
                if groups:
                    yield from groups
                    return


def read_small(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a small file of the kernel. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ)
    finally:
        os.close(descriptor)


def _paths(text: str) -> dict[str, str]:
    """Return the process's path in the hierarchies of v1's memory controller and of v2 ("")."""
    paths = {}
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths[""] = path
        elif "memory" in controllers.split(","):
            paths["memory"] = path
    return paths


def _mounts(process: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the controller ("" for v2), root and mount point of each mounted hierarchy."""
    with (process / "mountinfo").open("rb") as file:
        for line in file:
            fields, _, tail = line.decode("utf-8", "surrogateescape").partition(" - ")
            kind, _, options = tail.split(" ", 2)
            root, point = (_unescaped(each) for each in fields.split(" ")[3:5])
            if kind == "cgroup2":
                yield "", root, Path(point)
            elif kind == "cgroup" and "memory" in options.strip().split(","):
                yield "memory", root, Path(point)


def _unescaped(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def _below(path: str, root: str) -> str:
    """Return a group's path relative to the mounted root; "" if it is not inside that root."""
    if path == root:
        return ""
    prefix = root.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) and ".." not in path else ""


def _groups(point: Path, path: str, files: CgroupFiles) -> Iterator[MemoryCgroup]:
    directory = point / path
    for _ in range(_MOST_LEVELS):
        with contextlib.suppress(OSError, ValueError):
            int(read_small(directory / files.used))
            yield MemoryCgroup(directory, files)
        if directory == point:
            return
        directory = directory.parent


def _limit(path: Path) -> int | None:
    text = read_small(path).strip()
    limit = _UNLIMITED if text == b"max" else int(text)
    return limit if limit < _UNLIMITED else None


def oom_kills_in(events: Path) -> int:
    """Return the number of processes that the kernel has killed, from a group's `events` file.

    Raises OSError or ValueError if it cannot be read or contains no such number.
    """
    count = _value(read_small(events), b"oom_kill")
    if count is None:
        raise ValueError(f"{events} has no oom_kill")
    return count


def _value(text: bytes, key: bytes) -> int | None:
    """Return the number in the line `key number`; None if there is no such line."""
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == key:
            return int(number)
    return None
