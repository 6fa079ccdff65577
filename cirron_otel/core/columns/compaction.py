"""Replace the small groups of a partition by larger ones (docs/columns.md, "Compaction")."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import InputError
from .layout import EMPTY_GROUP, NO_DATE, BatchGroup, Partition, new_group
from .reading import read_group
from .schema import BATCHES, RECORD_TABLES, TABLES
from .store import TableStore
from .writing import with_ordinals, write_group

logger = logging.getLogger(__name__)

_MIN_GROUPS = 8
"""How many small groups of the current day are merged."""
_WAIT_S = 60.0
"""How long another writer of the same directory may take, seconds."""
_SMALL_SHARE = 2
"""Groups of less than half the size of a merged group are small."""


class _GroupContent(NamedTuple):
    """What decides whether a group is merged."""

    group: BatchGroup
    keys: frozenset[bytes]
    size: int
    """The size of the batches as files of a spool, bytes."""


@dataclass(slots=True)
class Compactor:
    """Compacts tables again and again; for one thread."""

    store: TableStore
    group_bytes: int
    """The size of a merged group, as batches in a spool."""
    should_stop: Callable[[], bool] = lambda: False
    _examined: dict[Partition, int] = field(default_factory=dict)
    """The hash of the groups of each partition for which there was nothing to do."""

    def run(self) -> int:
        """Remove what dead writers left, and compact each partition, unless another process does.

        Returns how many groups were merged.
        A partition that cannot be read is logged and stays unchanged. Raises OSError,
        TargetError and EndpointError.
        """
        merged = 0
        with self.store.upkeep_lease() as is_held:
            if not is_held:
                return 0
            with self.store.lock(_WAIT_S):
                self.store.clean()
            partitions: dict[Partition, list[BatchGroup]] = {}
            for group in self.store.groups(BATCHES):
                if group != EMPTY_GROUP:
                    partitions.setdefault(group.partition, []).append(group)
            self._examined = {p: h for p, h in self._examined.items() if p in partitions}
            for partition, groups in sorted(partitions.items()):
                if self.should_stop():
                    break
                merged += self._partition(partition, groups)
        return merged

    def _partition(self, partition: Partition, groups: list[BatchGroup]) -> int:
        is_closed = partition.date < datetime.now(UTC).strftime("%Y-%m-%d")
        signature = hash((frozenset(groups), is_closed))
        if len(groups) < 2 or self._examined.get(partition) == signature:
            return 0
        merged = 0
        try:
            for run in self._runs(groups, is_closed=is_closed):
                merge(self.store, run, self.group_bytes)
                merged += len(run)
        except InputError as error:
            logger.warning("not compacted: %s", error, extra={"cause": f"compaction {partition}"})
        if not merged:
            self._examined[partition] = signature
        return merged

    def _runs(self, groups: Iterable[BatchGroup], *, is_closed: bool) -> list[list[BatchGroup]]:
        """Return the groups to merge: small ones, and those that contain the same batch."""
        contents = [self._content(group) for group in sorted(groups)]
        clusters = _clusters(contents)
        runs: list[list[BatchGroup]] = []
        run: list[_GroupContent] = []
        has_repeated = False
        least = 2 if is_closed and contents[0].group.partition.date != NO_DATE else _MIN_GROUPS

        def end() -> None:
            nonlocal has_repeated
            if has_repeated or len(run) >= least:
                runs.append([each.group for each in run])
            run.clear()
            has_repeated = False

        for cluster in clusters:
            if len(cluster) == 1 and cluster[0].size * _SMALL_SHARE >= self.group_bytes:
                continue
            if run and sum(each.size for each in (*run, *cluster)) > self.group_bytes:
                end()
            run += cluster
            has_repeated |= len(cluster) > 1
        end()
        return runs

    def _content(self, group: BatchGroup) -> _GroupContent:
        table = read_group(self.store, BATCHES, group, ["batch_key", "size_bytes"])
        keys = frozenset(map(bytes.fromhex, table.column("batch_key").to_pylist()))
        return _GroupContent(group, keys, pc.sum(table.column("size_bytes")).as_py() or 0)


def _clusters(contents: list[_GroupContent]) -> list[list[_GroupContent]]:
    """Put groups that have a batch in common, directly or through others, into one list."""
    clusters: list[list[_GroupContent]] = []
    by_key: dict[bytes, list[_GroupContent]] = {}
    for content in contents:
        cluster = [content]
        clusters.append(cluster)
        others = [by_key[key] for key in content.keys & by_key.keys()]
        for other in {id(each): each for each in others}.values():
            clusters.remove(other)
            cluster[:0] = other
        for each in cluster:
            by_key |= dict.fromkeys(each.keys, cluster)
    return clusters


def merge(store: TableStore, groups: list[BatchGroup], group_bytes: int) -> None:
    """Write each batch of several groups of a partition once, and remove those groups.

    There are several new groups if the batches have more than `group_bytes` bytes as files of a
    spool, as may happen if many groups have batches in common. Raises InputError if a group cannot
    be read completely; then no group has been removed.
    """
    with store.lock(_WAIT_S):
        for some in _divided(_chosen(store, groups), group_bytes):
            _write_merged(store, some)
        remove_groups(store, groups)


class _Chosen(NamedTuple):
    """A group, and those of its batches that no earlier group has."""

    group: BatchGroup
    headers: Any
    """The rows of these batches."""

    @property
    def size(self) -> int:
        """The size of the batches as files of a spool, bytes."""
        size: int | None = pc.sum(self.headers.column("size_bytes")).as_py()
        return size or 0


def _chosen(store: TableStore, groups: list[BatchGroup]) -> list[_Chosen]:
    chosen = []
    seen: set[str] = set()
    for group in groups:
        table = read_group(store, BATCHES, group).sort_by("ordinal")
        keys = [key for key in table.column("batch_key").to_pylist() if key not in seen]
        seen.update(keys)
        is_new = pc.is_in(table.column("batch_key"), pa.array(keys, pa.string()))
        if keys:
            chosen.append(_Chosen(group, table.filter(is_new)))
    return chosen


def _divided(chosen: list[_Chosen], group_bytes: int) -> Iterator[list[_Chosen]]:
    """Yield the batches of each new group."""
    some: list[_Chosen] = []
    for each in chosen:
        if some and sum(other.size for other in some) + each.size > group_bytes:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def _write_merged(store: TableStore, chosen: list[_Chosen]) -> None:
    partition = chosen[0].group.partition
    headers = pa.concat_tables([each.headers for each in chosen])
    headers = with_ordinals(headers, pa.array(range(headers.num_rows), pa.int32()))
    tables: dict[str, list[Any]] = {BATCHES: headers.to_batches()}
    for table in TABLES:
        if table != BATCHES:
            rows = _rows(store, table, chosen)
            if rows.num_rows:
                tables[table] = rows.to_batches()
    for table in RECORD_TABLES:
        found = sum(part.num_rows for part in tables.get(table, ()))
        expected = pc.sum(headers.column(table)).as_py()
        if found != expected:
            raise InputError(
                f"{store.shown} has {found} rows of {table} in {partition.path} where"
                f" the batches have {expected}"
            )
    created = headers.column("created_ns").to_pylist()
    merged = new_group(partition, [ns for ns in created if ns is not None and ns >= 0])
    write_group(store, merged, tables)


def remove_groups(store: TableStore, groups: Iterable[BatchGroup]) -> None:
    """Remove groups, which count until their file in the table of batches is gone."""
    for group in groups:
        for table in sorted(TABLES, key=lambda name: name != BATCHES):
            store.remove(table, group)


def _rows(store: TableStore, table: str, chosen: list[_Chosen]) -> Any:
    parts = [
        rows.filter(
            pc.is_in(rows.column("batch_key"), each.headers.column("batch_key").combine_chunks())
        )
        for each in chosen
        if store.has(table, each.group)
        and (rows := read_group(store, table, each.group)) is not None
    ]
    return pa.concat_tables(parts) if parts else pa.table({})
