"""Delivers batches to columnar tables in groups of some size or age.

A batch that waits for its group is in the spool, and counts as undelivered. So it survives a crash,
is not evicted, and takes no memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.columns.extra import require
from ...core.spool.paths import SpoolPaths
from ...core.targets.sql.ownership import OwnerContext
from . import metrics as m
from .held_batches import HoldingTarget
from .metrics import Registry
from .target_sender import TargetSender

if TYPE_CHECKING:
    from ...core.columns.target import ColumnsTarget
    from ..receiver.tenancy import TenantStore
    from .options import CollectorOptions, ParquetOptions


class ParquetSender(TargetSender):
    """Announces batches to the delivery when their group is large or old enough."""

    def __init__(
        self,
        paths: SpoolPaths,
        target: ColumnsTarget,
        options: ParquetOptions,
        registry: Registry,
        max_bytes: int | None,
    ) -> None:
        """Start the delivery with the batches that are in the spool."""
        self._options = options
        self._changed = threading.Condition()
        self._held: list[str] = []
        self._held_bytes = 0
        self._roll_at = 0.0
        self._is_hurried = self._is_ending = False
        super().__init__(paths, target, registry, m.PARQUET, max_bytes)
        self._thread = threading.Thread(target=self._roll, daemon=True)
        self._thread.start()

    def stored(self, names: list[str]) -> None:
        """Add batches that were stored in the spool."""
        self._oldest.add(names)
        size = sum(self._size(name) for name in names)
        with self._changed:
            if not self._held:
                self._roll_at = time.monotonic() + self._options.roll_s
            self._held += names
            self._held_bytes += size
            self._changed.notify()

    def _size(self, name: str) -> int:
        try:
            return (self._paths.spool / name).stat().st_size
        except OSError:  # evicted meanwhile
            return 0

    def lacks(self, name: str) -> bool:
        """Return whether a batch must still be sent; if so, its group is written now."""
        is_lacking = super().lacks(name)
        if is_lacking:
            with self._changed:
                self._is_hurried = True
                self._changed.notify()
        return is_lacking

    def finish(self, timeout: float) -> None:
        """Send the remaining batches, and stop."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()
        super().finish(timeout)

    end = finish

    def _held_back(self) -> int:
        return len(self._held)

    def _roll(self) -> None:
        while True:
            with self._changed:
                while not self._is_due():
                    left = self._roll_at - time.monotonic() if self._held else None
                    self._changed.wait(left)
                # The delivery has the batches before they are no longer held: see `progress`.
                self._notify(self._held)
                self._held, self._held_bytes = [], 0
                self._is_hurried, is_ending = False, self._is_ending
            if is_ending:
                return

    def _is_due(self) -> bool:
        if self._is_ending:
            return True
        return bool(self._held) and (
            self._is_hurried
            or self._held_bytes >= self._options.roll_bytes
            or time.monotonic() >= self._roll_at
        )


def parquet_starter(
    options: CollectorOptions,
    owner_of: Callable[[str], OwnerContext],
    registry: Registry,
    owners: TenantStore,
) -> Callable[[SpoolPaths], ParquetSender]:
    """Return the function that starts the sender; `owner_of` takes the name of a batch.

    `owners` determines the batches that are held.

    Raises UsageError and MissingExtraError.
    """
    require()
    from ...core.columns.target import ColumnsTarget  # noqa: PLC0415 - imports pyarrow

    parquet, max_bytes = options.parquet, options.spool.max_bytes
    target: Any = HoldingTarget(
        ColumnsTarget(tables_place(parquet), parquet.roll_bytes, owner_of), owners
    )
    return lambda paths: ParquetSender(paths, target, parquet, registry, max_bytes)


def tables_place(options: ParquetOptions) -> str:
    """Return the directory or the `s3://` URL of the tables, which are configured."""
    assert options.url is not None  # noqa: S101 - callers check it
    return options.url.removeprefix("file://")
