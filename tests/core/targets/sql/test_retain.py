"""Retention removes what is old, with all its rows, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.spools.made import (
    EPOCH_NS,
    made,
    mark,
    snapshot,
    span,
)

from .helpers import (
    ALL_TABLES,
    OLD_NS,
    column,
    old,
    sealed,
)

SECOND = 10**9


def counts(storage: Storage) -> list[int]:
    return [column(storage, f'SELECT COUNT(*) FROM "{table}"')[0] for table in ALL_TABLES[:4]]


def test_batches_go_with_all_their_rows(storage: Storage) -> None:
    storage.write(
        [
            sealed(old(n, spans=[span(n), span(n)], marks=[mark(n, n)], snapshots=[snapshot(n, n)]))
            for n in range(10)
        ]
    )
    assert storage.retain(OLD_NS + 4 * SECOND) == (4, 16)
    assert counts(storage) == [6, 12, 6, 6]
    assert column(storage, 'SELECT MIN("createdNs") FROM "TraceBatch"') == [OLD_NS + 4 * SECOND]
    assert storage.retain(OLD_NS + 4 * SECOND) == (0, 0)


def test_more_than_go_in_one_transaction(storage: Storage) -> None:
    storage.write([sealed(old(n, spans=[span(n)])) for n in range(450)])
    assert storage.retain(OLD_NS + 440 * SECOND) == (440, 440)
    assert counts(storage) == [10, 10, 0, 0]


ODD: dict[str, object] = {
    "zero": 0, "negative": -5, "none": None, "text": "x", "in µs": time.time_ns() // 1000,
    "in s": time.time_ns() // 10**9, "in a year": time.time_ns() + 400 * 86_400 * SECOND,
}  # fmt: skip


@pytest.mark.parametrize("created", ODD.values(), ids=ODD)
def test_batch_with_an_invalid_time_is_aged_from_when_it_was_stored(
    storage: Storage, created: object
) -> None:
    before = time.time_ns()
    storage.write([sealed(made(1, created_ns=created), "1.json")])
    assert storage.retain(before).batches == 0
    assert storage.retain(time.time_ns() + SECOND).batches == 1


def test_a_sqlite_file_gets_smaller(tmp_path: Path) -> None:
    with Storage.open(f"sqlite:///{tmp_path}/storage.sqlite") as storage:
        storage.write([sealed(made(n, spans=[span(n, name="x" * 50_000)])) for n in range(40)])
        [before] = column(storage, "PRAGMA page_count")
        storage.retain(EPOCH_NS + 100 * SECOND)
        [after] = column(storage, "PRAGMA page_count")
        assert after < before / 4
