"""What the tests of the tables share."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cirron_otel import exactjson
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.packed import arrow_rows, pack, unpack
from cirron_otel.core.columns.reading import ColumnsReader, StoredBatch
from cirron_otel.core.columns.writing import ColumnsWriter, WriterLimits
from tests.kit.spools.made import (
    encoded,
    made,
    mark,
    snapshot,
    span,
)

TINY = WriterLimits(group_bytes=8_000, open_bytes=20_000, row_group_rows=2)
"""Limits with which rare paths are the usual ones."""

# Merges the groups of each partition, and is killed before it removes the first of them.
_MERGE_AND_DIE = """
import os, signal, sys
from itertools import groupby
from cirron_otel.core.columns import compaction
from cirron_otel.core.columns.layout import EMPTY_GROUP
from cirron_otel.core.columns.places import open_tables
store = open_tables(sys.argv[1])
groups = sorted(group for group in store.groups("batches") if group != EMPTY_GROUP)
[(partition, [first, *others])] = [(p, list(g)) for p, g in groupby(groups, lambda g: g.partition)]
compaction.remove_groups = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
compaction.merge(store, others, 1 << 30)
"""


def add(
    directory: Path | str, files: Iterable[tuple[str, bytes]], limits: WriterLimits = TINY
) -> int:
    """Add batch files; return how many were new."""
    with ColumnsWriter(directory, limits) as writer:
        return sum(writer.add(unpack(pack(arrow_rows(rows_of(*file))))) for file in files)


def add_with_killed_compaction(directory: Path, files: list[tuple[str, bytes]]) -> None:
    """Add each file of a partition as a group, and merge all groups but one.

    The process is killed when the merged group is complete: each of its batches is in two groups.
    """
    for file in files:
        add(directory, [file])
    merging = subprocess.run([sys.executable, "-c", _MERGE_AND_DIE, directory], check=False)
    assert merging.returncode == -signal.SIGKILL
    reader = ColumnsReader(directory)
    keys = [key for group in reader.groups() for key, _ in reader.keys(group)]
    assert (len(keys), len(set(keys))) == (2 * len(files) - 1, len(files))


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


def flip_bit(path: Path, column: str) -> None:
    """Change a bit of a column's pages, so that a reader without checksums reads other values."""
    data = path.read_bytes()
    with pq.ParquetFile(path) as file:
        values = file.read(columns=[column])
        group = file.metadata.row_group(0)
    chunks = map(group.column, range(group.num_columns))
    [chunk] = [each for each in chunks if each.path_in_schema == column]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    for place in reversed(range(start, start + chunk.total_compressed_size)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            if _changes(bytes(changed), column, values):
                path.write_bytes(changed)
                return
    raise AssertionError("no bit that changes values")


def _changes(data: bytes, column: str, values: pa.Table) -> bool:
    try:
        read = pq.read_table(pa.BufferReader(data), columns=[column])
    except (pa.ArrowException, OSError, ValueError):
        return False
    return read.num_rows == values.num_rows and not read.equals(values)
