"""The files of the tables in a directory or in a bucket (docs/columns.md, "Layout")."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Protocol

from .layout import BatchGroup, Partition

EXPECTED = "expected tables that `cirron-otel convert SRC parquet:DST` wrote"

Fill = Callable[[BinaryIO], None]
"""Writes the content of a file."""


class TableStore(Protocol):
    """Stores the files of groups, each completely or not at all.

    Methods raise InputError if files cannot be read, OSError if they cannot be written, and an
    EndpointError if a server does not respond or refuses.
    """

    shown: str
    """The location, without secrets."""
    has_paths: bool
    """Whether `source` returns paths of files."""

    def check(self) -> None:
        """Raise InputError if the location has no tables."""

    def groups(
        self, table: str, partition: Partition | None = None, date: str | None = None
    ) -> Iterator[BatchGroup]:
        """Yield the groups that have a file in a table, or in one partition or day of it."""

    def source(self, table: str, group: BatchGroup, *, is_partial: bool = False) -> Any:
        """Return a path or an open file, which `parquet_files.read_table` reads.

        `is_partial` means that not all of the file will be read.
        """

    def has(self, table: str, group: BatchGroup) -> bool:
        """Return whether a group has a file in a table."""

    def write(self, table: str, group: BatchGroup, fill: Fill) -> int:
        """Write a file, which is durable and visible when this returns; return its size in bytes.

        A file that exists is left unchanged.
        """

    def remove(self, table: str, group: BatchGroup) -> None:
        """Remove a file if it exists."""

    def lock(self, wait_s: float = 0.0) -> AbstractContextManager[None]:
        """Exclude other writers, if the location allows only one.

        Raises TargetError if there is another one, and it has not ended within `wait_s` seconds.
        """

    def upkeep_lease(self) -> AbstractContextManager[bool]:
        """Return whether this process may compact now; others are asked not to."""

    def clean(self) -> None:
        """Remove what dead writers left: files of groups that do not count."""
