"""Set the URIs of snapshot files in stored rows, and find the run of a stored span."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .... import exactjson
from ...records.columns import column_of_name
from .database import Database, quoted
from .keys import bounded
from .rows import COLUMNS, SNAPSHOT, hash_of, record_of, replace_blob_uri


def run_of_span(database: Database, workspace_id: str, span_id: str) -> str | None:
    """Return the id of a stored span's run; None if the span is not stored."""
    rows = database.rows(
        'SELECT "runId" FROM "TraceSpan" WHERE "id" = ? AND "workspaceId" = ?'
        ' ORDER BY "batchKey", "ordinal" LIMIT 1',
        bounded(span_id),
        bounded(workspace_id),
    )
    return str(rows[0][0]) if rows and rows[0][0] else None


def set_blob_uris(
    database: Database, name: str, data: bytes | None, uris: Mapping[int, str]
) -> bool:
    """Set the URIs of a batch's snapshots, given by index.

    Returns False if the batch is not stored.
    """
    with database.transaction():
        key = _key_of(database, name, data)
        if key is None:
            return False
        columns = COLUMNS[SNAPSHOT]
        for number, uri in uris.items():
            stored = database.rows(
                f'SELECT {quoted(columns)} FROM "{SNAPSHOT}"'  # noqa: S608
                ' WHERE "batchKey" = ? AND "ordinal" = ?',
                key,
                number,
            )
            for values in stored:
                row = record_of(SNAPSHOT, values)
                replace_blob_uri(row, {"blob_uri": _recorded(row)}, uri)
                database.run(
                    f'UPDATE "{SNAPSHOT}" SET "blobUri" = ?, "extra" = ?'  # noqa: S608
                    ' WHERE "batchKey" = ? AND "ordinal" = ?',
                    row.blob_uri,
                    row.extra,
                    key,
                    number,
                )
    return True


def _key_of(database: Database, name: str, data: bytes | None) -> int | None:
    """Return the key of the batch with this name and content, or of the only one with this name."""
    stored = database.rows(
        f'SELECT "batchKey", "hash" FROM "{database.names}" WHERE "name" = ?',  # noqa: S608
        column_of_name(name),
    )
    exact = [key for key, hash_ in stored if data is not None and bytes(hash_) == hash_of(data)]
    if exact:
        return int(exact[0])
    return int(stored[0][0]) if len(stored) == 1 else None


def _recorded(row: Any) -> Any:
    """Return the recorded `blob_uri`, which `extra` contains if the column has changed."""
    residual = exactjson.loads(row.extra) if row.extra else {}
    fields = residual.get("set", {}) if isinstance(residual, dict) else {}
    return fields.get("blob_uri", row.blob_uri)
