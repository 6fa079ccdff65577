"""Write batches into a spool, each atomically and durably."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from ... import exactjson
from ...errors import InputError, RefusedNameError, TargetError, UsageError
from ..atomic_files import publish, sync_directory, sync_file
from .direct import write_all
from .directories import make_private
from .eviction import CollectorFiles, Drops, Eviction
from .paths import BATCH_SUFFIX, TMP_SUFFIX, checked_name, file_name, target_spool

DEFAULT_MAX_BYTES = 1_000_000_000
_LOCK_SECONDS = 30.0
# Some network and FUSE file systems have no locks; names are unique anyway.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
# The file system rejects this name, or it is the name of something other than a file.
_NAME_REFUSED = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.ELOOP, errno.EISDIR})


class Written(NamedTuple):
    """The result of writing a batch."""

    name: str
    path: Path
    is_new: bool
    """False if a file with that name and content already existed."""


class SpoolWriter:
    """Writes batches into the spool at `directory`, which it creates if needed.

    A batch is written to `<name>.json.tmp`, fsynced and renamed, and the directory is fsynced: a
    reader sees the complete file or none, and once `write` returns, the batch survives a power
    failure. Files have mode 0600, directories 0700. Several writers, in threads and in processes,
    may share a spool. Above `max_bytes` (1 GB; None for no cap) the oldest batches are evicted,
    together with the snapshot files that no other batch references; `drops` counts them.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        *,
        durable: bool = True,
        is_wanted: Callable[[str], bool] | None = None,
        beside: CollectorFiles | None = None,
    ) -> None:
        """Prepare writing. Raises TargetError if `directory` cannot be a spool.

        `durable=False` omits the fsyncs, for bulk work that ends with one `sync()` and is repeated
        after a power failure. If `is_wanted` returns True for the name of a batch, neither this
        batch nor a newer one is evicted; meanwhile, `write` raises TargetError if there is no room.
        `beside` describes the other files of a collector in the spool.
        """
        if max_bytes is not None and max_bytes <= 0:
            raise UsageError(f"a spool's cap of {max_bytes} bytes: expected more than 0, or None")
        self.paths = target_spool(directory)
        self._eviction = (
            None if max_bytes is None else Eviction(self.paths, max_bytes, is_wanted, beside)
        )
        self._durable = durable
        self._lock = threading.Lock()
        self._is_made = False

    @property
    def drops(self) -> Drops:
        """The amount that eviction has dropped so far."""
        return self._eviction.drops if self._eviction is not None else Drops()

    def write(self, data: bytes, name: str | None = None, *, has_snapshots: bool = True) -> Written:
        """Write a batch under `name`, or under the name derived from the batch itself.

        Without `has_snapshots`, the batch is known to have none, and is not searched for them.
        Raises TargetError if a file of that name has other content, if the name is not a plain file
        name, or if the spool cannot be written; no partial file is left in these cases.
        """
        name = checked_name(name if name is not None else name_of(data))
        path = self.paths.spool / name
        with self._lock:
            try:
                self._make_directories()
                if _holds_already(path, data):
                    return Written(name, path, False)
                if self._eviction is not None:
                    self._eviction.make_room(name, data, has_snapshots=has_snapshots)
                is_new = _seal(path, data, self._durable)
            except OSError as error:
                if error.errno in _NAME_REFUSED:
                    raise RefusedNameError(
                        f"{path} cannot be written under this name: {error.strerror}"
                    ) from None
                raise _unwritable(path, error) from None
            if self._eviction is not None and is_new:
                self._eviction.added(name, len(data))
        return Written(name, path, is_new)

    def sync(self) -> None:
        """Wait until everything written so far is on disk; for `durable=False`."""
        if not self._durable:
            os.sync()

    def _make_directories(self) -> None:
        if self._is_made and self.paths.spool.is_dir():
            return
        for directory in (self.paths.root, self.paths.spool):
            if not directory.is_dir():
                _make_private(directory)
        self._is_made = True


class _Header(msgspec.Struct):
    created_ns: int
    batch_id: str


_header_decoder = msgspec.json.Decoder(_Header)


def name_of(data: bytes) -> str:
    """Return the file name of a batch from its created_ns and batch_id.

    Raises TargetError if they are missing or cannot be used in a name.
    """
    try:
        header = _header_decoder.decode(data)
        return file_name(header.created_ns, header.batch_id)
    except UsageError as error:
        raise TargetError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        batch = exactjson.loads(data)
        if isinstance(batch, dict):
            created_ns, batch_id = batch.get("created_ns"), batch.get("batch_id")
            if type(created_ns) is int and isinstance(batch_id, str):
                return file_name(created_ns, batch_id)
    except InputError as error:
        raise TargetError(f"cannot name a batch that is {error}") from None
    except UsageError as error:
        raise TargetError(str(error)) from None
    raise TargetError(
        "the batch's file name cannot be derived from its created_ns (an integer) and batch_id"
        " (a string): give a file name"
    )


def _seal(path: Path, data: bytes, durable: bool) -> bool:
    """Create the file `path` atomically; return False if it already exists with this content.

    Raises TargetError if it exists with other content, and OSError if it cannot be written.
    """
    tmp = path.with_name(path.name.removesuffix(BATCH_SUFFIX) + TMP_SUFFIX)
    with _locked_tmp(tmp) as descriptor:
        is_sealed = False
        try:
            # Check again under the lock, which excludes other writers of the same name.
            if not _holds_already(path, data):
                os.ftruncate(descriptor, 0)
                write_all(descriptor, data, is_synced=durable)
                os.fchmod(descriptor, 0o600)
                if durable:
                    sync_file(descriptor)
                publish(tmp, path, syncs_name=False)
                is_sealed = True
        finally:
            if not is_sealed:
                tmp.unlink(missing_ok=True)
    if is_sealed and durable:
        sync_directory(path.parent)
    return is_sealed


@contextlib.contextmanager
def _locked_tmp(tmp: Path) -> Iterator[int]:
    """Open and lock the file `tmp`, and yield its descriptor; take over a dead process's file."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        descriptor = os.open(tmp, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if _lock(descriptor) and _is_same_file(descriptor, tmp):
                yield descriptor
                return
        finally:
            os.close(descriptor)
        if time.monotonic() > deadline:
            raise TargetError(f"{tmp} is locked by another process: try again when it has ended")
        time.sleep(0.002)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether the open file still has its name: another writer may rename or remove it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _holds_already(path: Path, data: bytes) -> bool:
    """Return whether the file exists with this content. Raises TargetError for other content."""
    try:
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size == len(data):
            with path.open("rb") as file:
                if file.read(len(data) + 1) == data:
                    return True
    except FileNotFoundError:
        if not path.is_symlink():
            return False
    except PermissionError:
        if not os.path.lexists(path):
            raise
    raise RefusedNameError(
        f"{path} exists with other content: nothing was overwritten;"
        " choose another directory, or remove that file"
    )


def _make_private(directory: Path) -> None:
    """Create a directory and its parents, which only their owner may access."""
    make_private(directory)
    sync_directory(directory.parent)  # in case another process has just created it


def _unwritable(path: Path, error: OSError) -> TargetError:
    reason = error.strerror or str(error)
    return TargetError(
        f"{path} cannot be written: {reason}; free some space, or choose a directory"
        " that can be written"
    )
