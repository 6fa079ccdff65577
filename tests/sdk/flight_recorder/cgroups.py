"""A real memory cgroup below the one of the tests, if this machine permits it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.core.cgroup import V1, MemoryCgroup, memory_groups

MIB = 1 << 20


@contextlib.contextmanager
def memory_cgroup_of(limit: int) -> Iterator[MemoryCgroup]:
    """Make a group with a limit in bytes; skip the test if that is not permitted."""
    own = next(memory_groups(), None)
    if own is None:
        pytest.skip("this process has no memory cgroup")
    directory = own.directory / f"cirron-otel-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made in {own.directory}: {error.strerror}")
    group = MemoryCgroup(directory, own.files)
    try:
        try:
            (directory / own.files.limit).write_text(str(limit))
            group.oom_kills()
            if own.files is V1:
                # Without this, the kernel swaps instead of killing.
                (directory / "memory.swappiness").write_text("0")
        except (OSError, ValueError) as error:
            pytest.skip(f"the cgroup has no limit, or no counter: {error}")
        yield group
    finally:
        _remove(directory)


def enter(group: MemoryCgroup) -> None:
    """Move this process, a new child, into the group."""
    (group.directory / "cgroup.procs").write_text(str(os.getpid()))


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + 180
    while True:
        try:
            directory.rmdir()
            return
        except OSError:  # the kernel has not finished with the last process
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
