"""The removal of expired batches from the database and from the columnar tables, and compaction.

No batch is removed if too many would be removed at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from ...core.durations import DAY_NS
from ...errors import CirronOtelError
from .parquet_sender import tables_place

if TYPE_CHECKING:
    from ...core.columns.compaction import Compactor
    from ...core.columns.expiry import TableExpiry
    from .options import CollectorOptions, ParquetOptions, StorageOptions

    RetentionOptions = ParquetOptions | StorageOptions

logger = logging.getLogger(__name__)


class Removed(Protocol):
    """The result of a removal."""

    @property
    def batches(self) -> int:
        """The number of batches that were removed."""


class Expirable(Protocol):
    """A target that old batches can be removed from."""

    def expired(self, before_ns: int) -> tuple[int, int]:
        """Return how many batches `retain` would remove, and how many there are."""

    def retain(self, before_ns: int) -> Removed:
        """Remove the batches that date from before a time (Unix ns)."""


class _Background:
    """Work on a separate thread, at most once at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        self._thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the work is being done."""
        return self._thread is not None and self._thread.is_alive()


class Retention(_Background):
    """Removes old rows from the database."""

    def start(self, options: StorageOptions) -> None:
        """Begin a removal if one is configured and no other is running.

        The caller has verified that the clock can be trusted.
        """
        if options.url is None or options.retention_days is None or self.is_running:
            return
        self._begin(_remove_rows, options)


class TableUpkeep(_Background):
    """Compacts the columnar tables, and removes their old days."""

    def __init__(self, options: CollectorOptions) -> None:
        """Begin idle. Raises UsageError and MissingExtraError."""
        super().__init__()
        self._compactor: Compactor | None = None
        self._expiry: TableExpiry | None = None
        if options.parquet.url is not None:
            from ...core.columns.compaction import Compactor  # noqa: PLC0415 - imports pyarrow
            from ...core.columns.expiry import TableExpiry  # noqa: PLC0415
            from ...core.columns.places import open_tables  # noqa: PLC0415

            store = open_tables(tables_place(options.parquet))
            self._compactor = Compactor(store, options.parquet.compact_bytes)
            self._expiry = TableExpiry(store)

    def start(self, options: ParquetOptions, *, is_clock_trusted: bool) -> None:
        """Begin, unless it is running or there are no tables."""
        if self._compactor is not None and not self.is_running:
            self._begin(self._run, options, is_clock_trusted)

    def _run(self, options: ParquetOptions, is_clock_trusted: bool) -> None:
        if self._expiry is not None and options.retention_days is not None and is_clock_trusted:
            with _logged("retention"):
                remove(self._expiry, options, _before_ns(options), "parquet")
        if self._compactor is not None:
            with _logged("compaction"):
                merged = self._compactor.run()
                if merged:
                    logger.info("merged %d groups of the columnar tables", merged)


@contextlib.contextmanager
def _logged(cause: str) -> Iterator[None]:
    try:
        yield
    except (CirronOtelError, OSError) as error:
        logger.warning("%s", error, extra={"cause": cause})


def _before_ns(options: RetentionOptions) -> int:
    assert options.retention_days is not None  # noqa: S101 - callers check it
    return time.time_ns() - int(options.retention_days * DAY_NS)


def _remove_rows(options: StorageOptions) -> None:
    from ...core.targets.sql.store import open_store  # noqa: PLC0415 - only if it is used

    assert options.url is not None  # noqa: S101 - start() checks it
    with _logged("retention"), open_store(options.url.reveal()) as storage:
        remove(storage, options, _before_ns(options))


def remove(
    storage: Expirable, options: RetentionOptions, before_ns: int, section: str = "storage"
) -> None:
    """Remove the batches that date from before `before_ns` (Unix ns), unless there are too many.

    `section` is the part of the configuration that has the options.

    There are too many if their share of all batches exceeds `options.retention_share`. Batches from
    before `options.retention_confirmed` are removed in any case. Raises CirronOtelError if the
    database fails.
    """
    if options.retention_confirmed is not None:
        _retain(storage, min(before_ns, int(options.retention_confirmed.timestamp() * 10**9)))
    old, batches = storage.expired(before_ns)
    if old <= options.retention_share * batches:
        _retain(storage, before_ns)
        return
    before = datetime.fromtimestamp(before_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")
    logger.warning(
        "%d of %d batches in the %s are from before %s: %s.retention_days would remove"
        " more than %s.retention_share (%g) of them at once. No batch is removed until this is"
        " confirmed: check the clock of this machine, then set %s.retention_confirmed to %s"
        " and reload",
        old,
        batches,
        "database" if section == "storage" else "columnar tables",
        before,
        section,
        section,
        options.retention_share,
        section,
        before,
        extra={"cause": f"retention share {section}"},
    )


def _retain(storage: Expirable, before_ns: int) -> None:
    removed = storage.retain(before_ns)
    if removed.batches:
        logger.info("removed %d expired batches", removed.batches)
