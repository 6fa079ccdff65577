"""Snapshot files that are uploaded in parts. The parts stay on disk until the file is complete."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from ....core.atomic_files import sync_file, write_all
from ....core.spool.blobs import tenant_of_directory
from ....core.spool.directories import make_private
from ..upload_room import UploadRoom

_CHUNK = 1024 * 1024
_KEPT_S = 24 * 3600.0
"""Seconds after which unused parts are removed."""
_IDLE_S = 900.0
"""Seconds after which unused parts may be removed to make room for other uploads."""

_Key = tuple[str, str]
"""The directory and the name of a file."""


class Staged:
    """The parts of one file, for exclusive use inside `Staging.only`."""

    def __init__(self, directory: Path, file: str, totals: set[int]) -> None:
        """Describe the parts of one snapshot file, which are appended to one file on disk.

        The name of that file ends with the length of the complete snapshot file, bytes. `totals`
        are the lengths for which such files exist. They are passed because listing the directory
        would be slow: a span may have many files.
        """
        self._directory, self._file, self._totals = directory, file, totals

    def total(self) -> int | None:
        """Return the length of the complete file, bytes; None if there are no parts."""
        path = next(iter(self._paths()), None)
        return None if path is None else _total(path)

    def size(self) -> int | None:
        """Return the size of the parts, bytes; None if there are none."""
        sizes = [path.stat().st_size for path in self._paths()]
        return sum(sizes) if sizes else None

    def offset(self, total: int) -> int:
        """Return how many of a file's `total` bytes have been received; remove parts for other
        totals.
        """
        for path in self._paths():
            if _total(path) == total:
                return path.stat().st_size
            path.unlink()
            self._totals.discard(_total(path))
        return 0

    async def append(self, stream: AsyncIterator[bytes], total: int) -> int:
        """Append the bytes of `stream`, and return how many bytes of the file there are now.

        If `stream` raises, the bytes before the error are retained. Raises OSError if they cannot
        be written.
        """
        path = self._directory / f"{self._file}.{total}"
        self._totals.add(total)
        descriptor = await asyncio.to_thread(_open, path)
        try:
            async for piece in stream:
                await asyncio.to_thread(write_all, descriptor, piece)
        finally:
            await asyncio.to_thread(_close, descriptor)
        return path.stat().st_size

    async def read(self) -> AsyncIterator[bytes]:
        """Yield all bytes, in pieces."""
        for path in self._paths():
            with path.open("rb") as stream:
                while piece := await asyncio.to_thread(stream.read, _CHUNK):
                    yield piece

    def remove(self) -> None:
        """Remove the parts."""
        for path in self._paths():
            path.unlink()
            self._totals.discard(_total(path))
        with suppress(OSError):
            self._directory.rmdir()  # fails if there are parts of other files of the span

    def _paths(self) -> list[Path]:
        paths = (self._directory / f"{self._file}.{total}" for total in sorted(self._totals))
        return [path for path in paths if path.is_file()]


@dataclass(slots=True)
class _Unfinished:
    """The counted size of the parts of one file."""

    size: int
    """The size of the parts, bytes."""
    touched_s: float
    """The time at which the parts were last used, by the monotonic clock, seconds."""


class Staging:
    """A directory of parts, whose total size is limited.

    Parts that no request has used for a day are removed. The time is measured by the monotonic
    clock, from the start of the process at the earliest. If there is no room for new parts, the
    least recently used parts are removed, but none that were used in the last 15 minutes. If the
    tenant's share is full, only parts of this tenant are removed.
    """

    def __init__(self, directory: Path, room: UploadRoom) -> None:
        """Count the parts in `directory`, which is created if necessary. Raises OSError."""
        make_private(directory)
        self._directory, self._room = directory, room
        self._locks: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._unfinished: dict[_Key, _Unfinished] = {}
        self._totals: dict[_Key, set[int]] = {}
        """The lengths of the complete files, which are in the names of the files with their
        parts."""
        for path in directory.glob("*/*"):
            file, _, total = path.name.rpartition(".")
            if total.isdecimal():
                self._totals.setdefault((path.parent.name, file), set()).add(int(total))
        for key in list(self._totals):
            self._count(*key)
        self._remove_empty()

    @asynccontextmanager
    async def only(self, directory: str, file: str) -> AsyncIterator[Staged]:
        """Yield the parts of a file; other requests for the same parts wait."""
        lock = self._locks.setdefault((directory, file), asyncio.Lock())
        async with lock:
            try:
                yield self._staged(directory, file)
            finally:
                self._count(directory, file)

    async def bounded(
        self, directory: str, file: str, stream: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the pieces of `stream` while there is room for them; call it inside `only`.

        Raises RefusalError if there is no room.
        """
        tenant = tenant_of_directory(directory)
        entry = self._unfinished.setdefault((directory, file), _Unfinished(0, _now_s()))
        async for piece in stream:
            self.make_room(directory, len(piece))
            self._room.hold(tenant, len(piece))
            entry.size += len(piece)
            yield piece

    def expire(self) -> None:
        """Remove the parts that no request has used for a day. Raises OSError."""
        now = _now_s()
        for key, entry in list(self._unfinished.items()):
            if now - entry.touched_s >= _KEPT_S:
                self._remove(key)
        self._remove_empty()

    def make_room(self, directory: str, size: int) -> None:
        """Remove idle parts until there is room. Raises RefusalError if there is still no room."""
        tenant, now = tenant_of_directory(directory), _now_s()
        if self._room.has_room(tenant, size):
            return
        by_age = sorted(self._unfinished.items(), key=lambda item: item[1].touched_s)
        for key, entry in by_age:
            if self._room.has_room(tenant, size) or now - entry.touched_s < _IDLE_S:
                break
            if tenant_of_directory(key[0]) == tenant or not self._room.is_full_of(tenant, size):
                self._remove(key)
        self._room.check_now(tenant, size)

    def _remove(self, key: _Key) -> None:
        """Remove the parts of a file, unless a request uses them."""
        lock = self._locks.get(key)
        if lock is not None and lock.locked():
            return
        with suppress(OSError):
            self._staged(*key).remove()
        self._count(*key)

    def _count(self, directory: str, file: str) -> None:
        """Count the parts of a file on disk."""
        size = self._staged(directory, file).size()
        if size is None:
            self._totals.pop((directory, file), None)
        entry = self._unfinished.pop((directory, file), _Unfinished(0, 0.0))
        counted = 0 if size is None else max(size, self._room.least)
        self._room.set(tenant_of_directory(directory), entry.size, counted)
        if size is not None:
            self._unfinished[directory, file] = _Unfinished(counted, _now_s())

    def _staged(self, directory: str, file: str) -> Staged:
        totals = self._totals.setdefault((directory, file), set())
        return Staged(self._directory / directory, file, totals)

    def _remove_empty(self) -> None:
        for path in self._directory.iterdir():
            with suppress(OSError):
                path.rmdir()


def _now_s() -> float:
    """Return the time of the monotonic clock, seconds."""
    return time.monotonic()


def _total(path: Path) -> int:
    return int(path.name.rpartition(".")[2])


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def _close(descriptor: int) -> None:
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)
