"""Uploads snapshot files from the spool to the store configured as `blobs.url`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.delivery.blobs import local_blobs
from ...core.spool.blobs import BlobKey, tenant_key
from ...core.spool.paths import SpoolPaths, batch_names
from ...core.spool.state import make_state
from ...core.targets.objects import open_store
from ...core.targets.objects.pending import PendingUploads
from ...core.targets.objects.target import BlobTarget
from ...core.targets.objects.uploader import Uploader
from ...ids import digest
from ..receiver.tenancy import tenant_of

if TYPE_CHECKING:
    from ..receiver.tenancy import TenantHeaders


class BlobSender:
    """A store, its pending uploads, and the upload thread."""

    def __init__(
        self,
        url: str,
        storage: str | None,
        context: Any,
        headers_of: Callable[[str], TenantHeaders],
        statement_s: float | None = None,
    ) -> None:
        """`storage` is the URL of the database whose rows receive the URIs of tensors.

        Raises UsageError, and MissingExtraError if a library is missing.
        """
        from .owned_rows import SnapshotRows  # noqa: PLC0415 - only if it is used

        self._store, self._storage = open_store(url), storage
        self._headers_of = headers_of
        self._rows = SnapshotRows(storage, context, headers_of, statement_s)

    def start(self, paths: SpoolPaths) -> BlobTarget:
        """Start the thread and return the delivery target. Raises TargetError."""
        from ...core.targets.sql.url import parse_url  # noqa: PLC0415 - only if it is used

        place, url = self._store.place, self._storage
        # The key includes the database: the rows of another database would also need the objects'
        # URIs.
        key = digest("uploads", place.key, "" if url is None else parse_url(url).key)[:8].hex()
        make_state(paths.state)
        self._pending = PendingUploads(paths.state / f"uploads-{key}.sqlite", time.monotonic)
        if self._pending.was_damaged:
            self._pending.add(_named(paths))
        rows = None if url is None else self._rows
        self._uploader = Uploader(
            paths, self._pending, self._store, self._rows.owners_of, rows, self._file_of
        )
        self._uploader.start()
        return BlobTarget(self._pending, place, f"uploads {key}", self._uploader.wake)

    def _file_of(self, batch: str, key: BlobKey) -> BlobKey:
        return tenant_key(key, tenant_of(self._headers_of(batch)))

    def finish(self, timeout: float) -> None:
        """Upload the remaining files, for at most `timeout` seconds."""
        self._uploader.finish(timeout)

    def undelivered(self) -> int:
        """Count the received snapshot files that are not in the store yet."""
        return self._uploader.undelivered()

    def set_context(self, context: Any) -> None:
        """Set the owner of subsequent snapshots that do not specify one."""
        self._rows.context = context

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the uploads."""
        return self._uploader.stats()


def _named(paths: SpoolPaths) -> Any:
    """Yield (batch, snapshot files) for each batch in the spool."""
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(batch_names(paths.spool)):
            with contextlib.suppress(OSError):
                yield name, local_blobs((paths.spool / name).read_bytes())
