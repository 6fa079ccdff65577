"""PostgreSQL's partitions by day: what goes where, what a query reads, and retention."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cirron_otel.core.delivery.errors import MisconfiguredError
from cirron_otel.core.durations import DAY_NS
from cirron_otel.core.targets.sql.database import KEYS_PER_DAY
from cirron_otel.core.targets.sql.days import _MOST_DAYS, AHEAD_DAYS, LATE_DAYS, Days, partition
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.store import Select
from tests.kit.spools.deliveries import until
from tests.kit.spools.made import (
    made,
    mark,
    snapshot,
    span,
    span_id,
)

from .helpers import column, sealed, stored
from .test_crash import python

TABLES = ("TraceBatch", "TraceSpan", "TraceMark", "TraceSnapshot")
PATIENCE_S = 300.0
"""Far more than anything here takes."""
WAITS = (
    "SELECT 1 FROM pg_stat_activity WHERE strpos(query, 'DETACH') > 0"
    " AND wait_event_type = 'Lock' AND datname = current_database()"
)


@pytest.fixture
def days(postgres_url: str) -> Iterator[Storage]:
    """An empty storage in PostgreSQL."""
    with Storage.open(postgres_url) as storage:
        yield storage


def noon(days_ago: int) -> int:
    """Noon of a day, Unix ns."""
    return (time.time_ns() // DAY_NS - days_ago) * DAY_NS + DAY_NS // 2


def whole(number: int, created_ns: Any) -> Any:
    """A batch with records of each kind."""
    return made(
        number,
        created_ns=created_ns,
        spans=[span(number)],
        marks=[mark(number, number)],
        snapshots=[snapshot(number, number)],
    )


def partitions(storage: Storage) -> list[str]:
    """The partitions of all tables."""
    return column(
        storage,
        "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE c.relkind = 'r' ORDER BY 1",
    )


def tables_of(storage: Storage, table: str) -> dict[int, str]:
    """The partition of each batch's row, by the number in the batch's name."""
    rows = storage.database.rows(
        f'SELECT b."batchId", t.tableoid::regclass::text FROM "{table}" t'
        ' JOIN "TraceBatch" b ON b."batchKey" = t."batchKey"'
    )
    return {int(batch_id, 16): name.strip('"') for batch_id, name in rows}


def is_removed(storage: Storage, before_ns: int) -> bool:
    """Remove what is older; return whether no other process is still about to do so."""
    storage.retain(before_ns)
    return not column(storage, 'SELECT 1 FROM "TraceDay" WHERE "day" < ?', before_ns // DAY_NS)


def explain(storage: Storage, statement: str, *parameters: Any) -> str:
    return "\n".join(row[0] for row in storage.database.rows(f"EXPLAIN {statement}", *parameters))


def test_a_batch_is_in_the_partitions_of_its_day(days: Storage) -> None:
    today = time.time_ns() // DAY_NS
    in_days = {0: 0, 1: 1, 2: 10, 3: LATE_DAYS - 1}
    others: dict[int, object] = {
        4: noon(LATE_DAYS + 2), 5: noon(4000), 6: 0, 7: -5, 8: None, 9: noon(-3), 10: noon(-27_000),
        11: 2**63 - 1, 12: time.time_ns() // 1000,
    }  # fmt: skip
    created = {number: noon(ago) for number, ago in in_days.items()} | others
    days.write([sealed(whole(n, at), f"{n}.json") for n, at in created.items()])
    for table in TABLES:
        expected = {n: partition(table, today - ago) for n, ago in in_days.items()}
        expected |= dict.fromkeys(others, f"{table}_other")
        assert tables_of(days, table) == expected
    dated = {*(today - ago for ago in in_days.values()), *range(today, today + AHEAD_DAYS + 1)}
    assert set(partitions(days)) == {
        *(partition(table, day) for table in TABLES for day in dated),
        *(f"{table}_other" for table in TABLES),
    }
    for key, at in days.database.rows('SELECT "batchKey", "createdNs" FROM "TraceBatch"'):
        assert key // KEYS_PER_DAY in (0, at // DAY_NS)
    assert [name for name, _ in stored(days)] == sorted(f"{n}.json" for n in created)


def test_sixty_years_of_times_make_few_partitions(days: Storage) -> None:
    days.write([sealed(whole(n, noon(50 * 365 - n * 61))) for n in range(300)])
    assert len(partitions(days)) <= len(TABLES) * (LATE_DAYS + AHEAD_DAYS + 2)
    assert column(days, 'SELECT COUNT(*) FROM "TraceSpan"') == [300]


def test_a_server_that_cannot_lock_more_partitions(days: Storage) -> None:
    days.write([sealed(whole(1, noon(0)))])
    count = len(partitions(days))
    [most] = column(days, _MOST_DAYS)
    assert most >= LATE_DAYS + AHEAD_DAYS + 1
    days.database.run('INSERT INTO "TraceDay" SELECT n FROM generate_series(1, ?::integer) n', most)
    days.write([sealed(whole(2, noon(7))), sealed(whole(3, noon(0)))])
    today = time.time_ns() // DAY_NS
    assert tables_of(days, "TraceSpan") == {
        1: partition("TraceSpan", today),
        2: "TraceSpan_other",
        3: partition("TraceSpan", today),
    }
    assert len(partitions(days)) == count


def test_a_range_of_times_reads_the_partitions_of_its_days(days: Storage) -> None:
    days.write([sealed(whole(ago, noon(ago))) for ago in range(10)])
    since, until_ns = noon(4), noon(3)
    first, last = since // DAY_NS, until_ns // DAY_NS
    plan = explain(
        days,
        'SELECT * FROM "TraceBatch" WHERE "createdNs" >= ? AND "createdNs" < ?',
        since,
        until_ns,
    )
    read = {partition("TraceBatch", day) for day in (first, last)} | {"TraceBatch_other"}
    assert {name for name in partitions(days) if name in plan} == read
    plan = explain(
        days,
        'SELECT s.* FROM "TraceSpan" s WHERE s."batchKey" >= ? AND s."batchKey" < ?',
        first * KEYS_PER_DAY,
        (last + 1) * KEYS_PER_DAY,
    )
    read = {partition("TraceSpan", day) for day in (first, last)}
    assert {name for name in partitions(days) if name in plan} == read
    assert [name for name, _ in days.batches(Select(since_ns=since, until_ns=until_ns))] == [
        sealed(whole(4, since)).name
    ]


def test_retention_removes_complete_days(days: Storage) -> None:
    batches = [sealed(whole(ago, noon(ago))) for ago in range(8)]
    batches.append(sealed(whole(8, noon(500))))
    days.write(batches)
    before = noon(4) + 1  # the batch of that day is older, but its day has a later part
    assert days.expired(before) == (4, 9)
    assert days.retain(before).batches == 4
    assert days.expired(before) == (0, 5)
    assert sorted(value["created_ns"] for _, value in stored(days)) == [
        noon(ago) for ago in (4, 3, 2, 1, 0)
    ]
    oldest = partition("TraceSpan", noon(4) // DAY_NS)
    assert min(n for n in partitions(days) if n.startswith("TraceSpan_2")) == oldest
    for table in (*TABLES, "TraceName"):
        assert column(days, f'SELECT COUNT(*) FROM "{table}"') == [5]
    assert days.retain(before) == (0, 0)
    # What retention removed is stored again when it comes again, and only that.
    assert days.write(batches).new == 4


def test_retention_waits_for_a_reader_and_no_writer_for_retention(
    days: Storage, postgres_url: str
) -> None:
    days.write([sealed(whole(ago, noon(ago))) for ago in range(6)])
    reading = days.batches()
    first = next(reading)
    removed: list[int] = []

    def remove() -> None:
        with Storage.open(postgres_url) as storage:
            removed.append(storage.retain(noon(2)).batches)

    thread = threading.Thread(target=remove)
    thread.start()
    until(lambda: days.database.rows(WAITS), PATIENCE_S)
    # A batch of today, one that needs a new partition, and one of the day that is being removed.
    for number, ago in ((10, 0), (11, 20), (12, 5)):
        assert days.write([sealed(whole(number, noon(ago)))]).new == 1
    assert tables_of(days, "TraceSpan")[12] == "TraceSpan_other"
    assert removed == []
    assert len([first, *reading]) == 6  # the reader misses nothing
    thread.join()
    # Three days, and the late batch of one of them; the day that was new meanwhile is left.
    assert removed == [4]
    assert days.retain(noon(2)).batches == 1
    assert sorted(value["created_ns"] for _, value in stored(days)) == [
        *(noon(2), noon(1), noon(0), noon(0))
    ]


_RETAIN = """
import sys
from cirron_otel.core.targets.sql.storage import Storage
with Storage.open(sys.argv[1]) as storage:
    print("ready", flush=True)
    print(storage.retain(int(sys.argv[2])), flush=True)
"""


@pytest.mark.parametrize("is_server_left", [True, False], ids=["client", "client and backend"])
def test_a_killed_removal_is_completed_by_the_next_one(
    days: Storage, postgres_url: str, is_server_left: bool
) -> None:
    days.write([sealed(whole(ago, noon(ago))) for ago in range(6)])
    reading = days.batches()
    next(reading)
    remover = python(_RETAIN, postgres_url, str(noon(2)))
    until(lambda: days.database.rows(WAITS), PATIENCE_S)
    remover.kill()
    remover.communicate()
    if not is_server_left:
        terminate = WAITS.replace("1", "pg_terminate_backend(pid)", 1)
        days.database.rows(terminate)
        until(lambda: not days.database.rows(WAITS), PATIENCE_S)
        assert column(days, "SELECT COUNT(*) FROM pg_inherits WHERE inhdetachpending") == [1]
    assert days.write([sealed(whole(20, noon(0)))]).new == 1
    reading.close()
    until(lambda: is_removed(days, noon(2)), PATIENCE_S)
    assert sorted(value["created_ns"] for _, value in stored(days)) == [
        *(noon(2), noon(1), noon(0), noon(0))
    ]
    assert not [n for n in partitions(days) if n < "TraceBatch_2" and n != "TraceBatch_other"]
    left = column(days, 'SELECT "day" FROM "TraceDay" ORDER BY 1')
    assert left[0] == noon(2) // DAY_NS
    tables = column(
        days, "SELECT relname FROM pg_class WHERE relname ~ '^TraceSpan_2' AND relkind = 'r'"
    )
    assert sorted(tables) == [partition("TraceSpan", day) for day in left]


def test_several_that_remove_at_once(days: Storage, postgres_url: str) -> None:
    days.write([sealed(whole(ago, noon(ago))) for ago in range(12)])
    errors: list[BaseException] = []

    def remove() -> None:
        try:
            with Storage.open(postgres_url) as storage:
                storage.retain(noon(2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    days.retain(noon(2))
    assert sorted(value["created_ns"] for _, value in stored(days)) == [noon(2), noon(1), noon(0)]


def test_a_day_that_a_writer_uses_is_left(days: Storage, postgres_url: str) -> None:
    days.write([sealed(whole(ago, noon(ago))) for ago in (7, 6, 0)])
    with Storage.open(postgres_url) as writer, writer.database.transaction():
        assert Days(writer.database).lock({noon(7)}) == {noon(7) // DAY_NS}
        assert days.retain(noon(2)).batches == 1
        assert len(stored(days)) == 2
    assert days.retain(noon(2)).batches == 1
    assert [value["created_ns"] for _, value in stored(days)] == [noon(0)]


def test_several_that_create_the_same_partitions(days: Storage, postgres_url: str) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            with Storage.open(postgres_url) as storage:
                for turn in range(LATE_DAYS):
                    ago = (turn * (number * 2 + 1)) % LATE_DAYS
                    storage.write([sealed(whole(100 + number * 100 + turn, noon(ago)))])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(stored(days)) == 5 * LATE_DAYS
    assert len(partitions(days)) == len(TABLES) * (LATE_DAYS + AHEAD_DAYS + 1)


def test_a_writer_without_the_right_to_create_partitions(days: Storage, postgres_url: str) -> None:
    days.write([sealed(whole(1, noon(0)))])
    run, name = days.database.run, f"writer_{time.time_ns()}"
    run(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'")
    try:
        run(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "{name}"')
        run(f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO "{name}"')
        server = postgres_url.rpartition("@")[2]
        with Storage.open(f"postgresql://{name}:x@{server}") as writer:
            for number, ago in ((2, 0), (3, 7)):
                assert writer.write([sealed(whole(number, noon(ago)))]).new == 1
            is_in = tables_of(days, "TraceSpan")
            # It removes rows, and leaves partitions to their owner.
            assert writer.retain(noon(-1)).batches == 1
            assert len(stored(writer)) == 2
        assert is_in == {
            1: partition("TraceSpan", noon(0) // DAY_NS),
            2: partition("TraceSpan", noon(0) // DAY_NS),
            3: "TraceSpan_other",
        }
        assert days.retain(noon(-1)).batches == 2
    finally:
        run(f'DROP OWNED BY "{name}"')
        run(f'DROP ROLE "{name}"')


def test_a_partition_that_another_program_removed(days: Storage) -> None:
    days.write([sealed(whole(1, noon(5)))])
    for table in TABLES:
        days.database.run(f'DROP TABLE "{partition(table, noon(5) // DAY_NS)}"')
    with pytest.raises(MisconfiguredError, match="delete the day from TraceDay"):
        days.write([sealed(whole(2, noon(5)))])
    days.database.run('DELETE FROM "TraceDay" WHERE "day" = ?', noon(5) // DAY_NS)
    assert days.write([sealed(whole(2, noon(5)))]).new == 1


def test_trace_with_spans_of_several_days_gets_one_trace_id(days: Storage) -> None:
    """Children before and after their parents, in batches of different days."""
    days.write([sealed(made(1, created_ns=noon(6), spans=[span(3, 2)]))])
    days.write([sealed(made(2, created_ns=noon(500), spans=[span(5, 4)]))])
    days.write([sealed(made(3, created_ns=noon(3), spans=[span(2, 1), span(4, 2)]))])
    days.write([sealed(made(4, created_ns=noon(0), spans=[span(6, 3)]))])
    assert set(column(days, 'SELECT "traceId" FROM "TraceSpan"')) == {span_id(1)}
    days.write([sealed(made(5, created_ns=noon(0), spans=[span(1)]))])
    assert set(column(days, 'SELECT "traceId" FROM "TraceSpan"')) == {span_id(1)}
    assert column(days, 'SELECT "spans" FROM "TraceRun"') == [6]
