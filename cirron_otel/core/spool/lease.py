"""Leases for operations on a spool that only one process at a time may perform.

A lease is held until it is released or its process ends, however that happens. The rule for
deliveries: **the holder of the lease of (target, owner) may send that owner's unacknowledged
batches to the target**, and reads the cursor again once it has the lease. A recording process that
exports holds the lease of its own batches for its lifetime, and claims it before it seals the first
batch.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from ...ids import digest
from .paths import SpoolPaths
from .state import has_name, is_locked, lock_named, make_state


class Lease:
    """A held lease; a context manager that releases it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over a locked descriptor; callers obtain a lease from `claim`."""
        self.path = path
        self._pid = os.getpid()
        self._descriptor: int | None = descriptor

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lease: not released, and the file was not removed."""
        return (
            self._descriptor is not None
            and os.getpid() == self._pid
            and has_name(self._descriptor, self.path)
        )

    def release(self) -> None:
        """Release the lease and remove its file. In a forked child, do the same as `abandon`."""
        if self._descriptor is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                if has_name(self._descriptor, self.path):
                    self.path.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Close the lease without releasing it: for a forked child whose parent still holds it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def claim(paths: SpoolPaths, what: str) -> Lease | None:
    """Return the lease named `what`, an arbitrary string; None if it is taken.

    On a file system without locks, every claim succeeds. Raises TargetError if `state/` cannot be
    written.
    """
    make_state(paths.state)
    path = _path(paths, what)
    descriptor = lock_named(path)
    return None if descriptor is None else Lease(path, descriptor)


def is_claimed(paths: SpoolPaths, what: str) -> bool:
    """Return whether a process holds the lease named `what`."""
    return is_locked(_path(paths, what))


def lease_files(paths: SpoolPaths) -> list[Path]:
    """Return the files of all leases, also of those whose process has ended."""
    return list(paths.state.glob("lease-*"))


def _path(paths: SpoolPaths, what: str) -> Path:
    return paths.state / f"lease-{digest('lease', what)[:8].hex()}"


def claim_delivery(paths: SpoolPaths, target: str, owner: str) -> Lease | None:
    """Return the lease for sending an owner's batches (prefix, or `owner.NONE`) to a target."""
    return claim(paths, f"delivery {target} {owner}")
