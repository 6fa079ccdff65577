"""The delivery target that records the snapshot files of batches as pending uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....errors import TargetError
from ...delivery.batch_target import Receipt, SealedBatch
from ...delivery.blobs import local_blobs
from ...delivery.errors import StoppedError, UnreachableError
from .pending import PendingUploads
from .place import BlobPlace

_REQUEST_BYTES = 4_000_000


class BlobTarget:
    """Records the files of sealed batches as pending uploads, which the uploader performs."""

    request_bytes = _REQUEST_BYTES
    blobs = None

    def __init__(
        self, pending: PendingUploads, place: BlobPlace, key: str, wake: Callable[[], object]
    ) -> None:
        """`key` is the key of this target; `wake` is called when there are new uploads."""
        self._pending, self._wake = pending, wake
        self.key, self.shown = key, place.shown
        self._is_interrupted = False

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Record the snapshot files that the batches name."""
        if self._is_interrupted:
            raise StoppedError(f"stopped before the files for {self.shown} were recorded")
        named = [(batch.name, local_blobs(batch.data)) for batch in batches]
        try:
            self._pending.add(named)
        except TargetError as error:
            raise UnreachableError(str(error)) from None
        if any(keys for _, keys in named):
            self._wake()
        return Receipt()

    def interrupt(self) -> None:
        """Refuse all later calls."""
        self._is_interrupted = True

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def abandon(self) -> None:
        """Do nothing: no connection is open."""
