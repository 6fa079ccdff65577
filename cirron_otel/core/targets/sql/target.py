"""The delivery target that stores batches in a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ....errors import TargetError, UsageError
from ...delivery.batch_target import BlobSink, Receipt, SealedBatch
from ...delivery.errors import MisconfiguredError, RefusedError, StoppedError, UnreachableError
from .ownership import OwnerContext
from .store import BatchStore, open_store
from .url import parse_url

_REQUEST_BYTES = 4_000_000

_T = TypeVar("_T")


class StorageTarget:
    """Stores sealed batches in a database. Implements BatchTarget.

    It connects when the first batches arrive. If the database is unavailable, delivery resumes when
    it is available again.
    """

    request_bytes = _REQUEST_BYTES

    def __init__(
        self,
        url: str,
        context: OwnerContext | None = None,
        *,
        blobs: BlobSink | None = None,
        statement_s: float | None = None,
    ) -> None:
        """`blobs` receives the snapshot files. `statement_s` limits each statement, seconds.

        Raises UsageError for an invalid URL.
        """
        location = parse_url(url)
        self._url, self._context = url, context or OwnerContext()
        self.key, self.shown = location.key, location.shown
        self.blobs, self._statement_s = blobs, statement_s
        self._storage: BatchStore | None = None
        self._is_interrupted = False

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Store all batches, or none if an error is raised."""
        if self._is_interrupted:
            raise StoppedError(f"stopped before {self.shown} received everything")
        self.use(lambda storage: storage.write(batches, self._context))
        return Receipt()

    def use(self, action: Callable[[BatchStore], _T]) -> _T:
        """Return the result of an action on the connected storage. Raises as `send` does."""
        try:
            if self._storage is None:
                self._storage = open_store(self._url)
                if self._statement_s is not None:
                    self._storage.limit_statements(self._statement_s)
            return action(self._storage)
        except UsageError as error:  # the driver raised it, or is not installed
            raise MisconfiguredError(str(error)) from None
        except TargetError as error:
            raise RefusedError(str(error)) from None
        except UnreachableError:
            self.close()
            raise

    def interrupt(self) -> None:
        """Cancel a `send` in progress in another thread, and refuse later calls."""
        self._is_interrupted = True
        if (storage := self._storage) is not None:
            storage.interrupt()

    def close(self) -> None:
        """Close the connection; the next `send` opens a new one."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.close()

    def abandon(self) -> None:
        """In a forked child: drop the connection without sending anything to the server."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.abandon()

    def __repr__(self) -> str:
        return f"StorageTarget({self.shown!r})"
