"""Tables in a bucket, which several processes may write at the same time, without a lock.

The names of groups are random, so no path is ever written twice, and a late request of a process
that was paused changes nothing that others wrote (docs/columns.md, "Several writers").
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from ...errors import InputError
from ..delivery.errors import UnreachableError
from ..targets.objects.place import parse_place
from ..targets.objects.s3 import S3BlobStore
from ..targets.objects.store import DifferentError, file_content
from .layout import UPKEEP, WRITING, BatchGroup, Partition, is_group_file, partition_at
from .ranged import RangedObject
from .schema import BATCHES, TABLES
from .store import EXPECTED, Fill

ABANDONED_AFTER = timedelta(days=1)
"""The age, by the server's clock, at which a file of a group that does not count is removed."""
WHOLE_BYTES = 256 << 20
"""The size up to which a file is sent in one request, so that an interrupted upload leaves nothing.

It is larger than any file with the default limits of writers and compactions."""
_LEASE = timedelta(minutes=15)


class BucketTables:
    """Stores files as objects. Implements TableStore."""

    has_paths = False

    def __init__(self, url: str) -> None:
        """Prepare the store, without sending a request.

        Raises UsageError, MissingExtraError and MisconfiguredError.
        """
        place = parse_place(url)
        self._objects = S3BlobStore(place, WHOLE_BYTES)
        self.shown = place.shown

    def check(self) -> None:
        """Raise InputError if the prefix has no tables."""
        if next(self._groups_below(BATCHES, ""), None) is None:
            raise InputError(f"{self.shown} has no table {BATCHES}: {EXPECTED}")

    def groups(
        self, table: str, partition: Partition | None = None, date: str | None = None
    ) -> Iterator[BatchGroup]:
        """Yield the groups that have an object in a table; other objects are ignored."""
        for group, _ in self._groups_below(table, "" if partition is None else partition.path):
            if date in (None, group.partition.date):
                yield group

    def _groups_below(self, table: str, path: str) -> Iterator[tuple[BatchGroup, datetime]]:
        for item in self._objects.list(f"{table}/{path}".rstrip("/")):
            folder, _, name = item.key.removeprefix(f"{table}/").rpartition("/")
            partition = partition_at(folder)
            if partition is not None and is_group_file(name):
                yield BatchGroup(partition, name), item.modified

    def source(self, table: str, group: BatchGroup, *, is_partial: bool = False) -> Any:
        """Open an object, or read it completely. Raises InputError if it does not exist."""
        try:
            if is_partial:
                return pa.PythonFile(RangedObject(self._objects, _key(table, group)), mode="r")
            data = b"".join(self._objects.get(_key(table, group)))
        except FileNotFoundError:
            raise InputError("No such object") from None
        return pa.BufferReader(data)

    def has(self, table: str, group: BatchGroup) -> bool:
        """Return whether a group has an object in a table."""
        return self._objects.head(_key(table, group)) is not None

    def write(self, table: str, group: BatchGroup, fill: Fill) -> int:
        """Write a temporary file and upload it; return its size in bytes."""
        with tempfile.TemporaryFile("w+b") as file:
            fill(file)
            size = file.tell()
            self._put(_key(table, group), file)
        return size

    def remove(self, table: str, group: BatchGroup) -> None:
        """Remove an object if it exists."""
        self._objects.delete(_key(table, group))

    @contextlib.contextmanager
    def lock(self, wait_s: float = 0.0) -> Iterator[None]:  # noqa: ARG002 - there is none
        """Do nothing: writers need no lock."""
        yield

    @contextlib.contextmanager
    def upkeep_lease(self) -> Iterator[bool]:
        """Create an object that others respect for a quarter of an hour.

        It saves work; compactions that overlap are safe.
        """
        key = f"{WRITING}/{UPKEEP}"
        for item in self._objects.list(WRITING):
            if item.key == key:
                if self._now() - item.modified < _LEASE:
                    yield False
                    return
                self._objects.delete(key)
        try:
            self._put_bytes(key, uuid.uuid4().bytes)
        except (DifferentError, UnreachableError):  # another process was faster
            yield False
            return
        try:
            yield True
        finally:
            self._objects.delete(key)

    def clean(self) -> None:
        """Remove what dead writers left a day ago, measured by the server's clock."""
        found = [
            (table, group, modified)
            for table in TABLES
            if table != BATCHES
            for group, modified in self._groups_below(table, "")
        ]
        counted = {group for group, _ in self._groups_below(BATCHES, "")}  # listed last
        doubtful = [each for each in found if each[1] not in counted]
        if doubtful:
            before = self._now() - ABANDONED_AFTER
            for table, group, modified in doubtful:
                if modified < before:
                    self.remove(table, group)

    def _now(self) -> datetime:
        """Return the time of the server."""
        key = f"{WRITING}/{uuid.uuid4().hex}"
        self._put_bytes(key, b"")
        try:
            [item] = [each for each in self._objects.list(WRITING) if each.key == key]
        finally:
            self._objects.delete(key)
        return item.modified

    def _put_bytes(self, key: str, data: bytes) -> None:
        with tempfile.TemporaryFile("w+b") as file:
            file.write(data)
            self._put(key, file)

    def _put(self, key: str, file: Any) -> None:
        file.flush()
        self._objects.put(key, file_content(file))


def _key(table: str, group: BatchGroup) -> str:
    return f"{table}/{group.path}"
