"""The writers of a spool: who they are, which batches are theirs, and whether they are alive.

An owner is one recording process. Its prefix begins the id of every batch that it seals, so that
a batch's file name says whose it is; a lock that it holds as long as it lives says that it does.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..ids import uuid4_shaped
from .paths import SpoolPaths, parse_name
from .state import has_name, is_locked, lock_named, make_state

NONE = "none"
"""The owner of batches whose writer left nothing in `state/`: cirron-sdk's, as a rule."""

_PREFIX_BYTES = 6
_PREFIX = re.compile(r"[0-9a-f]{12}")
_LOCK = re.compile(r"owner-([0-9a-f]{12})\.lock")
_JOURNAL = re.compile(r"journal-([0-9a-f]{12})\.json")
_DELIVERY = re.compile(r"[a-z]+-[0-9a-f]{16}-([0-9a-f]{12})\.json")


class Owner:
    """A writer of a spool, for as long as this object is not released; see `acquire`."""

    def __init__(self, paths: SpoolPaths, prefix: str) -> None:
        """Of no use before `acquire`, which calls this."""
        self.paths = paths
        self.prefix = prefix
        """12 hex digits, random: what the ids of its batches begin with."""
        self._pid = os.getpid()
        self._descriptor: int | None = None

    @classmethod
    def acquire(cls, paths: SpoolPaths) -> Owner:
        """Become a writer of the spool: with a new prefix, and a lock that says "alive".

        Raises TargetError where `state/` cannot be written.
        """
        owner = cls(paths, os.urandom(_PREFIX_BYTES).hex())
        owner.ensure()
        return owner

    def ensure(self) -> None:
        """Hold the lock file, again where somebody removed it: without it, this process is dead.

        Raises TargetError where it cannot be made. Does nothing in a forked child.
        """
        path = lock_path(self.paths, self.prefix)
        if os.getpid() != self._pid:
            return
        if self._descriptor is not None:
            if has_name(self._descriptor, path):
                return
            os.close(self._descriptor)
            self._descriptor = None
        make_state(self.paths.state)
        self._descriptor = lock_named(path, wait=True)

    def new_batch_id(self) -> str:
        """A random id in the shape of a UUID4 that begins with the prefix."""
        return batch_id_of(self.prefix, os.urandom(10))

    def release(self) -> None:
        """Stop being a writer; the lock file goes too, unless a journal needs it for recovery.

        In a forked child this is `abandon`.
        """
        if self._descriptor is not None and os.getpid() == self._pid:
            path = lock_path(self.paths, self.prefix)
            with contextlib.suppress(OSError):
                if has_name(self._descriptor, path) and not _journal(self.paths, self).exists():
                    path.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Let go of the lock without ending it: for a forked child, whose parent still holds it.

        A lock belongs to what parent and child share. Were the child to keep it open, its parent
        would count as alive after its death; to unlock it would take it from the parent.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def batch_id_of(prefix: str, rest: bytes) -> str:
    """The id, in the shape of a UUID4, of an owner's batch that 10 bytes tell from its others."""
    return uuid4_shaped(bytes.fromhex(prefix) + rest[:10])


def lock_path(paths: SpoolPaths, prefix: str) -> Path:
    """The file that an owner holds locked while it lives."""
    return paths.state / f"owner-{prefix}.lock"


def _journal(paths: SpoolPaths, owner: Owner) -> Path:
    return paths.state / f"journal-{owner.prefix}.json"


def owner_of(name: str) -> str | None:
    """The prefix that a batch's file name says; None where it is no batch's name.

    A cirron-sdk batch has 12 random digits there: `group_of` tells whether they are an owner's.
    """
    parsed = parse_name(name)
    if parsed is None:
        return None
    prefix = parsed[1][: 2 * _PREFIX_BYTES]
    return prefix if _PREFIX.fullmatch(prefix) else None


def group_of(name: str, known: set[str]) -> str:
    """Whose a batch is for those who send it: an owner of `known_owners`, else NONE."""
    prefix = owner_of(name) if known else None
    return prefix if prefix in known and prefix is not None else NONE


def is_alive(paths: SpoolPaths, prefix: str) -> bool:
    """Whether the owner's process lives: somebody holds its lock.

    True as well where locks cannot be had (some network file systems): nobody is declared dead
    there, and nothing of theirs recovered.
    """
    return is_locked(lock_path(paths, prefix))


def owners(paths: SpoolPaths) -> list[str]:
    """The prefixes of all that have a lock file or a journal, in order: alive, or to recover."""
    return sorted({*_found(paths, _LOCK), *_found(paths, _JOURNAL)})


def known_owners(paths: SpoolPaths) -> set[str]:
    """The prefixes of all that left any trace in `state/`, the cursors of deliveries included.

    Batches of these are sent under leases and cursors of their own; all others under NONE's.
    """
    return {prefix for pattern in (_LOCK, _JOURNAL, _DELIVERY) for prefix in _found(paths, pattern)}


def dead_owners(paths: SpoolPaths) -> list[str]:
    """Those of `owners` whose process has ended."""
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
