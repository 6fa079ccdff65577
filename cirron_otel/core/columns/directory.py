"""Tables in a directory, which one process at a time writes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError, TargetError
from ..atomic_files import replacing_file
from ..spool.directories import make_private
from ..spool.state import lock_named
from .layout import (
    LOCK,
    RUN_PREFIX,
    UPKEEP,
    WRITING,
    BatchGroup,
    Partition,
    is_group_file,
    partition_at,
)
from .schema import BATCHES, TABLES
from .store import EXPECTED, Fill

_POLL_S = 0.05


class DirectoryTables:
    """Stores files with mode 0600. Implements TableStore."""

    has_paths = True

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """The directory need not exist."""
        self.root = Path(directory)
        self.shown = str(directory)

    def check(self) -> None:
        """Raise InputError if the directory has no tables."""
        try:
            if not self.root.is_dir():
                problem = "is not a directory" if self.root.exists() else "does not exist"
                raise InputError(f"{self.shown} {problem}: {EXPECTED}")
            if not (self.root / BATCHES).is_dir():
                raise InputError(f"{self.shown} has no table {BATCHES}: {EXPECTED}")
        except OSError as error:
            raise _unreadable(self.root, error) from None

    def groups(
        self, table: str, partition: Partition | None = None, date: str | None = None
    ) -> Iterator[BatchGroup]:
        """Yield the groups that have a file in a table; other files are ignored."""
        if partition is not None:
            yield from self._groups_in(table, partition)
            return
        for found in self._partitions(self.root / table):
            if date in (None, found.date):
                yield from self._groups_in(table, found)

    def _groups_in(self, table: str, partition: Partition) -> list[BatchGroup]:
        names = sorted(filter(is_group_file, _names_in(self.root / table / partition.path)))
        return [BatchGroup(partition, name) for name in names]

    def _partitions(self, table: Path) -> Iterator[Partition]:
        """Yield the partitions of a table; other directories are not read.

        A partition that another process removes meanwhile has no groups.
        """
        if table.exists() and not table.is_dir():
            raise InputError(f"{table} cannot be read: Not a directory")
        for run in _names_in(table):
            if run.startswith(RUN_PREFIX):
                for date in _names_in(table / run):
                    found = partition_at(f"{run}/{date}")
                    if found is not None:
                        yield found

    def source(self, table: str, group: BatchGroup, *, is_partial: bool = False) -> str:  # noqa: ARG002
        """Return the path of a file."""
        return str(self._path(table, group))

    def has(self, table: str, group: BatchGroup) -> bool:
        """Return whether a group has a file in a table."""
        return self._path(table, group).exists()

    def write(self, table: str, group: BatchGroup, fill: Fill) -> int:
        """Write a temporary file, sync and rename it; return its size in bytes."""
        path = self._path(table, group)
        make_private(path.parent)
        tmp = self.root / WRITING / f"{table}-{group.file}"
        with replacing_file(path, tmp) as descriptor, open(descriptor, "wb", closefd=False) as file:
            fill(file)
            return file.tell()

    def remove(self, table: str, group: BatchGroup) -> None:
        """Remove a file if it exists, and its directories if they are empty; needs the lock."""
        path = self._path(table, group)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()
            path.parent.parent.rmdir()

    @contextlib.contextmanager
    def lock(self, wait_s: float = 0.0) -> Iterator[None]:
        """Hold the lock of the writer."""
        make_private(self.root / WRITING)
        path = self.root / WRITING / LOCK
        deadline = time.monotonic() + wait_s
        while (descriptor := lock_named(path)) is None:
            if time.monotonic() < deadline:
                time.sleep(_POLL_S)
                continue
            raise TargetError(
                f"{path} is locked: another process writes there; try again when it has ended"
            )
        try:
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def upkeep_lease(self) -> Iterator[bool]:
        """Lock a second file, so that one process compacts."""
        make_private(self.root / WRITING)
        descriptor = lock_named(self.root / WRITING / UPKEEP)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def clean(self) -> None:
        """Remove unfinished files, and the files of groups that do not count; needs the lock."""
        for path in (self.root / WRITING).iterdir():
            if path.name not in (LOCK, UPKEEP) and (path.is_symlink() or not path.is_dir()):
                path.unlink()
        counted = set(self.groups(BATCHES))
        for table in TABLES:
            for group in self.groups(table):
                if group not in counted:
                    self.remove(table, group)

    def _path(self, table: str, group: BatchGroup) -> Path:
        return self.root / table / group.path


def _names_in(folder: Path) -> list[str]:
    """Return the names in a directory; none if it does not exist, or is not a directory."""
    try:
        return [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read: {error.strerror or error}")
