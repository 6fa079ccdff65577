"""What the tests of the tables share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cirron_otel import exactjson
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.packed import arrow_rows, pack, unpack
from cirron_otel.core.columns.reading import ColumnsReader, StoredBatch
from cirron_otel.core.columns.writing import ColumnsWriter, WriterLimits
from tests.spool.made import encoded, made, mark, snapshot, span

TINY = WriterLimits(group_bytes=8_000, open_bytes=20_000, row_group_rows=2)
"""Limits with which rare paths are the usual ones."""


def add(
    directory: Path | str, files: Iterable[tuple[str, bytes]], limits: WriterLimits = TINY
) -> int:
    """Add batch files; return how many were new."""
    with ColumnsWriter(directory, limits) as writer:
        return sum(writer.add(unpack(pack(arrow_rows(rows_of(*file))))) for file in files)


def stored(directory: Path | str) -> list[tuple[str, bytes]]:
    """The batches of a directory, by name."""
    reader = ColumnsReader(directory)
    found = []
    for group in reader.groups():
        for batch in reader.batches(group):
            assert isinstance(batch, StoredBatch), batch
            found.append((batch.name, batch.data))
    return sorted(found)


def assert_stored(directory: Path | str, files: Iterable[tuple[str, bytes]]) -> None:
    """Those batches, and no others, come back, equal as JSON values."""
    wanted = sorted(files)
    found = stored(directory)
    assert [name for name, _ in found] == [name for name, _ in wanted]
    for (name, data), (_, expected) in zip(found, wanted, strict=True):
        assert exactjson.equal(exactjson.loads(data), exactjson.loads(expected)), name


def of_run(number: int, run: Any = "r", records: int = 3, **changes: Any) -> tuple[str, bytes]:
    """A batch of some records, of a run, on the day of that number."""
    first = number * 100
    batch = made(
        number * 86_400,
        spans=[
            span(n, first, attrs={"mode": "train", "n": n}) for n in range(first, first + records)
        ],
        marks=[mark(n, first) for n in range(first, first + records)],
        snapshots=[snapshot(first, first)],
        otel={"session": f"{number:032x}", "resource": {"attributes": {"cirron.run.id": run}}},
    )
    batch |= changes
    return f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch)


def visible(directory: Path) -> list[Path]:
    """The files that a query of the tables finds."""
    return [path for path in directory.glob("*/run=*/**/*") if path.is_file()]
