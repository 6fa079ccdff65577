"""The removal of expired batches from the database, unless too many would be removed at once."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ...core.durations import DAY_NS
from ...errors import CirronOtelError

if TYPE_CHECKING:
    from ...core.targets.sql.store import BatchStore
    from .options import StorageOptions as Options

logger = logging.getLogger(__name__)


class Retention:
    """Removes old rows on a separate thread, one removal at a time."""

    def __init__(self) -> None:
        """Begin idle; `start` begins a removal."""
        self._thread: threading.Thread | None = None

    def start(self, options: Options) -> None:
        """Begin a removal if one is configured and no other is running.

        The caller has verified that the clock can be trusted.
        """
        if options.url is None or options.retention_days is None or self.is_running:
            return
        before_ns = time.time_ns() - int(options.retention_days * DAY_NS)
        self._thread = threading.Thread(target=_run, args=(options, before_ns), daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether a removal is running."""
        return self._thread is not None and self._thread.is_alive()


def _run(options: Options, before_ns: int) -> None:
    from ...core.targets.sql.store import open_store  # noqa: PLC0415 - only if it is used

    assert options.url is not None  # noqa: S101 - start() checks it
    try:
        with open_store(options.url.reveal()) as storage:
            remove(storage, options, before_ns)
    except CirronOtelError as error:
        logger.warning("%s", error, extra={"cause": "retention"})


def remove(storage: BatchStore, options: Options, before_ns: int) -> None:
    """Remove the batches that date from before `before_ns` (Unix ns), unless there are too many.

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
        "%d of %d batches in the database are from before %s: storage.retention_days would remove"
        " more than storage.retention_share (%g) of them at once. No batch is removed until this is"
        " confirmed: check the clock of this machine, then set storage.retention_confirmed to %s"
        " and reload",
        old,
        batches,
        before,
        options.retention_share,
        before,
        extra={"cause": "retention share"},
    )


def _retain(storage: BatchStore, before_ns: int) -> None:
    removed = storage.retain(before_ns)
    if removed.batches:
        logger.info("removed %d expired batches", removed.batches)
