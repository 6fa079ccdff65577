"""The columnar tables of a spool in the user's cache, to which each report adds what is new.

The cache of a spool may be removed at any time; the next report builds it again.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ...errors import InputError
from ..columns.batch_rows import rows_of
from ..columns.packed import arrow_rows
from ..columns.reading import ColumnsReader
from ..columns.schema import BATCHES
from ..columns.writing import ColumnsWriter
from ..records.columns import name_of_column
from ..spool.reader import OnProgress, SpoolReader
from .columnar_batches import ColumnarBatches
from .unsupported import NeedsPythonError

_DIGITS: Final = 32


def cache_of(spool: Path) -> Path:
    """Return the directory of a spool's tables, which need not exist."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(os.fsencode(os.path.realpath(spool))).hexdigest()[:_DIGITS]
    return caches / "cirron-otel" / "columns" / name


def cached_batches(reader: SpoolReader, on_progress: OnProgress | None = None) -> ColumnarBatches:
    """Add the new batches of a spool to its cache, and return those that are in both.

    `on_progress` is called for each new batch. Several processes may call this at the same time:
    one of them writes, and the others wait.
    Files that cannot be read are reported by the reader, as in every pass over a spool. Raises
    TargetError if the cache cannot be written, InputError if it is damaged, and NeedsPythonError if
    it cannot store a batch.
    """
    directory = cache_of(reader.paths.spool)
    sizes = dict(_sizes(reader))
    if not (directory / BATCHES).is_dir() or _missing(directory, sizes):
        with ColumnsWriter(directory, wait_s=math.inf) as writer:
            missing = _missing(directory, sizes)
            for done, name in enumerate(missing):
                if on_progress is not None:
                    on_progress(done, len(missing))
                if (batch := reader.read(name)) is not None:
                    try:
                        writer.add(arrow_rows(rows_of(batch.name, batch.data)))
                    except InputError as error:
                        raise NeedsPythonError(f"{batch.name}: {error}") from None
    return ColumnarBatches(directory, sizes)


def _sizes(reader: SpoolReader) -> Iterator[tuple[str, int]]:
    for name in reader.names():
        try:
            size = (reader.paths.spool / name).stat().st_size
        except OSError:  # evicted, or a link to a missing file, which `read` reports
            size = -1
        yield name, size


def _missing(directory: Path, sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the batches that are not in the cache."""
    stored: set[tuple[str, int]] = set()
    if (directory / BATCHES).is_dir():
        columns = ColumnsReader(directory)
        for group in columns.groups():
            stored.update((name_of_column(name), size) for _, name, size in columns.headers(group))
    return [name for name, size in sizes.items() if (name, size) not in stored]
