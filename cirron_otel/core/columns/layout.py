"""The directories and the names of the files of the tables (docs/columns.md, "Layout")."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from ..durations import SECOND_NS

SUFFIX = ".parquet"
WRITING = "_writing"
"""The directory of files that are being written, and of locks."""
LOCK = "lock"
UPKEEP = "upkeep"
"""The lease of the process that compacts."""
RUN_PREFIX = "run="
"""The beginning of the name of a run's directory."""
NO_RUN = "__HIVE_DEFAULT_PARTITION__"
"""Engines read it as null."""
NO_DATE = "1970-01-01"
"""Not null, because some engines cannot read a date that is null."""
_GROUP = re.compile(r"(\d{20})-([0-9a-f]{32})\.parquet", re.ASCII)
_PARTITION = re.compile(r"run=([^/=]+)/date=([^/=]+)", re.ASCII)
_MAX_NAME = 200
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


class Partition(NamedTuple):
    """A partition: the rows of one run and day, by the names of the directories."""

    run: str = NO_RUN
    date: str = NO_DATE

    @property
    def path(self) -> str:
        """The path below the directory of a table."""
        return f"{RUN_PREFIX}{self.run}/date={self.date}"

    def is_of(self, run_id: str) -> bool:
        """Return whether all rows of the partition are of a run."""
        return self.run == _directory_of(run_id)

    def may_have(self, run_id: str) -> bool:
        """Return whether rows of a run may be in the partition."""
        return self.run == NO_RUN or self.is_of(run_id)


class BatchGroup(NamedTuple):
    """A group of batches, with one file in each table."""

    partition: Partition
    file: str

    @property
    def path(self) -> str:
        """The path of its file below the directory of a table."""
        return f"{self.partition.path}/{self.file}"

    @property
    def order(self) -> tuple[str, str]:
        """The key that orders groups by time."""
        return self.file, self.partition.path


def partition_of(run_id: str | None, created_ns: int | None) -> Partition:
    """Return the partition of a batch; `created_ns` is None if it has no valid time."""
    date = NO_DATE
    if created_ns is not None:
        date = datetime.fromtimestamp(created_ns // SECOND_NS, UTC).strftime("%Y-%m-%d")
    return Partition(_directory_of(run_id) if run_id else NO_RUN, date)


def partition_at(path: str) -> Partition | None:
    """Return the partition of a path; None if it is not one."""
    match = _PARTITION.fullmatch(path)
    return None if match is None else Partition(match[1], match[2])


def is_group_file(name: str) -> bool:
    """Return whether a file has the name of a group's file."""
    return _GROUP.fullmatch(name) is not None


def new_group(partition: Partition, created_ns: Iterable[int]) -> BatchGroup:
    """Return a group for batches with these times, whose name no other group has or will have."""
    return BatchGroup(partition, f"{min(created_ns, default=0):020d}-{uuid.uuid4().hex}{SUFFIX}")


EMPTY_GROUP = BatchGroup(Partition(), f"{0:020d}-{hashlib.sha256().hexdigest()[:32]}{SUFFIX}")
"""The group without batches, whose files have the columns of all tables."""


def _directory_of(run_id: str) -> str:
    """Return the name of a run's directory, after `run=`."""
    data = run_id.encode("utf-8", "replace")  # an argument may have halves of surrogate pairs
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
    return name if len(name) <= _MAX_NAME else f"sha256-{hashlib.sha256(data).hexdigest()}"
