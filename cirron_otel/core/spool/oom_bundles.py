"""The bundles of out-of-memory errors: `oom/<span_id>/`, written atomically, evicted as a whole.

docs/memory.md, "Out of memory", describes the files in a bundle.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ...errors import TargetError
from ..atomic_files import publish, sync_directory, write_file
from .directories import make_private

_TMP = ".tmp"


class Bundle(NamedTuple):
    """A bundle in a spool, or what a process left of one."""

    name: str
    """The name of its directory: the id of the span, or a temporary name."""
    size: int
    """The size of its files, bytes."""
    mtime_ns: int
    """The time of its latest file, Unix ns."""


def write_bundle(oom: Path, span_id: str, owner: str, files: Mapping[str, bytes]) -> int:
    """Write the files of a bundle to `oom/<span_id>/`; return their size in bytes.

    The directory appears with all its files or not at all; it has mode 0700, the files 0600.
    `owner` is the prefix of the recording process. An existing bundle of the span stays unchanged.
    Raises TargetError if it cannot be written; nothing is left then.
    """
    target = oom / span_id
    tmp = oom / f"{_tmp_start(owner)}{span_id}{_TMP}"
    try:
        if target.exists():
            return 0
        shutil.rmtree(tmp, ignore_errors=True)
        make_private(tmp)
        size = sum(write_file(tmp / name, data) for name, data in files.items())
        sync_directory(tmp)
        publish(tmp, target)
    except OSError as error:
        shutil.rmtree(tmp, ignore_errors=True)
        raise TargetError(
            f"{target} cannot be written: {error.strerror or error}; free some space, or choose a"
            " directory that can be written"
        ) from None
    return size


def bundles_in(oom: Path) -> Iterator[Bundle]:
    """Yield the bundles in `oom`, which may not exist or not be a directory. Raises OSError."""
    try:
        entries = os.scandir(oom)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                statuses = list(_statuses(oom / entry.name))
                latest = max((each.st_mtime_ns for each in statuses), default=0)
                yield Bundle(entry.name, sum(each.st_size for each in statuses), latest)


def remove_bundle(oom: Path, name: str) -> bool:
    """Remove a bundle; return False if it is not there. Raises OSError if that fails."""
    try:
        shutil.rmtree(oom / name)
    except FileNotFoundError:
        return False
    return True


def remove_unfinished(oom: Path, owner: str) -> None:
    """Remove the bundles that a process had not finished when it died. Raises nothing."""
    with contextlib.suppress(OSError):
        for each in list(oom.glob(f"{_tmp_start(owner)}*{_TMP}")):
            shutil.rmtree(each, ignore_errors=True)


def _tmp_start(owner: str) -> str:
    return f".{owner}-"


def _statuses(directory: Path) -> Iterator[os.stat_result]:
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # evicted by another process meanwhile
                if entry.is_file(follow_symlinks=False):
                    yield entry.stat(follow_symlinks=False)
