"""The keys and names of the batches that tables contain, read when they are needed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...errors import InputError
from .layout import BatchGroup, Partition
from .reading import read_group
from .schema import BATCHES
from .store import TableStore

_MOST_KEYS = 1_000_000
"""How many keys are kept in memory, apart from those of the partition in use: about 150 MB."""


@dataclass(slots=True)
class PartitionBatches:
    """The batches of a partition."""

    keys: set[bytes] = field(default_factory=set)
    names: set[int] = field(default_factory=set)
    """The hashes of their names."""
    groups: set[BatchGroup] = field(default_factory=set)
    """The groups that were read; a group never changes."""

    def add(self, key: bytes, name: str) -> None:
        """Add a batch."""
        self.keys.add(key)
        self.names.add(hash(name))


class KnownBatches:
    """Which batches the tables contain; also those of groups that were merged into others since."""

    def __init__(self, store: TableStore) -> None:
        """Read nothing yet."""
        self._store = store
        self._partitions: OrderedDict[Partition, PartitionBatches] = OrderedDict()

    def of(self, partition: Partition) -> PartitionBatches:
        """Return the batches of a partition as they were last read, or read them."""
        known = self._partitions.get(partition)
        if known is None:
            return self.refresh(partition)
        self._partitions.move_to_end(partition)
        return known

    def refresh(self, partition: Partition) -> PartitionBatches:
        """Read the groups that were added to a partition. Raises InputError."""
        known = self._partitions.setdefault(partition, PartitionBatches())
        self._partitions.move_to_end(partition)
        while new := set(self._store.groups(BATCHES, partition)) - known.groups:
            for group in sorted(new):
                self._read(group, known)
        self._forget()
        return known

    def added(self, group: BatchGroup, batches: Iterable[tuple[bytes, str]]) -> None:
        """Record a group that this process has written, with the keys and names of its batches."""
        known = self.of(group.partition)
        known.groups.add(group)
        for key, name in batches:
            known.add(key, name)

    def _read(self, group: BatchGroup, known: PartitionBatches) -> None:
        try:
            table = read_group(self._store, BATCHES, group, ["batch_key", "name"])
        except InputError:
            if self._store.has(BATCHES, group):
                raise
            return  # merged into another group meanwhile, which the next listing has
        columns = (table.column(name).to_pylist() for name in ("batch_key", "name"))
        for key, name in zip(*columns, strict=True):
            known.add(bytes.fromhex(key), name)
        known.groups.add(group)

    def _forget(self) -> None:
        while len(self._partitions) > 1 and self._count() > _MOST_KEYS:
            self._partitions.popitem(last=False)

    def _count(self) -> int:
        return sum(len(known.keys) for known in self._partitions.values())
