"""Remove the partitions of old days (docs/columns.md, "Retention")."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from .compaction import remove_groups
from .layout import NO_DATE, BatchGroup
from .places import Place, open_tables
from .reading import read_group
from .schema import BATCHES

_WAIT_S = 60.0


class ExpiredGroups(NamedTuple):
    """How much a removal has removed."""

    batches: int
    groups: int


class TableExpiry:
    """Counts and removes the batches of days that ended before a time; for one thread."""

    def __init__(self, place: Place) -> None:
        """Raises UsageError and MissingExtraError."""
        self._store = open_tables(place)
        self._counts: dict[BatchGroup, int] = {}

    def expired(self, before_ns: int) -> tuple[int, int]:
        """Return how many batches `retain` would remove, and how many there are.

        Raises InputError and EndpointError.
        """
        old = all_ = 0
        groups = set(self._store.groups(BATCHES))
        self._counts = {group: n for group, n in self._counts.items() if group in groups}
        for group in groups:
            number = self._count(group)
            all_ += number
            old += number if _is_old(group, before_ns) else 0
        return old, all_

    def retain(self, before_ns: int) -> ExpiredGroups:
        """Remove the groups of days that ended before `before_ns` (Unix ns).

        Raises InputError, OSError, TargetError and EndpointError.
        """
        old = [group for group in self._store.groups(BATCHES) if _is_old(group, before_ns)]
        if not old:
            return ExpiredGroups(0, 0)
        number = sum(map(self._count, old))
        with self._store.lock(_WAIT_S):
            remove_groups(self._store, old)
        return ExpiredGroups(number, len(old))

    def _count(self, group: BatchGroup) -> int:
        if group not in self._counts:
            self._counts[group] = read_group(self._store, BATCHES, group, ["ordinal"]).num_rows
        return self._counts[group]


def _is_old(group: BatchGroup, before_ns: int) -> bool:
    date = group.partition.date
    if date == NO_DATE:  # batches without a time, and the empty group
        return False
    try:
        end = datetime.fromisoformat(date).replace(tzinfo=UTC) + timedelta(days=1)
    except (ValueError, OverflowError):
        return False
    return int(end.timestamp()) * 10**9 <= before_ns
