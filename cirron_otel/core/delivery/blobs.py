"""Snapshot files that a target is to receive, and those that it has.

A file is sent after the batch that names it, by the same delivery, part by part. The list of files
to send survives the process in `state/blobs-<target>-<owner>.json`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from ... import exactjson
from ...errors import InputError
from ...ids import digest
from ..spool.blobs import BlobKey, blob_key
from ..spool.state import replace_file, set_aside
from .awaited_blobs import AwaitedBlobs
from .errors import RefusedError

_KEPT = 10_000
"""The maximum number of finished files to remember: several batches may name the same file."""
_AWAITED = 10_000
"""The maximum number of awaited files: some clients never send the files of their batches."""


class _Snapshot(msgspec.Struct):
    blob_uri: str | None = None


class _Batch(msgspec.Struct):
    snapshots: list[_Snapshot] = []


_batch_decoder = msgspec.json.Decoder(_Batch)


def local_blobs(data: bytes) -> list[BlobKey]:
    """Return the files below `snapshots/` that a batch names by `file://` URIs, in order.

    A URI with another scheme refers to a file that was sent already. No file outside that directory
    is ever named, whatever the batch contains: only the last two parts of a path count.
    """
    if b"blob_uri" not in data:
        return []
    try:
        uris = [each.blob_uri for each in _batch_decoder.decode(data).snapshots]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        uris = _uris(data)
    keys = (blob_key(uri, "", "") for uri in uris if uri)  # None for a remote URI
    return list(dict.fromkeys(key for key in keys if key is not None))


def _uris(data: bytes) -> list[str | None]:
    """Return the URIs of JSON that strict decoders reject, such as JSON with a lone surrogate."""
    try:
        batch = exactjson.loads(data)
    except (InputError, RecursionError):
        return []
    snapshots = batch.get("snapshots") if isinstance(batch, dict) else None
    uris = [
        each.get("blob_uri")
        for each in (snapshots if isinstance(snapshots, list) else ())
        if isinstance(each, dict)
    ]
    return [uri for uri in uris if isinstance(uri, str)]


def named_blobs(name: str, data: bytes) -> list[BlobKey]:
    """Return `local_blobs` of a batch; the name is not used. Implements BlobSink.keys_of."""
    del name
    return local_blobs(data)


@contextlib.contextmanager
def open_blob(snapshots: Path, key: BlobKey) -> Iterator[BinaryIO]:
    """Open the file `key` below `snapshots`.

    Raises FileNotFoundError, RefusedError if it is a link or not a regular file, and OSError if
    reading fails.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        directory = os.open(snapshots / key.directory, flags | os.O_DIRECTORY)
        try:
            descriptor = os.open(key.file, flags | os.O_NONBLOCK, dir_fd=directory)
        finally:
            os.close(directory)
    except FileNotFoundError:
        raise
    except (NotADirectoryError, OSError) as error:
        raise RefusedError(
            f"snapshot file {_shown(key)} cannot be read: {error.strerror}"
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RefusedError(f"snapshot file {_shown(key)} is no regular file")
        yield file


def _shown(key: BlobKey) -> str:
    return ascii(f"{key.directory}/{key.file}")[1:-1]


class _SavedQueue(msgspec.Struct):
    version: Literal[1]
    pending: list[BlobKey]
    done: list[BlobKey]


_queue_decoder = msgspec.json.Decoder(_SavedQueue)


class BlobQueue:
    """The snapshot files of one owner's batches that a target is to receive; `save` persists it.

    Only the holder of the lease of (target, owner) may use it.
    """

    def __init__(self, state: Path, target: str, owner: str) -> None:
        """Read the saved queue. Raises InputError if it is damaged; see `reset`."""
        self.path = queue_path(state, target, owner)
        self._pending: dict[BlobKey, None] = {}
        self._done: dict[BlobKey, None] = {}
        self._awaited = AwaitedBlobs(_AWAITED)
        try:
            data = self.path.read_bytes()
            saved = _queue_decoder.decode(data) if data else _SavedQueue(1, [], [])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{self.path} cannot be read ({error}): remove it, and files are sent again"
            ) from None
        self._pending = dict.fromkeys(saved.pending)
        self._done = dict.fromkeys(saved.done)

    @classmethod
    def reset(cls, state: Path, target: str, owner: str) -> BlobQueue:
        """Rename a damaged file to `.bad` and return an empty queue. Raises TargetError."""
        set_aside(queue_path(state, target, owner))
        return cls(state, target, owner)

    def __len__(self) -> int:
        """Return how many files are to be sent; awaited ones do not count."""
        return len(self._pending)

    def __iter__(self) -> Iterator[BlobKey]:
        return iter(self._pending)

    @property
    def is_empty(self) -> bool:
        """Whether no file is to be sent or awaited."""
        return not (self._pending or len(self._awaited))

    def add(self, keys: Iterable[BlobKey]) -> bool:
        """Add the files that are new to the queue; return whether there were any."""
        known = (self._done, self._pending, self._awaited)
        new = [key for key in keys if not any(key in each for each in known)]
        self._pending.update(dict.fromkeys(new))
        return bool(new)

    def first(self) -> BlobKey:
        """Return the next file."""
        return next(iter(self._pending))

    def put_back(self, key: BlobKey) -> None:
        """Move a file to the end of the queue."""
        if key in self._pending:
            del self._pending[key]
            self._pending[key] = None

    def await_file(self, key: BlobKey, now: float) -> BlobKey | None:
        """Look for a file again later, because it is not in the spool yet.

        Returns the file that is given up instead if too many are awaited, else None.
        """
        self._pending.pop(key, None)
        return self._awaited.add(key, now)

    def rescan(self, now: float) -> None:
        """Queue the awaited files whose next look is due by `now`."""
        self._pending.update(dict.fromkeys(self._awaited.take_due(now)))

    def rescan_at(self) -> float:
        """Return when to call `rescan`; infinity if no file is awaited."""
        return self._awaited.opens()

    def finish(self, key: BlobKey) -> None:
        """Record that the target has a file, or never will."""
        self._pending.pop(key, None)
        self._awaited.remove(key)
        self._done[key] = None
        while len(self._done) > _KEPT:
            del self._done[next(iter(self._done))]

    def save(self) -> None:
        """Write the queue to its file. Raises TargetError if that fails."""
        pending = [*self._pending, *self._awaited]
        replace_file(self.path, msgspec.json.encode(_SavedQueue(1, pending, list(self._done))))


def queue_path(state: Path, target: str, owner: str) -> Path:
    """Return the path of the file in which a queue is saved."""
    return state / f"blobs-{digest('cursor', target)[:8].hex()}-{owner}.json"
