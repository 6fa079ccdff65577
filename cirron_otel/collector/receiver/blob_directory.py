"""Uploaded snapshot files, stored like those of the spool: `snapshots/<span_id>/<file>`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ...core.atomic_files import publish, sync_file, write_all
from ...core.spool.directories import make_private

_INCOMING = ".incoming"
"""The directory of incomplete files. Its name begins with a dot, so it cannot be a span id
(http/blobs.py)."""

_PRUNED_S = 3600.0


class DirectoryBlobs:
    """An `UploadStore` in a directory. A file either is complete and on disk or does not exist.

    Only one instance may use a directory: each instance removes unfinished files that it did not
    create.
    """

    def __init__(self, directory: Path) -> None:
        """Remove the unfinished files that a crash left behind. The first upload creates the
        directory.
        """
        self._directory, self._incoming = directory, directory / _INCOMING
        self._making = asyncio.Lock()
        self._open: set[str] = set()
        self._prune()
        self._pruned_s = time.monotonic()

    async def put(
        self, span_id: str, file: str, stream: AsyncIterator[bytes], size: int | None
    ) -> None:
        """Store a file. Raises OSError if it cannot be written, or is truncated."""
        await self._prune_hourly()
        folder = self._directory / span_id
        async with self._making:  # no other task may use the directory until it is synced
            await asyncio.to_thread(make_private, self._incoming)
            await asyncio.to_thread(make_private, folder)
        with self._new() as (tmp, descriptor):
            written = 0
            async for piece in stream:
                written += len(piece)
                await asyncio.to_thread(write_all, descriptor, piece)
            if size is not None and written != size:
                raise OSError(f"received {written} of {size} bytes")
            await asyncio.to_thread(sync_file, descriptor)
            await asyncio.to_thread(publish, tmp, folder / file)

    async def head(self, span_id: str, file: str) -> int | None:
        """Return the size of a file, bytes; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / span_id / file).stat().st_size
        return None

    @contextlib.contextmanager
    def _new(self) -> Iterator[tuple[Path, int]]:
        """Yield a new file, which is removed afterwards unless it has been renamed."""
        tmp = self._incoming / secrets.token_hex(8)
        self._open.add(tmp.name)  # before it exists, so that _prune does not remove it
        try:
            descriptor = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                yield tmp, descriptor
            finally:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    tmp.unlink(missing_ok=True)
        finally:
            self._open.discard(tmp.name)

    async def _prune_hourly(self) -> None:
        """Retry the removal of files that could not be removed when their upload failed."""
        now = time.monotonic()
        if now - self._pruned_s >= _PRUNED_S:
            self._pruned_s = now
            await asyncio.to_thread(self._prune)

    def _prune(self) -> None:
        with contextlib.suppress(OSError):
            for path in list(self._incoming.iterdir()):
                if path.name not in self._open:
                    with contextlib.suppress(OSError):
                        path.unlink()
