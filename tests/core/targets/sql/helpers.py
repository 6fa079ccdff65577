"""What the tests of the storage share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cirron_otel import exactjson
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.durations import DAY_NS
from cirron_otel.core.spool.writer import name_of
from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.spools.made import EPOCH_NS, made

ALL_TABLES = (
    "TraceBatch", "TraceSpan", "TraceMark", "TraceSnapshot",
    "TraceUnresolved", "TraceSession", "TraceLoose", "TraceDigest",
)  # fmt: skip

OLD_NS = EPOCH_NS - 400 * DAY_NS
"""Too old for a partition of its own: retention removes such batches one by one."""


def sealed(batch: Any, name: str | None = None) -> SealedBatch:
    """A batch as it stands in a spool."""
    data = exactjson.dumps(batch)
    return SealedBatch(name or name_of(data), data)


def old(number: int, **changes: Any) -> dict[str, Any]:
    """An empty batch, a second later than the one before, the first at OLD_NS."""
    return made(number, created_ns=OLD_NS + number * 10**9, **changes)


def files(paths: Iterable[Path]) -> list[SealedBatch]:
    """Batch files."""
    return [SealedBatch(path.name, path.read_bytes()) for path in paths]


def stored(storage: Storage) -> list[tuple[str, Any]]:
    """What comes back."""
    return [(name, exactjson.loads(data)) for name, data in storage.batches()]


def assert_stored(storage: Storage, batches: Iterable[SealedBatch]) -> None:
    """Those batches, and no others, come back, equal as JSON values, by name."""
    wanted = sorted(((b.name, exactjson.loads(b.data)) for b in batches), key=lambda item: item[0])
    found = stored(storage)
    assert [name for name, _ in found] == [name for name, _ in wanted]
    for (name, value), (_, expected) in zip(found, wanted, strict=True):
        assert exactjson.equal(value, expected), name


def clear(storage: Storage) -> None:
    """Remove everything."""
    for table in ALL_TABLES:
        storage.database.run(f'DELETE FROM "{table}"')


def column(storage: Storage, statement: str, *parameters: Any) -> list[Any]:
    """The first column of what a statement gives."""
    return [row[0] for row in storage.database.rows(statement, *parameters)]
