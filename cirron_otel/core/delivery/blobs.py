"""The snapshot files to send to a target, and the ones that it already has.

A delivery sends a file after the batch that names it, part by part. The list of files to send is
stored in `state/blobs-<target>-<owner>.json`, so it survives the process.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from ... import exactjson
from ...errors import InputError
from ...ids import digest
from ..spool.blobs import BlobKey, blob_key, tenant_of_directory
from ..spool.state import replace_file, set_aside
from .errors import RefusedError
from .retry_policy import FailureKind, RetryGate, RetryPolicy, kind_of

_KEPT = 10_000
"""The maximum number of finished files to remember: several batches may name the same file."""
_AWAITED = 10_000
"""The maximum number of awaited files, since some clients never send the files of their batches."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
_ALWAYS = float("-inf")


class _Snapshot(msgspec.Struct):
    blob_uri: str | None = None


class _Batch(msgspec.Struct):
    snapshots: list[_Snapshot] = []


_batch_decoder = msgspec.json.Decoder(_Batch)


def local_blobs(data: bytes) -> list[BlobKey]:
    """Return the files below `snapshots/` to which a batch refers by `file://` URIs, in order.

    A URI with another scheme refers to a file that was already sent. Whatever the batch contains,
    the result never contains files outside that directory: only the last two parts of a path count.
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
    """Return the URIs in JSON that strict decoders reject, such as JSON with lone surrogates."""
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
    """Return `local_blobs` of a batch; ignore its name. Implements BlobSink.keys_of."""
    del name
    return local_blobs(data)


@contextlib.contextmanager
def open_blob(snapshots: Path, key: BlobKey) -> Iterator[BinaryIO]:
    """Open the file `key` below `snapshots`.

    Raises FileNotFoundError if it does not exist, RefusedError if it is a link or not a regular
    file, and OSError if reading fails.
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
            raise RefusedError(f"snapshot file {_shown(key)} is not a regular file")
        yield file


def _shown(key: BlobKey) -> str:
    return ascii(f"{key.directory}/{key.file}")[1:-1]


class AwaitedBlobs:
    """Schedules when to check for each missing file: after 1 s, 2 s, 4 s and so on, up to 30 s.

    Only a process that receives files needs this, since clients send a batch before its files.
    """

    def __init__(self, most: int) -> None:
        """Await at most `most` files."""
        self._most = most
        self._due: dict[BlobKey, float] = {}
        self._waits: dict[BlobKey, float] = {}
        """The latest wait, in seconds, for each file that is awaited or was returned as due."""
        self._heap: list[tuple[float, BlobKey]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: object) -> bool:
        return key in self._due

    def __iter__(self) -> Iterator[BlobKey]:
        return iter(self._due)

    def add(self, key: BlobKey, now: float) -> BlobKey | None:
        """Await a file. Above the limit, stop awaiting the oldest file and return it."""
        wait = min(max(2 * self._waits.get(key, 0.0), FIRST_WAIT_S), LONGEST_WAIT_S)
        self._waits[key], self._due[key] = wait, now + wait
        heapq.heappush(self._heap, (now + wait, key))
        if len(self._waits) <= self._most:
            return None
        given_up = next(iter(self._waits))
        self.remove(given_up)
        return given_up

    def take_due(self, now: float) -> list[BlobKey]:
        """Return the files whose next check is due, and stop awaiting them."""
        due_keys = []
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                due_keys.append(key)
        return due_keys

    def opens(self) -> float:
        """Return when the next check is due; infinity if no file is awaited."""
        return self._heap[0][0] if self._heap else float("inf")

    def remove(self, key: BlobKey) -> None:
        """Forget a file that was sent or will never be sent."""
        self._waits.pop(key, None)
        self._due.pop(key, None)


class _SavedQueue(msgspec.Struct):
    version: Literal[1]
    pending: list[BlobKey]
    done: list[BlobKey]


_queue_decoder = msgspec.json.Decoder(_SavedQueue)


class BlobQueue:
    """The queue of snapshot files of an owner's batches for a target; `save` persists it.

    Only the holder of the lease of (target, owner) may use the queue.
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
        """Rename a damaged file to `.bad` and return an empty queue.

        Raises TargetError if the file cannot be renamed.
        """
        set_aside(queue_path(state, target, owner))
        return cls(state, target, owner)

    def __len__(self) -> int:
        """Return the number of files to send, without awaited files."""
        return len(self._pending)

    def __iter__(self) -> Iterator[BlobKey]:
        return iter(self._pending)

    @property
    def is_empty(self) -> bool:
        """Whether there are no files to send or to await."""
        return not (self._pending or len(self._awaited))

    def add(self, keys: Iterable[BlobKey]) -> bool:
        """Add the files that are new to the queue; return whether any file was new."""
        known = (self._done, self._pending, self._awaited)
        new = [key for key in keys if not any(key in each for each in known)]
        self._pending.update(dict.fromkeys(new))
        return bool(new)

    def put_back(self, key: BlobKey) -> None:
        """Move a file to the end of the queue."""
        if key in self._pending:
            del self._pending[key]
            self._pending[key] = None

    def await_file(self, key: BlobKey, now: float) -> BlobKey | None:
        """Check for a file again later, because it is not in the spool yet.

        If too many files are awaited, one of them is given up and returned; otherwise returns None.
        """
        self._pending.pop(key, None)
        return self._awaited.add(key, now)

    def rescan(self, now: float) -> None:
        """Queue the awaited files whose next check is due at `now`."""
        self._pending.update(dict.fromkeys(self._awaited.take_due(now)))

    def rescan_at(self) -> float:
        """Return when to call `rescan`; infinity if no file is awaited."""
        return self._awaited.opens()

    def finish(self, key: BlobKey) -> None:
        """Record that the target has received a file, or will never receive it."""
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


class BlobGates:
    """A retry gate for the target, and one per tenant with a failed upload. For one thread.

    A failed upload delays the other files of its tenant. If the target did not respond, it delays
    all files.
    """

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float]) -> None:
        """Create an instance with all gates open. `clock` returns seconds."""
        self._policy, self._clock = policy, clock
        self._target = RetryGate(policy, clock)
        self._tenants: dict[str, RetryGate] = {}

    def first(self, queue: BlobQueue) -> BlobKey | None:
        """Return the first file of a queue that may be tried now; None if no file may be tried."""
        if not self._target.is_open:
            return None
        if not self._tenants:
            return next(iter(queue), None)
        closed = {name for name, gate in self._tenants.items() if not gate.is_open}
        keys = (key for key in queue if tenant_of_directory(key.directory) not in closed)
        return next(keys, None)

    def opens(self, queues: Iterable[BlobQueue]) -> float:
        """Return when a file of the queues may be tried; infinity if the queues are empty."""
        times = {
            max(self._target.opens, self._opens_for(tenant))
            for queue in queues
            for tenant in ({tenant_of_directory(key.directory) for key in queue})
        }
        return min(times, default=float("inf"))

    def passed(self, key: BlobKey) -> None:
        """Record that the target accepted an upload, or refused it permanently."""
        self._target.passed()
        self._tenants.pop(tenant_of_directory(key.directory), None)

    def failed(self, key: BlobKey, error: Exception) -> None:
        """Delay all files if the target did not respond, otherwise the files of the same tenant."""
        if kind_of(error) is FailureKind.NO_ANSWER:
            self._target.failed(error)
            return
        tenant = tenant_of_directory(key.directory)
        self._tenants.setdefault(tenant, RetryGate(self._policy, self._clock)).failed(error)

    def shorten_waits(self) -> None:
        """Shorten all waits to what the target asked for, because the process is about to end."""
        for gate in (self._target, *self._tenants.values()):
            gate.shorten_waits()

    def _opens_for(self, tenant: str) -> float:
        gate = self._tenants.get(tenant)
        return _ALWAYS if gate is None else gate.opens
