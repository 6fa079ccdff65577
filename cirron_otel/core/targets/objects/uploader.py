"""The thread that uploads the tensors of snapshots and writes their URIs into the snapshot rows.

A file may arrive late, because the SDK uploads it after its batch. The thread waits for a missing
file as long as its batch is in the spool. A row refers to an object only once the object exists.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from .... import exactjson
from ....errors import InputError, TargetError
from ...delivery.blobs import open_blob
from ...delivery.delivery_stats import DeliveryStats
from ...delivery.errors import RefusedError, StoppedError, UnreachableError
from ...delivery.retry_policy import RetryGate, RetryPolicy
from ...spool.blobs import BlobKey, blob_key, tenant_of_directory
from ...spool.paths import SpoolPaths
from .pending import PendingUploads, Upload
from .place import tensor_key
from .store import BlobContent, BlobStore, DifferentError
from .tensors import TensorFile

_IDLE_S = 0.5
_GRACE_S = 1.0
_MARK_DIGITS = 8


class SnapshotOwnership(Protocol):
    """Determines the owners of snapshots."""

    def __call__(
        self, name: str, batch: Mapping[str, Any]
    ) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
        """Return a function that maps a snapshot record of a batch to (workspace id, run id).

        `name` is the batch's file name. Raises UnreachableError if the owner cannot be determined
        now.
        """


FileOf = Callable[[str, BlobKey], BlobKey]
"""Takes a batch's name and a file that the batch names; returns the file stored for its tenant."""


class SnapshotRowStore(Protocol):
    """A store with one row per snapshot.

    Methods raise UnreachableError if the store is unavailable, and RefusedError for permanent
    errors.
    """

    def readdress(self, batch: str, data: bytes | None, uris: Mapping[int, str]) -> bool:
        """Write the URIs of tensors, by record number; return False if the batch is not stored yet.

        `data` is the batch's content; None if the batch is no longer in the spool.
        """

    def close(self) -> None:
        """Close the connection."""


class Uploader:
    """Uploads the pending files to one store; call `start`, `wake` and `finish`.

    Its thread never raises. After an error, it retries the upload; the error is counted and, once
    per cause, logged at WARNING.
    """

    def __init__(
        self,
        paths: SpoolPaths,
        pending: PendingUploads,
        store: BlobStore,
        whose: SnapshotOwnership,
        rows: SnapshotRowStore | None,
        file_of: FileOf = lambda _, key: key,
    ) -> None:
        """Prepare the uploader; `start` starts it. `rows` is None if there are no rows to write."""
        self._file_of = file_of
        self._paths, self._pending, self._store = paths, pending, store
        self._ownership, self._rows = whose, rows
        self._changed = threading.Condition()
        self._is_stopped = self._is_woken = False
        self._deadline: float | None = None
        self._policy = RetryPolicy()
        self._rows_gate = RetryGate(self._policy, time.monotonic)
        self._tenant_gates: dict[str, RetryGate] = {}
        """The retry gates of tenants with failed uploads, so that no tenant delays another one."""
        self._stats = DeliveryStats(store.place.shown)
        self._objects = self._known = self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="cirron-otel-blobs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Look for new uploads now. Any thread may call this."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def finish(self, timeout: float) -> None:
        """Upload the remaining files, for at most `timeout` seconds, and end the thread."""
        with self._changed:
            self._deadline = time.monotonic() + timeout
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._is_stopped = True
            self._store.interrupt()
            self._thread.join(_GRACE_S)

    def stats(self) -> dict[str, Any]:
        """Return the statistics of a delivery, and the numbers of new and known objects."""
        counts = self._stats.counts()
        with contextlib.suppress(TargetError):  # the file may be closed, or the disk full
            self._waiting = len(self._pending)
        return {
            "target": f"blobs {self._store.place.shown}",
            **counts,
            "sent_objects": self._objects,
            "known_objects": self._known,
            "waiting": self._waiting,
            "is_running": self._thread.is_alive(),
        }

    def undelivered(self) -> int:
        """Count the received files that are not uploaded, and the uploads that no row refers to
        yet.

        A file that the client never sent is not counted, since there is nothing to deliver.
        """
        try:
            uploads = self._pending.uploads()
        except TargetError:
            return self._waiting
        return sum(is_sent or self._is_here(batch, key) for batch, key, is_sent in uploads)

    def _is_here(self, batch: str, key: BlobKey) -> bool:
        try:
            file = self._file_of(batch, key)
        except Exception:  # the owner cannot be determined now: assume that the file exists
            return True
        return (self._paths.snapshots / file.directory / file.file).exists()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        is_flushing = False
        while not self._is_stopped:
            if self._deadline is not None and not is_flushing:
                is_flushing = True
                self._attempt(self._pending.shorten_waits)
                for gate in self._tenant_gates.values():
                    gate.shorten_waits()
                self._rows_gate.shorten_waits()
            if self._attempt(self._turn):
                continue
            if self._deadline is not None and self._is_over(self._deadline):
                break
            self._pause()
        if self._rows is not None:
            self._attempt(self._rows.close)

    def _is_over(self, deadline: float) -> bool:
        """Return whether no further upload can be attempted before the deadline."""
        gates = (self._rows_gate, *self._tenant_gates.values())
        now = time.monotonic()
        return now > deadline or not any(now < gate.opens <= deadline for gate in gates)

    def _pause(self) -> None:
        with self._changed:
            if not self._is_woken:
                self._changed.wait(_IDLE_S)
            self._is_woken = False

    def _attempt(self, what: Callable[[], bool | None]) -> bool:
        try:
            return bool(what())
        except StoppedError:
            return False
        except Exception as error:  # the thread must continue; no caller would see the error
            self._stats.failed(error)
            return False

    def _turn(self) -> bool:
        """Upload the next file or change the next rows; return False if there is nothing to do."""
        rows_open = self._rows is not None and self._rows_gate.is_open
        upload = self._pending.next(files=True, rows=rows_open)
        if upload is None:
            return False
        try:
            if upload.uris is None:
                self._upload(upload)
            else:
                self._readdress(upload, upload.uris)
        except StoppedError:
            raise
        except UnreachableError as error:
            self._pending.later(upload)
            if upload.uris is not None:
                self._rows_gate.failed(error)
                raise
            self._stats.failed(error)  # the next upload is attempted without a wait
        except Exception:  # the error concerns only this upload
            self._pending.later(upload)
            raise
        return True

    # --- one file of one batch ------------------------------------------------------------------

    def _upload(self, upload: Upload) -> None:
        try:
            key = self._file_of(upload.batch, upload.key)
            tenant = tenant_of_directory(key.directory)
            gate = self._tenant_gates.get(tenant)
            if gate is not None and not gate.is_open:
                self._pending.defer(upload, gate.opens)
                return
            with open_blob(self._paths.snapshots, key) as file, self._gated(tenant):
                data = self._data(upload)
                if data is None:
                    raise InputError("its batch is no longer in the spool")
                uris = dict(self._put_all(upload, data, TensorFile(file)))
        except FileNotFoundError:
            if (self._paths.spool / upload.batch).exists():
                self._pending.later(upload)
            else:
                self._lose(upload, "it did not arrive before its batch left the spool")
            return
        except (RefusedError, InputError, RecursionError) as error:
            self._lose(upload, str(error))
            return
        self._tenant_gates.pop(tenant, None)
        self._stats.succeeded()
        self._stats.sent_blobs += 1
        if self._rows is None or not uris:
            self._pending.remove(upload)
        else:
            self._pending.uploaded(upload, uris)

    @contextlib.contextmanager
    def _gated(self, tenant: str) -> Iterator[None]:
        """Delay all uploads of the tenant if an upload fails inside the block."""
        try:
            yield
        except UnreachableError as error:
            gate = self._tenant_gates.setdefault(tenant, RetryGate(self._policy, time.monotonic))
            gate.failed(error)
            raise

    def _put_all(
        self, upload: Upload, data: bytes, tensors: TensorFile
    ) -> Iterator[tuple[int, str]]:
        """Store the tensors that the batch's records name; yield (record number, URI)."""
        batch = exactjson.loads(data)
        of = self._ownership(upload.batch, batch)
        for number, record in enumerate(batch["snapshots"]):
            uri = record.get("blob_uri") if isinstance(record, dict) else None
            if not isinstance(uri, str) or blob_key(uri, "", "") != upload.key:
                continue
            name = record.get("tensor_name")
            tensor = tensors.find(name) if isinstance(name, str) else None
            if tensor is None:
                self._miss(f"{upload.key.file} has no tensor {str(name)[:80]!a}")
                continue
            yield number, self._put(record, number, of(record), tensors.content(tensor, name))

    def _put(
        self, record: Mapping[str, Any], number: int, whose: tuple[str, str], content: BlobContent
    ) -> str:
        span_id, some_id = (_text(record.get(name)) for name in ("span_id", "id"))
        names = (*whose, span_id or "none", some_id or f"record-{number}")
        for mark in ("", content.sha256[:_MARK_DIGITS]):  # forked processes may use the same ids
            key = tensor_key(*names, mark)
            try:
                is_new = self._store.put(key, content)
            except DifferentError:
                continue
            self._objects += is_new
            self._known += not is_new
            self._stats.sent_bytes += content.size if is_new else 0
            return self._store.place.uri(key)
        raise RefusedError(f"{self._store.place.uri(key)} already exists with different content")

    def _readdress(self, upload: Upload, uris: Mapping[int, str]) -> None:
        assert self._rows is not None  # noqa: S101 - see _turn
        data = self._data(upload)
        try:
            is_done = self._rows.readdress(upload.batch, data, uris)
        except RefusedError as error:
            self._lose(upload, str(error))
            return
        self._rows_gate.passed()
        if is_done or data is None:
            self._pending.remove(upload)
        else:
            self._pending.later(upload)

    def _data(self, upload: Upload) -> bytes | None:
        try:
            return (self._paths.spool / upload.batch).read_bytes()
        except FileNotFoundError:
            return None

    def _lose(self, upload: Upload, reason: str) -> None:
        self._miss(f"{upload.key.directory}/{upload.key.file} of {upload.batch}: {reason}")
        self._pending.remove(upload)

    def _miss(self, reason: str) -> None:
        self._stats.lost_blobs += 1
        self._stats.failed(InputError(reason))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
