"""What a delivery is told of: the batches that are in the spool already, and those that come."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import InputError
from ..exporter.batch_target import BatchTarget
from ..exporter.delivery import Delivery
from ..spool.cursor import Cursor, cursor_path
from ..spool.owner import NONE, group_of, is_alive, known_owners
from ..spool.paths import SpoolPaths, batch_names

_WAITING = 5_000
"""A delivery is told of no more than this at once: it looks through the spool for what it had no
room for by the prefix of an owner, which a collector's batches do not have."""

_LOOK_S = 5.0
_LOOK_SHARE = 100.0
"""Looking takes no more than a hundredth of the time."""


class Feed:
    """Tells a delivery of batches, as fast as it takes them; from one thread."""

    def __init__(self, delivery: Delivery, names: Iterable[str]) -> None:
        """`names` are there already."""
        self.delivery = delivery
        self._left = deque(names)

    def add(self, names: Iterable[str]) -> None:
        """Batches were sealed."""
        self._left.extend(names)
        self.pump()

    @property
    def left(self) -> int:
        """What it was not told of yet."""
        return len(self._left)

    def pump(self) -> None:
        """Tell it as much as it has room for."""
        if self._left:
            room = _WAITING - int(self.delivery.stats()["waiting"])
            for _ in range(min(room, len(self._left))):
                self.delivery.notify(self._left.popleft())


def unsent(paths: SpoolPaths, target: BatchTarget) -> list[str]:
    """The batches in the spool that a target does not have, and that nobody else will send there.

    Those of an owner who lives are his; those that an owner began to send to the same target are
    found by the delivery itself.
    """
    others = {
        prefix
        for prefix in known_owners(paths)
        if is_alive(paths, prefix) or cursor_path(paths.state, target.key, prefix).exists()
    }
    try:
        done: Cursor | frozenset[str] = Cursor(paths.state, target.key, NONE)
    except InputError:  # the delivery sets it aside
        done = frozenset()
    with contextlib.suppress(FileNotFoundError):
        names = sorted(batch_names(paths.spool))
        return [name for name in names if name not in done and group_of(name, others) == NONE]
    return []


class Standing(NamedTuple):
    """Where a target stands."""

    waiting: int
    """Batches of the spool that it does not have."""
    age_s: float
    """How long the oldest of them has been in the spool, seconds."""
    evicted: int = 0
    """How many left the spool before it had them."""


class Unsent:
    """What a target does not have by its cursors: looked at now and then, for it reads them all."""

    def __init__(self, paths: SpoolPaths, key: str) -> None:
        self._paths, self._key = paths, key
        self._look_at = 0.0
        self._found: tuple[int, float | None] = 0, None
        self._done: Cursor | frozenset[str] = frozenset()
        """The cursor of batches without an owner, as it was read last: what is in it stays so."""

    def look(self) -> Standing:
        """How many there are; some seconds old."""
        begun = time.monotonic()
        if begun >= self._look_at:
            with contextlib.suppress(OSError):
                self._found = self._count()
            now = time.monotonic()
            self._look_at = now + max(_LOOK_S, (now - begun) * _LOOK_SHARE)
        waiting, since = self._found
        return Standing(waiting, 0.0 if since is None else max(time.time() - since, 0.0))

    def lacks(self, name: str) -> bool:
        """Whether the target is still to have a batch that no process here is the owner of."""
        if name in self._done or group_of(name, known_owners(self._paths)) != NONE:
            return False
        self._done = self._cursor(NONE)
        return name not in self._done

    def _count(self) -> tuple[int, float | None]:
        """How many, and since when the first by name is there, Unix s."""
        known = known_owners(self._paths)
        cursors: dict[str, Cursor | frozenset[str]] = {}
        first, count = None, 0
        for name in batch_names(self._paths.spool):
            owner = group_of(name, known)
            if owner not in cursors:
                cursors[owner] = self._cursor(owner)
            if name not in cursors[owner]:
                count += 1
                first = name if first is None else min(first, name)
        return count, None if first is None else (self._paths.spool / first).stat().st_mtime

    def _cursor(self, owner: str) -> Cursor | frozenset[str]:
        try:
            return Cursor(self._paths.state, self._key, owner)
        except InputError:
            return frozenset()
