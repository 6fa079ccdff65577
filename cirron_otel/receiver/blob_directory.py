"""Uploaded snapshot files where the spool has its own: `snapshots/<span_id>/<file>`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from .journal_files import sync_directory


class DirectoryBlobs:
    """A `BlobStore` below a directory. Files are whole and on disk, or not there."""

    def __init__(self, directory: Path) -> None:
        """It is made when the first file comes."""
        self._directory = directory

    async def put(
        self, span_id: str, file: str, stream: AsyncIterator[bytes], size: int | None
    ) -> None:
        """See BlobStore. Raises OSError where the file cannot be written, or is cut short."""
        folder = self._directory / span_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tmp = folder / f".{secrets.token_hex(8)}.tmp"
        descriptor = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        written = 0
        try:
            try:
                async for piece in stream:
                    written += len(piece)
                    await asyncio.to_thread(_write, descriptor, piece)
                if size is not None and written != size:
                    raise OSError(f"{written} of {size} bytes came")
                await asyncio.to_thread(os.fsync, descriptor)
            finally:
                os.close(descriptor)
            tmp.replace(folder / file)
            await asyncio.to_thread(sync_directory, folder)
        except BaseException:
            with contextlib.suppress(OSError):
                tmp.unlink(missing_ok=True)
            raise

    async def head(self, span_id: str, file: str) -> int | None:
        """See BlobStore."""
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / span_id / file).stat().st_size
        return None


def _write(descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]
