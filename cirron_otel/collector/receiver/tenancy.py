"""The tenant of each batch: the retained headers of the requests that it was made from.

The batch format has no field for these headers, so they are stored in `state/whose.sqlite`, keyed
by the batch's file name. A batch has no row if its requests had none of these headers. A batch
never contains data of two tenants, runs or workspaces.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ...errors import TargetError
from ...ids import digest
from .state_file import StateFile

logger = logging.getLogger(__name__)

FILE_NAME: Final = "whose.sqlite"
_OF_ONE_BATCH: Final = frozenset(("x-cirron-batch-id", "x-cirron-sdk-version"))
"""Headers that may differ between requests of the same tenant."""
_SCHEMA = "CREATE TABLE IF NOT EXISTS whose (name TEXT PRIMARY KEY, headers TEXT) WITHOUT ROWID"

_OF_TENANTS: Final = frozenset(("x-scope-orgid", "x-cirron-workspace-id"))
"""Headers that identify a tenant. Tenants that differ in one of these headers have separate
snapshot files."""
_TENANT_BYTES = 8

TenantHeaders = tuple[tuple[str, str], ...]
"""Sorted pairs of lower-case name and value."""


def tenant_of(headers: TenantHeaders) -> str:
    """Return the id of the tenant in `headers`, 16 hexadecimal digits; "" if they name no
    tenant.
    """
    words = [word for name, value in headers if name in _OF_TENANTS for word in (name, value)]
    return digest("tenant", *words)[:_TENANT_BYTES].hex() if words else ""


def tenant_headers(headers: Mapping[str, str]) -> TenantHeaders:
    """Return the retained headers of a request that identify its tenant and run."""
    if not headers:
        return ()
    return tuple(sorted((k, v) for k, v in headers.items() if k not in _OF_ONE_BATCH))


class TenantStore:
    """The headers of batches, in a file; for all threads of one process."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises TargetError if it cannot be used.

        A damaged file is reported and renamed; its batches are then sent without a tenant.
        """
        self._file = StateFile(path, _SCHEMA, "the batches in the spool no longer have a tenant")
        self._is_empty = not self._file.read("SELECT 1 FROM whose LIMIT 1")

    def claim(self, name: str, headers: TenantHeaders, *, is_there: bool) -> bool:
        """Record permanently that the batch that will be written as `name` has these headers.

        Returns False if a batch of that name already exists (`is_there`) with other headers.
        Raises TargetError.
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
        """Return the headers of a batch. Raises TargetError if the file cannot be read."""
        if self._is_empty:
            return ()
        rows = self._file.read("SELECT headers FROM whose WHERE name = ?", (name,))
        return tuple((key, value) for row in rows for key, value in json.loads(row[0]))

    def tenants(self) -> dict[str, TenantHeaders]:
        """Return the headers of each known tenant, by its id (`tenant_of`). Raises TargetError."""
        rows = [] if self._is_empty else self._file.read("SELECT DISTINCT headers FROM whose")
        all_headers = (tuple((key, value) for key, value in json.loads(row[0])) for row in rows)
        return {tenant_of(headers): headers for headers in all_headers}

    def retain(self, names: Iterable[str]) -> None:
        """Remove the headers of all batches except `names`: the other batches are no longer in the
        spool.
        """
        if self._is_empty:
            return
        present = set(names)
        try:
            rows = self._file.read("SELECT name FROM whose")
            absent = [row for row in rows if row[0] not in present]
            self._file.write(("DELETE FROM whose WHERE name = ?", absent))
        except TargetError as error:
            logger.warning("%s", error)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
