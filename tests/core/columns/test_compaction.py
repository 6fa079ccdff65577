"""Groups that are merged, also by several processes and by killed ones; days that are removed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from cirron_otel.core.columns import bucket, compaction
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.bucket import BucketTables
from cirron_otel.core.columns.compaction import Compactor, merge
from cirron_otel.core.columns.expiry import TableExpiry
from cirron_otel.core.columns.known_batches import KnownBatches, PartitionBatches
from cirron_otel.core.columns.layout import EMPTY_GROUP, BatchGroup
from cirron_otel.core.columns.packed import arrow_rows
from cirron_otel.core.columns.places import open_tables
from cirron_otel.core.columns.reading import ColumnsReader, RowSelect
from cirron_otel.core.columns.schema import BATCHES, TABLES
from cirron_otel.core.columns.writing import ColumnsWriter
from cirron_otel.errors import InputError
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.spools.comparing import batches
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    span,
)

from .helpers import (
    add,
    assert_stored,
    flip_bit,
    of_run,
    stored,
)
from .test_columns_doc import SQL

pytestmark = pytest.mark.timeout(1800)

DAY_NS = 86_400 * 10**9
LARGE = 1 << 20

# Compacts again and again, and says so each time.
_COMPACT = """
import sys
from cirron_otel.core.columns.compaction import Compactor
from cirron_otel.core.columns.places import open_tables
while True:
    print(Compactor(open_tables(sys.argv[1]), 1 << 20).run(), flush=True)
"""


def files(number: int = 12) -> list[tuple[str, bytes]]:
    """Batches of one day that is over."""
    return [of_run(1, batch_id=f"{n:032x}", records=1 + n % 3) for n in range(number)]


def add_singly(place: str, some: list[tuple[str, bytes]]) -> None:
    for file in some:
        add(place, [file])


def groups_of(place: str) -> list[BatchGroup]:
    return [group for group in ColumnsReader(place).groups() if group != EMPTY_GROUP]


def compact(place: str, group_bytes: int = LARGE) -> int:
    return Compactor(open_tables(place), group_bytes).run()


def assert_one_file_each(place: str) -> None:
    """Each file belongs to a group that counts, and each batch to one group."""
    store = open_tables(place)
    counted = set(store.groups(BATCHES))
    assert all(set(store.groups(table)) <= counted for table in TABLES)
    reader = ColumnsReader(place)
    keys = [key for group in counted for key, _ in reader.keys(group)]
    assert len(keys) == len(set(keys))


def test_small_groups_become_one(any_place: str) -> None:
    add_singly(any_place, files())
    before = {
        table: sorted(map(str, ColumnsReader(any_place).rows(table).to_pylist()))
        for table in TABLES
        if table != BATCHES
    }
    assert compact(any_place) == 12
    assert len(groups_of(any_place)) == 1
    assert_stored(any_place, files())
    assert_one_file_each(any_place)
    for table, rows in before.items():
        assert sorted(map(str, ColumnsReader(any_place).rows(table).to_pylist())) == rows
    ordinals = ColumnsReader(any_place).rows(BATCHES).column("ordinal").to_pylist()
    assert sorted(ordinals) == list(range(12))
    assert compact(any_place) == 0
    assert add(any_place, files()) == 0


def test_merged_groups_have_a_size(any_place: str) -> None:
    add_singly(any_place, files())
    size = len(files()[0][1])
    assert compact(any_place, 5 * size) > 0
    assert 2 <= len(groups_of(any_place)) <= 6
    assert_stored(any_place, files())
    assert_one_file_each(any_place)


def test_files_are_in_the_order_of_time(tmp_path: Path) -> None:
    some = files()
    random.Random(2).shuffle(some)
    add_singly(str(tmp_path / "tables"), some)
    compact(str(tmp_path / "tables"))
    [path] = (tmp_path / "tables" / "spans" / "run=r").rglob("*.parquet")
    times = pq.ParquetFile(path).read().column("start_ns").to_pylist()
    assert times == sorted(times)


def test_a_batch_in_several_groups_is_merged_to_one(any_place: str) -> None:
    repeat(any_place)
    assert_stored_once(any_place)
    assert compact(any_place, 2) == 2  # groups are large: only those with the batch are merged
    assert_stored_once(any_place)
    assert_one_file_each(any_place)


def test_many_groups_with_batches_in_common_become_several(any_place: str) -> None:
    """As after two collectors have added the same messages at once; memory is bounded."""
    store = open_tables(any_place)
    some = files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KnownBatches, "refresh", lambda *_: PartitionBatches())
        for start in range(0, len(some), 2):  # each has a batch in common with the next
            with ColumnsWriter(any_place, known=KnownBatches(store)) as writer:
                for file in some[start : start + 3]:
                    writer.add(arrow_rows(rows_of(*file)))
    assert sum(keys(any_place, group) for group in groups_of(any_place)) == 12 + 5
    size = max(len(data) for _, data in some)
    assert compact(any_place, 4 * size) == 6
    assert max(keys(any_place, group) for group in groups_of(any_place)) <= 5
    assert_stored(any_place, some)
    assert_one_file_each(any_place)


def repeat(place: str) -> None:
    """Two groups with one batch in common, and another group."""
    add(place, files(2))
    add_singly(place, [files(3)[2]])
    store = open_tables(place)
    [single] = [group for group in groups_of(place) if keys(place, group) == 1]
    with pytest.MonkeyPatch.context() as patch:  # as if killed before anything is removed
        patch.setattr(compaction, "remove_groups", lambda *_: None)
        merge(store, [single], LARGE)
    assert len(groups_of(place)) == 3


def keys(place: str, group: BatchGroup) -> int:
    return len(list(ColumnsReader(place).keys(group)))


def assert_stored_once(place: str) -> None:
    reader = ColumnsReader(place)
    assert reader.rows(BATCHES).num_rows == 3
    assert reader.rows("spans").num_rows == 1 + 2 + 3
    assert {name for name, _ in stored(place)} == {name for name, _ in files(3)}


def test_the_view_of_the_documentation_counts_once(tmp_path: Path) -> None:
    place = str(tmp_path / "tables")
    repeat(place)
    [view] = [sql for sql in SQL if "VIEW counted_spans" in sql]
    [count] = [sql for sql in SQL if "FROM counted_spans" in sql]
    engine = duckdb.connect()
    engine.execute(view.replace("'columns/", f"'{place}/"))
    assert engine.execute(count).fetchall() == [(6,)]
    both = f"SELECT count(*) FROM read_parquet('{place}/spans/**/*.parquet')"
    assert engine.execute(both).fetchall() == [(9,)]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "Parquet magic bytes not found"),
        (lambda path: flip_bit(path, "start_ns"), "CRC checksum verification failed"),
    ],
    ids=["cut", "bit"],
)
def test_a_partition_that_cannot_be_read_stays(
    damage: Callable[[Path], None],
    message: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = str(tmp_path / "tables")
    add_singly(place, files())
    add_singly(place, [of_run(2, "other", batch_id=f"{n:032x}") for n in range(3)])
    damaged = sorted((tmp_path / "tables" / "spans" / "run=r").rglob("*.parquet"))[3]
    damage(damaged)
    before = sorted((tmp_path / "tables" / "spans" / "run=r").rglob("*.parquet"))
    assert compact(place) == 3
    assert message in caplog.text
    assert sorted((tmp_path / "tables" / "spans" / "run=r").rglob("*.parquet")) == before


def test_a_group_without_all_of_its_rows_is_not_merged(tmp_path: Path) -> None:
    place = str(tmp_path / "tables")
    add_singly(place, files(3))
    lost = groups_of(place)[1]
    (tmp_path / "tables" / "spans" / lost.path).unlink()
    with pytest.raises(InputError, match="rows of spans in run=r"):
        merge(open_tables(place), groups_of(place), LARGE)
    assert len(groups_of(place)) == 3


def test_groups_that_are_replaced_while_they_are_listed(
    any_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_singly(any_place, files())
    reader = ColumnsReader(any_place)
    listed = reader.groups

    def groups(*arguments: Any) -> list[BatchGroup]:
        found = listed(*arguments)
        compact(any_place)
        return found

    monkeypatch.setattr(reader, "groups", groups)
    rows = reader.scan("spans", columns=["id"]).to_table().column("id").to_pylist()
    expected = ColumnsReader(any_place).rows("spans").column("id").to_pylist()
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize("is_read", [1, 7, 9])
def test_groups_that_are_replaced_while_they_are_read(bucket_place: str, is_read: int) -> None:
    """Each batch counts once, also one that was read, and is in a new group with others.

    Of 13 groups, at least 10 have rows of their own: three others have the same batches as one.
    """
    add_singly(bucket_place, files())
    with pytest.MonkeyPatch.context() as patch:  # as if killed before anything is removed
        patch.setattr(compaction, "remove_groups", lambda *_: None)
        merge(open_tables(bucket_place), groups_of(bucket_place)[5:8], LARGE)
    reader = ColumnsReader(bucket_place)
    expected = sorted(reader.rows("spans", columns=["id"]).column("id").to_pylist())
    groups = reader.groups()
    rows = reader._unrepeated(
        "spans", reader._present("spans", groups, groups), reader._repeated(groups), RowSelect(),
        {"id", "batch_key", "run_id", "start_ns"},
    )  # fmt: skip
    found = [next(rows) for _ in range(is_read)]
    assert compact(bucket_place) >= 12
    found += rows
    assert sorted(row_id for each in found for row_id in each.column("id").to_pylist()) == expected


def test_one_process_compacts(any_place: str) -> None:
    add_singly(any_place, files())
    with open_tables(any_place).upkeep_lease() as is_held:
        assert is_held
        assert compact(any_place) == 0
    assert compact(any_place) == 12


@pytest.mark.backends
def test_compactors_that_ignore_the_lease(bucket_place: str, tmp_path: Path) -> None:
    """Merging the same groups at the same time repeats batches; it loses none."""
    add_singly(bucket_place, files())
    groups = groups_of(bucket_place)
    store = open_tables(bucket_place)
    errors: list[Exception] = []

    def work(some: list[BatchGroup]) -> None:
        try:
            merge(open_tables(bucket_place), some, LARGE)
        except InputError as error:  # a group was removed before it was read
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(some,))
        for some in (groups, groups[:8], groups[4:], list(reversed(groups)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) < 4
    convert(ConvertRequest(f"parquet:{bucket_place}", str(tmp_path / "back")))
    assert sorted(batches(tmp_path / "back")) == sorted(name for name, _ in files())
    Compactor(store, LARGE).run()
    assert_stored(bucket_place, files())
    assert_one_file_each(bucket_place)


def test_a_reader_and_writers_meet_compactors_that_are_killed(
    any_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = files(30)
    add_singly(any_place, some[:10])
    chance = random.Random(5)
    for start in range(10, 30, 5):
        process = subprocess.Popen(
            [sys.executable, "-c", _COMPACT, any_place], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for file in some[start : start + 5]:
            if chance.random() < 0.5:
                process.stdout.readline()
            add_waiting(any_place, file)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        remove_lease(any_place)
        names = {name for name, _ in read_once(any_place)}
        assert names == {name for name, _ in some[: start + 5]}
    monkeypatch.setattr(bucket, "ABANDONED_AFTER", timedelta(minutes=-1))
    compact(any_place)
    assert_stored(any_place, some)
    assert_one_file_each(any_place)


def add_waiting(place: str, file: tuple[str, bytes]) -> None:
    with ColumnsWriter(place, wait_s=600) as writer:
        assert writer.add(arrow_rows(rows_of(*file)))


def read_once(place: str) -> list[tuple[str, bytes]]:
    """The batches by key, as `convert` reads them."""
    reader = ColumnsReader(place)
    by_key: dict[str, Any] = {}
    for group in reader.groups():
        for batch in reader.batches(group):
            by_key.setdefault(batch.key, batch)  # type: ignore[union-attr]
    return [(batch.name, batch.data) for batch in by_key.values()]


def remove_lease(place: str) -> None:
    """The lease in a bucket ends a quarter of an hour after its holder was killed."""
    store = open_tables(place)
    if isinstance(store, BucketTables):
        store._objects.delete("_writing/upkeep")


# --- days that are over --------------------------------------------------------------------------


def test_old_days_are_removed(any_place: str) -> None:
    some = [of_run(day, str(day % 2)) for day in range(6)]
    undated = ("any.json", encoded(made(1, created_ns=None, spans=[span(1)])))
    add(any_place, [*some, undated])
    expiry = TableExpiry(any_place)
    first = EPOCH_NS // DAY_NS * DAY_NS
    for before_ns, old in (
        (first + DAY_NS - 1, 0),
        (first + DAY_NS, 1),
        (first + 3 * DAY_NS + 5, 3),
    ):
        assert expiry.expired(before_ns) == (old, 7)
    assert expiry.retain(first + 3 * DAY_NS).batches == 3
    assert_stored(any_place, [*some[3:], undated])
    assert expiry.expired(first + 3 * DAY_NS) == (0, 4)
    assert expiry.retain(first + 3 * DAY_NS).batches == 0
    assert_one_file_each(any_place)
    if "://" not in any_place:
        days = {path.name for path in Path(any_place).glob("spans/*/*")}
        assert len(days) == 4
