"""The owners of snapshots, and the rows with the URIs of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ... import exactjson
from ...core.delivery.errors import MisconfiguredError, RefusedError, UnreachableError
from ...core.targets.sql.database import quoted
from ...core.targets.sql.keys import bounded
from ...core.targets.sql.ownership import Context, Owners
from ...core.targets.sql.rows import COLUMNS, SNAPSHOT, hash_of, readdressed, record_of, stored_name
from ...core.targets.sql.storage import Storage
from ...errors import TargetError, UsageError
from ...ids import is_id
from ..receiver.tenancy import TenantHeaders
from .owned_rows import context_of

if TYPE_CHECKING:
    from ...core.targets.sql.database import Database

_EXTRA, _URI = "extra", "blobUri"


class SnapshotRows:
    """Blob.uploader's `Rows` and `Whose`, in a storage; for one thread. Without one, no rows."""

    def __init__(
        self, url: str | None, context: Context, headers_of: Callable[[str], TenantHeaders]
    ) -> None:
        """Connect at the first use. `headers_of` is that of OwnedRows."""
        self._url, self._headers_of = url, headers_of
        self.context = context
        """The context of records without their own; it may be replaced at any time."""
        self._storage: Storage | None = None

    # --- whose ----------------------------------------------------------------------------------

    def whose(
        self, name: str, batch: Mapping[str, Any]
    ) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
        """See Whose: the workspace and run of the batch; without a run, the session, as far as
        the batch names it or the span leads there; else the span itself.
        """
        owner = Owners(batch, context_of(self._headers_of(name), self.context)).whole
        otel = batch.get("otel")
        session = otel.get("session") if isinstance(otel, dict) else None
        run = owner.run_id or (session if is_id(session) else None)
        if run is not None:
            return lambda _: (owner.workspace_id, run)
        parents = _parents(batch)

        def of(record: Mapping[str, Any]) -> tuple[str, str]:
            span_id = record.get("span_id")
            if not isinstance(span_id, str):
                return owner.workspace_id, "none"
            if span_id in parents:
                return owner.workspace_id, _top(span_id, parents)
            return owner.workspace_id, self._stored_run(owner.workspace_id, span_id) or span_id

        return of

    def _stored_run(self, workspace_id: str, span_id: str) -> str | None:
        if self._url is None:
            return None
        statement = (
            'SELECT "runId" FROM "TraceSpan" WHERE "id" = ? AND "workspaceId" = ?'
            ' ORDER BY "batchKey", "ordinal" LIMIT 1'
        )
        keys = bounded(span_id), bounded(workspace_id)
        rows = self._with(lambda database: database.rows(statement, *keys))
        return str(rows[0][0]) if rows and rows[0][0] else None

    # --- rows -----------------------------------------------------------------------------------

    def readdress(self, batch: str, data: bytes | None, uris: Mapping[int, str]) -> bool:
        """See Rows."""
        return bool(self._with(lambda database: _readdress(database, batch, data, uris)))

    def _with(self, what: Callable[[Database], Any]) -> Any:
        try:
            if self._storage is None:
                self._storage = Storage.open(self._url or "")
            return what(self._storage.database)
        except UsageError as error:  # found out by the driver, or no driver
            raise MisconfiguredError(str(error)) from None
        except UnreachableError:
            self.close()
            raise
        except TargetError as error:
            raise RefusedError(str(error)) from None

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.close()


def _readdress(database: Database, batch: str, data: bytes | None, uris: Mapping[int, str]) -> bool:
    with database.transaction():
        key = _key_of(database, batch, data)
        if key is None:
            return False
        columns = COLUMNS[SNAPSHOT]
        for number, uri in uris.items():
            found = database.rows(
                f'SELECT {quoted(columns)} FROM "{SNAPSHOT}"'  # noqa: S608
                ' WHERE "batchKey" = ? AND "ordinal" = ?',
                key,
                number,
            )
            for values in found:
                row = record_of(SNAPSHOT, values)
                readdressed(row, {"blob_uri": _recorded(row)}, uri)
                database.run(
                    f'UPDATE "{SNAPSHOT}" SET "{_URI}" = ?, "{_EXTRA}" = ?'  # noqa: S608
                    ' WHERE "batchKey" = ? AND "ordinal" = ?',
                    row.blob_uri,
                    row.extra,
                    key,
                    number,
                )
    return True


def _key_of(database: Database, batch: str, data: bytes | None) -> int | None:
    """Return the key of a stored batch: the one with these bytes, else the only one of its name."""
    found = database.rows(
        'SELECT "batchKey", "hash" FROM "TraceBatch" WHERE "name" = ?', stored_name(batch)
    )
    exact = [key for key, hash_ in found if data is not None and bytes(hash_) == hash_of(data)]
    if exact:
        return int(exact[0])
    return int(found[0][0]) if len(found) == 1 else None


def _recorded(row: Any) -> Any:
    """Return the recorded `blob_uri`, which is in `extra` once the column has another value."""
    rest = exactjson.loads(row.extra) if row.extra else {}
    kept = rest.get("set", {}) if isinstance(rest, dict) else {}
    return kept.get("blob_uri", row.blob_uri)


def _parents(batch: Mapping[str, Any]) -> dict[str, str | None]:
    spans = batch.get("spans")
    return {
        span["id"]: span.get("parent_id") if isinstance(span.get("parent_id"), str) else None
        for span in (spans if isinstance(spans, list) else [])
        if isinstance(span, dict) and isinstance(span.get("id"), str)
    }


def _top(span_id: str, parents: Mapping[str, str | None]) -> str:
    seen = {span_id}
    while (above := parents.get(span_id)) is not None and above not in seen:
        seen.add(above)
        span_id = above
    return span_id
