"""Snapshot files on their way to a target: which are to go, and which are there.

They go behind the batch that names them, on the thread of the delivery, part by part; what is to go
outlives the process in `state/blobs-<target>-<owner>.json`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from .. import exactjson
from ..errors import InputError
from ..ids import digest
from ..spool.blobs import BlobKey, blob_key
from ..spool.state import replace_file, set_aside
from .awaited_blobs import AwaitedBlobs
from .errors import RefusedError

_KEPT = 10_000
"""Files kept as done, the newest: batches may name a file that went with another."""
_AWAITED = 10_000
"""Files awaited at most, the newest: some clients never send the files that their batches name."""


class _Snapshot(msgspec.Struct):
    blob_uri: str | None = None


class _Batch(msgspec.Struct):
    snapshots: list[_Snapshot] = []


_batch_decoder = msgspec.json.Decoder(_Batch)


def local_blobs(data: bytes) -> list[BlobKey]:
    """The files below `snapshots/` that the batch in `data` names by `file://` URIs, in order.

    A URI with another scheme says where a file is already. Nothing outside that directory is ever
    named, whatever stands in the batch: of a path only its last two parts count.
    """
    if b"blob_uri" not in data:
        return []
    try:
        uris = [each.blob_uri for each in _batch_decoder.decode(data).snapshots]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        uris = _uris(data)
    keys = (blob_key(uri, "", "") for uri in uris if uri)  # of a remote URI, that gives None
    return list(dict.fromkeys(key for key in keys if key is not None))


def _uris(data: bytes) -> list[str | None]:
    """The same of JSON that says more than strict decoders take, a lone surrogate for example."""
    try:
        batch = exactjson.loads(data)
    except (InputError, RecursionError):
        return []
    snapshots = batch.get("snapshots") if isinstance(batch, dict) else None
    found = [
        each.get("blob_uri")
        for each in (snapshots if isinstance(snapshots, list) else ())
        if isinstance(each, dict)
    ]
    return [uri for uri in found if isinstance(uri, str)]


def named_blobs(name: str, data: bytes) -> list[BlobKey]:
    """Return `local_blobs` of a batch; the name is not used. Implements BlobSink.keys_of."""
    del name
    return local_blobs(data)


@contextlib.contextmanager
def open_blob(snapshots: Path, key: BlobKey) -> Iterator[BinaryIO]:
    """The file of `key`, open. Raises FileNotFoundError; RefusedError where a link leads there.

    Raises OSError where it cannot be read.
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


class _Told(msgspec.Struct):
    version: Literal[1]
    pending: list[BlobKey]
    done: list[BlobKey]


_told_decoder = msgspec.json.Decoder(_Told)


class BlobQueue:
    """The snapshot files that a target is to get of one owner's batches; `save` makes it last.

    Only who holds the lease of (target, owner) may use it.
    """

    def __init__(self, state: Path, target: str, owner: str) -> None:
        """Read what is kept. Raises InputError where that is damaged: see `reset`."""
        self.path = queue_path(state, target, owner)
        self._pending: dict[BlobKey, None] = {}
        self._done: dict[BlobKey, None] = {}
        self._awaited = AwaitedBlobs(_AWAITED)
        try:
            data = self.path.read_bytes()
            told = _told_decoder.decode(data) if data else _Told(1, [], [])
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{self.path} cannot be read ({error}): remove it, and files are sent again"
            ) from None
        self._pending = dict.fromkeys(told.pending)
        self._done = dict.fromkeys(told.done)

    @classmethod
    def reset(cls, state: Path, target: str, owner: str) -> BlobQueue:
        """Set a damaged file aside as `.bad` and begin anew. Raises TargetError."""
        set_aside(queue_path(state, target, owner))
        return cls(state, target, owner)

    def __len__(self) -> int:
        """Return how many files are to go; awaited ones do not count."""
        return len(self._pending)

    def __iter__(self) -> Iterator[BlobKey]:
        return iter(self._pending)

    @property
    def is_empty(self) -> bool:
        """Whether no file is to go, and none is awaited."""
        return not (self._pending or len(self._awaited))

    def add(self, keys: Iterable[BlobKey]) -> bool:
        """Take up files that are neither done nor waiting nor awaited; False if there were none."""
        known = (self._done, self._pending, self._awaited)
        new = [key for key in keys if not any(key in each for each in known)]
        self._pending.update(dict.fromkeys(new))
        return bool(new)

    def first(self) -> BlobKey:
        """The file whose turn it is."""
        return next(iter(self._pending))

    def put_back(self, key: BlobKey) -> None:
        """Let the others go first."""
        if key in self._pending:
            del self._pending[key]
            self._pending[key] = None

    def await_file(self, key: BlobKey, now: float) -> BlobKey | None:
        """Look for a file again later: it is not in the spool yet.

        Return the file that is given up for it, because too many are awaited; mostly None.
        """
        self._pending.pop(key, None)
        return self._awaited.add(key, now)

    def look_again(self, now: float) -> None:
        """Let those awaited files go that are to be looked for by now."""
        self._pending.update(dict.fromkeys(self._awaited.take_due(now)))

    def looks_again(self) -> float:
        """Return when to call `look_again`; infinity if no file is awaited."""
        return self._awaited.opens()

    def finish(self, key: BlobKey) -> None:
        """Note that a file is there, or will never be."""
        self._pending.pop(key, None)
        self._awaited.remove(key)
        self._done[key] = None
        while len(self._done) > _KEPT:
            del self._done[next(iter(self._done))]

    def save(self) -> None:
        """Write it. Raises TargetError where it cannot be written."""
        pending = [*self._pending, *self._awaited]
        replace_file(self.path, msgspec.json.encode(_Told(1, pending, list(self._done))))


def queue_path(state: Path, target: str, owner: str) -> Path:
    """The file of a queue."""
    return state / f"blobs-{digest('cursor', target)[:8].hex()}-{owner}.json"
