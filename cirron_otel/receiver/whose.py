"""Whose batches are: the headers that came with what is in them, beside the spool.

A batch has no room for them: its file stays as other programs know it. They stand in
`state/whose.sqlite`, by the batch's file name; a batch whose requests said nothing is not there.
What is of two tenants, runs or workspaces is never in one batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ..errors import TargetError
from ..ids import digest
from .state_file import StateFile

logger = logging.getLogger(__name__)

FILE_NAME: Final = "whose.sqlite"
_OF_ONE_BATCH: Final = frozenset(("x-cirron-batch-id", "x-cirron-sdk-version"))
"""Headers that tell requests apart, and not whose they are."""
_SCHEMA = "CREATE TABLE IF NOT EXISTS whose (name TEXT PRIMARY KEY, headers TEXT) WITHOUT ROWID"

_OF_TENANTS: Final = frozenset(("x-scope-orgid", "x-cirron-workspace-id"))
"""Headers that name a tenant. Tenants that differ in one of them have separate snapshot files."""
_TENANT_BYTES = 8

TenantHeaders = tuple[tuple[str, str], ...]
"""(lower-case name, value), sorted."""


def tenant_of(headers: TenantHeaders) -> str:
    """Return an id of the tenant in `headers`, 16 hexadecimal digits; "" if they name no tenant."""
    words = [word for name, value in headers if name in _OF_TENANTS for word in (name, value)]
    return digest("tenant", *words)[:_TENANT_BYTES].hex() if words else ""


def tenant_headers(headers: Mapping[str, str]) -> TenantHeaders:
    """What the headers that were kept with a request say of whose it is."""
    if not headers:
        return ()
    return tuple(sorted((k, v) for k, v in headers.items() if k not in _OF_ONE_BATCH))


class TenantStore:
    """The headers of batches, in a file; for the threads of one process."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises TargetError where the file cannot be used.

        One that is damaged is set aside, and reported: its batches go on as nobody's.
        """
        self._file = StateFile(path, _SCHEMA, "the batches in the spool go on as nobody's")
        self._is_empty = not self._file.read("SELECT 1 FROM whose LIMIT 1")

    def claim(self, name: str, headers: TenantHeaders, *, is_there: bool) -> bool:
        """Say whose the batch is that is to be written under `name`, for good.

        False where a batch of that name `is_there` and is somebody else's. Raises TargetError.
        """
        if self._is_empty and not headers:
            return True
        if is_there:
            return self.of(name) == headers
        if headers:
            self._is_empty = False
            row = (name, json.dumps(headers))
            self._file.write(("REPLACE INTO whose VALUES (?, ?)", [row]))
        else:
            self._file.write(("DELETE FROM whose WHERE name = ?", [(name,)]))
        return True

    def of(self, name: str) -> TenantHeaders:
        """The headers of a batch. Raises TargetError where that cannot be read."""
        if self._is_empty:
            return ()
        rows = self._file.read("SELECT headers FROM whose WHERE name = ?", (name,))
        return tuple((key, value) for row in rows for key, value in json.loads(row[0]))

    def tenants(self) -> dict[str, TenantHeaders]:
        """Return the headers of each known tenant, by its id (`tenant_of`). Raises TargetError."""
        rows = [] if self._is_empty else self._file.read("SELECT DISTINCT headers FROM whose")
        found = (tuple((key, value) for key, value in json.loads(row[0])) for row in rows)
        return {tenant_of(headers): headers for headers in found}

    def retain(self, names: Iterable[str]) -> None:
        """Forget the batches that are none of these: they are not in the spool any more."""
        if self._is_empty:
            return
        present = set(names)
        try:
            rows = self._file.read("SELECT name FROM whose")
            gone = [row for row in rows if row[0] not in present]
            self._file.write(("DELETE FROM whose WHERE name = ?", gone))
        except TargetError as error:
            logger.warning("%s", error)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
