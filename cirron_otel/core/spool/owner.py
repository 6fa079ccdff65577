"""The owners of a spool's batches: their prefixes, their batches, and whether they are alive.

An owner is one recording process. The ids of all batches that it seals start with its prefix, so
that a batch's file name identifies its owner. It holds a lock as long as it is alive.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import TargetError
from ...ids import uuid4_shaped
from .paths import SpoolPaths, parse_name
from .state import has_name, is_locked, lock_named, make_state

NONE = "none"
"""The owner of batches whose writer left nothing in `state/`, usually cirron-sdk."""

_PREFIX_BYTES = 6
_PREFIX = re.compile(r"[0-9a-f]{12}")
_LOCK = re.compile(r"owner-([0-9a-f]{12})\.lock")
_JOURNAL = re.compile(r"journal-([0-9a-f]{12})\.json")
_REMAINDER = re.compile(r"remainder-([0-9a-f]{12})\.jsonl")
_UNFINISHED = (_LOCK, _JOURNAL, _REMAINDER)
"""The files of owners that may have something to recover."""
_DELIVERY = re.compile(r"[a-z]+-[0-9a-f]{16}-([0-9a-f]{12})\.json")


class Owner:
    """An owner of batches in a spool, until it is released; see `acquire`."""

    def __init__(self, paths: SpoolPaths, prefix: str) -> None:
        """Create an owner without a lock; callers use `acquire`."""
        self.paths = paths
        self.prefix = prefix
        """12 random hex digits with which the ids of the owner's batches start."""
        self._pid = os.getpid()
        self._descriptor: int | None = None
        self._is_released = False

    @classmethod
    def acquire(cls, paths: SpoolPaths) -> Owner:
        """Create an owner with a new prefix and its lock. Raises TargetError if that fails."""
        owner = cls(paths, os.urandom(_PREFIX_BYTES).hex())
        owner.ensure()
        return owner

    def ensure(self) -> None:
        """Create and lock the lock file, unless this process has it locked and it still exists.

        Without the file, this process counts as dead. Raises TargetError if it cannot be created,
        or after `release`.
        Does nothing in a forked child.
        """
        path = lock_path(self.paths, self.prefix)
        if os.getpid() != self._pid:
            return
        if self._is_released:
            raise TargetError(f"owner {self.prefix} has ended: {path} is not locked again")
        if self._descriptor is not None:
            if has_name(self._descriptor, path):
                return
            os.close(self._descriptor)
            self._descriptor = None
        make_state(self.paths.state)
        self._descriptor = lock_named(path, wait=True)

    def new_batch_id(self) -> str:
        """Return a random id, shaped like a UUID4, that starts with the prefix."""
        return batch_id_of(self.prefix, os.urandom(10))

    def release(self) -> None:
        """Release the lock, and remove its file unless there is something to recover.

        In a forked child, do the same as `abandon`.
        """
        self._is_released = True
        if self._descriptor is not None and os.getpid() == self._pid:
            path = lock_path(self.paths, self.prefix)
            with contextlib.suppress(OSError):
                if has_name(self._descriptor, path) and not has_unsealed(self.paths, self.prefix):
                    path.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Close the lock file without unlocking it: for a forked child of a process with the lock.

        Parent and child share the lock. If the child kept the file open, the parent would count as
        alive after its death; if the child unlocked it, the parent would lose the lock.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def batch_id_of(prefix: str, rest: bytes) -> str:
    """Return a batch id, shaped like a UUID4, from an owner's prefix and the 10 bytes `rest`."""
    return uuid4_shaped(bytes.fromhex(prefix) + rest[:10])


def lock_path(paths: SpoolPaths, prefix: str) -> Path:
    """Return the path of the file that an owner keeps locked while it is alive."""
    return paths.state / f"owner-{prefix}.lock"


def has_unsealed(paths: SpoolPaths, prefix: str) -> bool:
    """Return whether an owner has a journal or a remainder, which recovery needs."""
    names = f"journal-{prefix}.json", f"remainder-{prefix}.jsonl"
    return any((paths.state / name).exists() for name in names)


def owner_of(name: str) -> str | None:
    """Return the prefix in a batch's file name; None if it is not the name of a batch.

    A cirron-sdk batch has 12 random digits there; `group_of` checks whether they are an owner's.
    """
    parsed = parse_name(name)
    if parsed is None:
        return None
    prefix = parsed[1][: 2 * _PREFIX_BYTES]
    return prefix if _PREFIX.fullmatch(prefix) else None


def group_of(name: str, known: set[str]) -> str:
    """Return the owner under which a batch is sent: one of `known_owners`, or NONE."""
    prefix = owner_of(name) if known else None
    return prefix if prefix in known and prefix is not None else NONE


def is_alive(paths: SpoolPaths, prefix: str) -> bool:
    """Return whether the owner's process is alive, which means that its lock is held.

    The result is also True if locks are not available (on some network file systems): no owner is
    declared dead or recovered there.
    """
    return is_locked(lock_path(paths, prefix))


def owners(paths: SpoolPaths) -> list[str]:
    """Return the prefixes of all owners with a lock file, a journal, or a remainder, in order."""
    return sorted({prefix for pattern in _UNFINISHED for prefix in _found(paths, pattern)})


def known_owners(paths: SpoolPaths) -> set[str]:
    """Return the prefixes of all owners with any file in `state/`, including delivery cursors.

    The batches of these owners are sent under their own leases and cursors; all other batches are
    sent under those of NONE.
    """
    patterns = (*_UNFINISHED, _DELIVERY)
    return {prefix for pattern in patterns for prefix in _found(paths, pattern)}


def dead_owners(paths: SpoolPaths) -> list[str]:
    """Return the prefixes of the `owners` whose process has ended."""
    return [prefix for prefix in owners(paths) if not is_alive(paths, prefix)]


def _found(paths: SpoolPaths, pattern: re.Pattern[str]) -> Iterator[str]:
    try:
        entries = list(paths.state.iterdir())
    except OSError:
        return
    for entry in entries:
        match = pattern.fullmatch(entry.name)
        if match is not None:
            yield match[1]
