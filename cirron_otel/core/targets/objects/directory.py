"""A blob store in a directory."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ....errors import TargetError
from ...atomic_files import publish, sync_file, write_all
from ...delivery.errors import MisconfiguredError, StoppedError, UnreachableError
from ...spool.directories import make_private
from ...spool.state import has_name, lock_named
from .place import BlobPlace, checked_key
from .store import PIECE_BYTES, BlobContent, DifferentError, StoredObject, file_content

_WRONG = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


class DirectoryStore:
    """Stores objects as files of mode 0600 in directories of mode 0700. Implements BlobStore."""

    def __init__(self, place: BlobPlace) -> None:
        """Prepare the store. The first object creates the directory."""
        assert place.path is not None  # noqa: S101 - open_store checks it
        self.place, self._root = place, place.path
        self._is_interrupted = False

    def put(self, key: str, content: BlobContent) -> bool:
        """Write, sync and rename a file; return False if the object existed already."""
        path = self._path(key)
        _ = content.sha256  # read it first: an unreadable file is not an error of the store
        with self._store_errors(path):
            if self._is_there(path, content):
                return False
            make_private(path.parent)
        tmp = path.with_name(f".{path.name}.tmp")
        # A concurrent put of the same key waits here until the object exists.
        descriptor = self._locked(tmp)
        try:
            with self._store_errors(path):
                if self._is_there(path, content):
                    tmp.unlink(missing_ok=True)
                    return False
                os.ftruncate(descriptor, 0)
            self._write(descriptor, content, path)
            with self._store_errors(path):
                sync_file(descriptor)
                publish(tmp, path)
            return True
        except BaseException:
            with contextlib.suppress(OSError):
                if has_name(descriptor, tmp):
                    tmp.unlink()
            raise
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, content: BlobContent, path: Path) -> None:
        for piece in content.checked_pieces():
            if self._is_interrupted:
                raise StoppedError(f"stopped before {self.place.shown} received everything")
            with self._store_errors(path):
                write_all(descriptor, piece)

    def _locked(self, tmp: Path) -> int:
        try:
            descriptor = lock_named(tmp, wait=True)
        except TargetError as error:
            raise UnreachableError(str(error)) from None
        assert descriptor is not None  # noqa: S101 - `lock_named` waits
        return descriptor

    def _is_there(self, path: Path, content: BlobContent) -> bool:
        try:
            with path.open("rb") as file:
                stored = file_content(file)
                if stored.size == content.size and stored.sha256 == content.sha256:
                    return True
        except FileNotFoundError:
            return False
        raise DifferentError(f"{path} already exists with different content: remove it first")

    def head(self, key: str) -> StoredObject | None:
        """Return the metadata of an object, or None if it does not exist."""
        path = self._path(key)
        with self._store_errors(path):
            try:
                with path.open("rb") as file:
                    stored = file_content(file)
                    return StoredObject(stored.size, stored.sha256)
            except FileNotFoundError:
                return None

    def get(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object. Raises FileNotFoundError if it does not exist."""
        path = self._path(key)
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def delete(self, key: str) -> None:
        """Remove an object if it exists."""
        path = self._path(key)
        with self._store_errors(path):
            path.unlink(missing_ok=True)

    def interrupt(self) -> None:
        """Stop a `put` in progress at its next piece, and refuse all later calls."""
        self._is_interrupted = True

    def _path(self, key: str) -> Path:
        if self._is_interrupted:
            raise StoppedError(f"stopped before {self.place.shown} received everything")
        return self._root / checked_key(key)

    @contextlib.contextmanager
    def _store_errors(self, path: Path) -> Iterator[None]:
        """Convert OSErrors of the store's own files into delivery errors."""
        try:
            yield
        except OSError as error:
            kind = MisconfiguredError if error.errno in _WRONG else UnreachableError
            what = error.strerror or str(error)
            raise kind(f"{path} cannot be written: {what}; check the free disk space and the"
                       " permissions") from None  # fmt: skip
