"""Snapshot files that come in parts, on disk until all of them are there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from weakref import WeakValueDictionary

from ..spool.directories import make_private

_CHUNK = 1024 * 1024
_KEPT_S = 24 * 3600.0
"""How long parts wait for those that are missing."""


class Staged:
    """The parts of one file; it must be nobody else's meanwhile (`Staging.only`)."""

    def __init__(self, directory: Path, file: str) -> None:
        """The parts are in one file, whose name ends with how many bytes there are to be."""
        self._directory, self._file = directory, file

    def total(self) -> int | None:
        """How long the file is to be, bytes; None where nothing of it is there."""
        path = next(iter(self._paths()), None)
        return None if path is None else _total(path)

    def offset(self, total: int) -> int:
        """How much is there of a file of `total` bytes; what came of another length goes."""
        for path in self._paths():
            if _total(path) == total:
                return path.stat().st_size
            path.unlink()
        return 0

    async def append(self, stream: AsyncIterator[bytes], total: int) -> int:
        """Add what `stream` gives, and say how much is there then.

        Where `stream` raises, what came before stays. OSError where it cannot be written.
        """
        path = self._directory / f"{self._file}.{total}"
        descriptor = await asyncio.to_thread(_open, path)
        try:
            async for piece in stream:
                await asyncio.to_thread(_write, descriptor, piece)
        finally:
            await asyncio.to_thread(_close, descriptor)
        return path.stat().st_size

    async def read(self) -> AsyncIterator[bytes]:
        """All that is there, in pieces."""
        for path in self._paths():
            with path.open("rb") as stream:
                while piece := await asyncio.to_thread(stream.read, _CHUNK):
                    yield piece

    def remove(self) -> None:
        """Forget the parts."""
        for path in self._paths():
            path.unlink()
        with suppress(OSError):
            self._directory.rmdir()  # not where other files of the span have parts

    def _paths(self) -> list[Path]:
        if not self._directory.is_dir():
            return []
        prefix = f"{self._file}."
        found = (path for path in self._directory.iterdir() if path.name.startswith(prefix))
        return [path for path in found if path.name.removeprefix(prefix).isdecimal()]


class Staging:
    """A directory of parts. Those that wait for more than a day are removed."""

    def __init__(self, directory: Path) -> None:
        """The directory is made, private, where it is not there."""
        make_private(directory)
        self._directory = directory
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._prune()

    @asynccontextmanager
    async def only(self, span_id: str, file: str) -> AsyncIterator[Staged]:
        """The parts of a file; whoever else asks for them waits."""
        lock = self._locks.setdefault((span_id, file), asyncio.Lock())
        async with lock:
            yield Staged(self._directory / span_id, file)

    def _prune(self) -> None:
        oldest = time.time() - _KEPT_S
        for path in self._directory.glob("*/*"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
        for path in self._directory.iterdir():
            with suppress(OSError):
                path.rmdir()


def _total(path: Path) -> int:
    return int(path.name.rpartition(".")[2])


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
