"""The delivery target that stores batches in columnar tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import InputError, TargetError
from ...ids import digest
from ..delivery.batch_target import Receipt, SealedBatch
from ..delivery.errors import MisconfiguredError, RefusedError, StoppedError, UnreachableError
from ..targets.sql.ownership import OwnerContext
from .known_batches import KnownBatches
from .packed import PackedRows
from .places import open_tables
from .request_parts import rows_by_partition
from .writing import ColumnsWriter

_WAIT_S = 30.0
"""How long another writer of the same directory may take, seconds."""


class ColumnsTarget:
    """Adds sealed batches to tables, each call as one group for each run and day.

    A batch that a collector created from requests is stored as one batch for each of their parts.
    Implements BatchTarget. `send` returns when the rows are durable and count. Other processes may
    add to the same tables.
    """

    blobs = None

    def __init__(
        self, url: str, request_bytes: int, context_of: Callable[[str], OwnerContext]
    ) -> None:
        """`request_bytes` is the size of the batches of one call.

        `context_of` returns the ownership of a batch by its name. Raises UsageError and
        MissingExtraError.
        """
        self._store = open_tables(url)
        self.request_bytes = request_bytes
        self._context_of = context_of
        self.shown = self._store.shown
        self.key = f"parquet {digest('parquet', self.shown)[:8].hex()}"
        self._known: KnownBatches | None = None
        self._is_interrupted = False

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Add the batches, or their parts, that the tables do not contain, each once."""
        converted: list[PackedRows] = []
        for batch in batches:  # before the lock is held, which other processes wait for
            self._go_on()
            converted += self._rows_of(batch)
        try:
            with ColumnsWriter(self._store, known=self._known, wait_s=_WAIT_S) as writer:
                for rows in converted:
                    self._go_on()
                    writer.add(rows)
        except InputError as error:  # the tables are damaged
            raise MisconfiguredError(str(error)) from None
        except TargetError as error:
            raise UnreachableError(str(error)) from None
        self._known = writer.known
        return Receipt()

    def _go_on(self) -> None:
        if self._is_interrupted:
            raise StoppedError(f"stopped before {self.shown} received everything")

    def _rows_of(self, batch: SealedBatch) -> list[PackedRows]:
        try:
            return rows_by_partition(batch, self._context_of(batch.name))
        except InputError as error:
            raise RefusedError(str(error)) from None

    def interrupt(self) -> None:
        """Stop before the next batch, and refuse all later calls."""
        self._is_interrupted = True

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def abandon(self) -> None:
        """Do nothing: no connection is open."""
