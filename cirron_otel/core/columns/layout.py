"""The directories and the names of the files of the tables (docs/columns.md, "Layout")."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from ..durations import SECOND_NS

SUFFIX = ".parquet"
WRITING = "_writing"
"""The directory of files that are being written, and of the lock."""
LOCK = "lock"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_GROUP = re.compile(r"(\d{20})-([0-9a-f]{32})\.parquet", re.ASCII)
_PARTITION = re.compile(r"run=([^/=]+)/date=([^/=]+)", re.ASCII)
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


class Partition(NamedTuple):
    """A partition: the rows of one run and day."""

    run_id: str | None
    date: str | None
    """YYYY-MM-DD in UTC."""

    @property
    def path(self) -> str:
        """The path below the directory of a table."""
        run = NO_VALUE if self.run_id is None else _escaped(self.run_id)
        return f"run={run}/date={self.date or NO_VALUE}"


class Group(NamedTuple):
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
    date = None
    if created_ns is not None:
        date = datetime.fromtimestamp(created_ns // SECOND_NS, UTC).strftime("%Y-%m-%d")
    return Partition(run_id or None, date)


def partition_at(path: str) -> Partition | None:
    """Return the partition of a path; None if it is not one."""
    match = _PARTITION.fullmatch(path)
    if match is None:
        return None
    run, date = (None if value == NO_VALUE else value for value in match.groups())
    if run is not None:
        run = unquote_to_bytes(run).decode("utf-8", "replace")
    return Partition(run, date)


def is_group_file(name: str) -> bool:
    """Return whether a file has the name of a group's file."""
    return _GROUP.fullmatch(name) is not None


def group_of(partition: Partition, keys: Iterable[str], created_ns: Iterable[int]) -> Group:
    """Return the group of batches with these keys and times."""
    digest = hashlib.sha256("".join(f"{key}\n" for key in keys).encode()).hexdigest()
    return Group(partition, f"{min(created_ns, default=0):020d}-{digest[:32]}{SUFFIX}")


EMPTY_GROUP = group_of(Partition(None, None), (), ())
"""The group without batches, whose files have the columns of all tables."""


def _escaped(value: str) -> str:
    """Return `value` as the name of a directory.

    Names are case-sensitive, except on some file systems; `run_id` decides there as everywhere.
    """
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in value.encode())
