"""Leases: who may do something to a spool that only one process at a time may do.

A lease is held until it is released or its process ends, however it ends. For deliveries the rule
is: **whoever holds the lease of (target, owner) may send that owner's unacknowledged batches
there**, and reads the cursor anew once it has the lease. A recording process that exports holds
the lease of its own batches for its life; it takes it before it seals the first.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from ..ids import digest
from .paths import SpoolPaths
from .state import has_name, lock_named, make_state


class Lease:
    """A lease that is held; a context manager that releases it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over a locked descriptor; `claim` is how one comes by a lease."""
        self.path = path
        self._pid = os.getpid()
        self._descriptor: int | None = descriptor

    @property
    def is_held(self) -> bool:
        """Whether it still is this process's: not released, and its file not removed by others."""
        return (
            self._descriptor is not None
            and os.getpid() == self._pid
            and has_name(self._descriptor, self.path)
        )

    def release(self) -> None:
        """Let others have it, and remove its file. In a forked child this is `abandon`."""
        if self._descriptor is not None and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                if has_name(self._descriptor, self.path):
                    self.path.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Forget it without ending it: for a forked child, whose parent goes on holding it."""
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
    """The lease of `what`, whatever the text means to those who claim it; None where it is taken.

    Where the file system has no locks every claim succeeds. Raises TargetError where `state/`
    cannot be written.
    """
    make_state(paths.state)
    path = paths.state / f"lease-{digest('lease', what)[:8].hex()}"
    descriptor = lock_named(path)
    return None if descriptor is None else Lease(path, descriptor)


def claim_delivery(paths: SpoolPaths, target: str, owner: str) -> Lease | None:
    """The lease to send an owner's batches (a prefix, or `owner.NONE`) to a target, by its key."""
    return claim(paths, f"delivery {target} {owner}")
