"""The memory control group of a process: its use, its limit, and its count of OOM kills.

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

    def oom_kills(self) -> int | None:
        """Return how many processes of the group the kernel has killed; None if unknown."""
        with contextlib.suppress(OSError, ValueError):
            return _value(read_small(self.directory / self.files.events), b"oom_kill")
        return None


def memory_cgroup(process: Path = Path("/proc/self")) -> MemoryCgroup | None:
    """Return the memory cgroup of a process; None if there is none, or if it is not readable.

    `process` is the kernel's directory of the process.
    """
    try:
        paths = _paths(read_small(process / "cgroup").decode("utf-8", "surrogateescape"))
        mounts = list(_mounts(process))
    except (OSError, ValueError):
        return None
    for files, controller in ((V1, "memory"), (V2, "")):
        path = paths.get(controller)
        for kind, root, point in mounts if path is not None else ():
            if kind == controller:
                found = _group(point, _below(path or "/", root), files)
                if found is not None:
                    return found
    return None


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


def _group(point: Path, path: str, files: CgroupFiles) -> MemoryCgroup | None:
    own: MemoryCgroup | None = None
    strictest: tuple[int, MemoryCgroup] | None = None
    directory = point / path
    for _ in range(_MOST_LEVELS):
        with contextlib.suppress(OSError, ValueError):
            int(read_small(directory / files.used))
            group = MemoryCgroup(directory, files)
            own = own or group
            limit = group.limit()
            if limit is not None and (strictest is None or limit < strictest[0]):
                strictest = limit, group
        if directory == point:
            break
        directory = directory.parent
    return strictest[1] if strictest is not None else own


def _limit(path: Path) -> int | None:
    text = read_small(path).strip()
    limit = _UNLIMITED if text == b"max" else int(text)
    return limit if limit < _UNLIMITED else None


def _value(text: bytes, key: bytes) -> int | None:
    """Return the number in the line `key number`; None if there is no such line."""
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == key:
            return int(number)
    return None
