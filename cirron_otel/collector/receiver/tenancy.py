"""The tenant of each batch: the retained headers of the requests that it was made from.

The batch format has no field for these headers, so they are stored in `state/whose.sqlite`, keyed
by the batch's file name. A batch has no row if its requests had none of these headers. A batch
never contains data of two tenants, runs or workspaces.

If the file is damaged or was removed, the tenants of the batches in the spool are not known. Their
names are then in `state/tenants.held`, and they are not sent until an operator removes that file.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from ...core.atomic_files import replace_file
from ...core.delivery.errors import WithheldError
from ...errors import TargetError
from ...ids import digest
from .state_file import StateFile

logger = logging.getLogger(__name__)

FILE_NAME: Final = "whose.sqlite"
HELD_NAME: Final = "tenants.held"
"""The file with the names of the batches whose tenant is not known, one per line."""
_USED_NAME: Final = "tenants.used"
"""An empty file that exists as soon as any batch has had a tenant."""
_LOSS: Final = "the batches in the spool are not sent, because their tenants are not known"
HELD: Final = "held"
"""The lane of batches whose tenant is not known, and the status of their error."""
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


class UnknownTenantError(WithheldError):
    """A batch must not be sent, because its tenant is not known any more."""

    def __init__(self, name: str, held: Path) -> None:
        """`held` is the file that lists the batch."""
        super().__init__(
            f"{name} is not sent, because its tenant is not known: {FILE_NAME} was damaged or"
            f" removed. To send all batches that {held} lists without a tenant, stop the collector,"
            " remove this file, and start the collector again",
            status=HELD,
        )


class TenantStore:
    """The headers of batches, in a file; for all threads of one process."""

    def __init__(self, path: Path, names: Callable[[], Iterable[str]] = tuple) -> None:
        """Open the file. Raises TargetError if it cannot be used.

        `names` returns the batches in the spool. If a damaged file is found or the file is missing,
        their tenants are not known, and `of` raises UnknownTenantError for them.
        """
        self._names = names
        self._held_path, self._used_path = path.with_name(HELD_NAME), path.with_name(_USED_NAME)
        self._last = ""
        """The batch that was claimed last: it may not be in the spool yet."""
        self._is_used = self._used_path.exists()
        self._held = frozenset(_lines(self._held_path))
        if self._is_used and not path.exists():
            logger.error("%s was removed; %s", path, _LOSS, extra={"cause": "tenants"})
            self._hold()
        self._file = StateFile(path, _SCHEMA, _LOSS, self._hold)
        self._is_empty = not self._file.read("SELECT 1 FROM whose LIMIT 1")
        if not self._is_empty:
            self._use()

    def _use(self) -> None:
        """Record permanently that batches have tenants."""
        if not self._is_used:
            _replace(self._used_path, b"")
            self._is_used = True

    def _hold(self) -> None:
        """Hold the batches in the spool, because their tenants are not known any more."""
        if self._is_used:
            self._set_held(self._held | {name for name in (*self._names(), self._last) if name})

    def _set_held(self, held: frozenset[str]) -> None:
        self._held = held
        if held:
            _replace(self._held_path, "".join(f"{name}\n" for name in sorted(held)).encode())
        else:
            self._held_path.unlink(missing_ok=True)

    def is_held(self, name: str) -> bool:
        """Return whether a batch must not be sent, because its tenant is not known."""
        return name in self._held

    def check(self, name: str) -> None:
        """Raise UnknownTenantError if the tenant of a batch is not known."""
        if name in self._held:
            raise UnknownTenantError(name, self._held_path)

    def claim(self, name: str, headers: TenantHeaders, *, is_there: bool) -> bool:
        """Record permanently that the batch that will be written as `name` has these headers.

        Returns False if a batch of that name already exists (`is_there`) with other headers.
        Raises TargetError.
        """
        if is_there and name in self._held:
            return False
        if self._is_empty and not headers:
            return True
        if is_there:
            return self.of(name) == headers
        self._last = name
        if headers:
            self._use()
            self._is_empty = False
            row = (name, json.dumps(headers))
            self._file.write(("REPLACE INTO whose VALUES (?, ?)", [row]))
        else:
            self._file.write(("DELETE FROM whose WHERE name = ?", [(name,)]))
        return True

    def of(self, name: str) -> TenantHeaders:
        """Return the headers of a batch.

        Raises TargetError if the file cannot be read, and UnknownTenantError if they are not known.
        """
        self.check(name)
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
        if self._is_empty and not self._held:
            return
        present = set(names)
        try:
            if not self._held <= present:
                self._set_held(self._held & present)
            rows = self._file.read("SELECT name FROM whose")
            absent = [row for row in rows if row[0] not in present]
            self._file.write(("DELETE FROM whose WHERE name = ?", absent))
        except TargetError as error:
            logger.warning("%s", error)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().split()
    return []


def _replace(path: Path, data: bytes) -> None:
    try:
        replace_file(path, data)
    except OSError as error:
        raise TargetError(f"{path} cannot be written: {error.strerror or error}") from None
