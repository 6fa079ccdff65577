"""Rows of a relation, collected as columns; large relations are in temporary files."""

from __future__ import annotations

import mmap
import tempfile
from array import array as array_of
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, Any, Final

import numpy as np

from ....errors import TargetError
from ..relations import PART, UNIT, Block
from .errors import NotReducibleError

SCHEMAS: Final[Mapping[str, Iterable[str]]] = {
    "unit": UNIT, "part": PART,
    "unit_mark": ("unit", "name", "inner_eval", "ts_ns", "no", "type", "value"),
    "waiting_mark": (
        "no", "unit", "rank", "name", "ts_ns", "type", "value", "is_eval", "epoch", "has_epoch",
        "around", "levels", "is_listed", "device", "on_scope", "inner_eval",
    ),
    "scope": (
        "id_high", "id_low", "parent_high", "parent_low", "origin_high", "origin_low", "name",
        "idx", "start_ns", "end_ns", "rank", "pid", "thread_id", "error", "flags", "gpu_ns",
        "memory_peak", "device_peak", "reserved_peak", "training",
    ),
    "scope_mark": (
        "scope_high", "scope_low", "id_high", "id_low", "name", "type", "value", "kind", "ts_ns",
        "has_summaries", "is_listed", "device",
    ),
    "scope_snapshot": ("scope_high", "scope_low"),
    "hash": ("hash",),
    "overhead": ("around", "rank", "ns"),
    "series": ("rank", "name", "is_eval", "ts_ns", "no", "epoch", "type", "value"),
    "digested_step": (
        "source", "rank", "unit", "no", "start_ns", "epoch", "number", "turn", "step", "is_cut",
        "is_digested",
    ),
    "digest": (
        "unit", "no", "ts_ns", "quantity", "high", "low", "dtype", "bits_high", "bits_low",
        "is_failed", "file", "position",
    ),
}  # fmt: skip
_AT_ONCE = 1 << 14
_UNSEALED = 1 << 11
"""The maximum number of rows that are Python objects, which take five times the memory."""
_IN_MEMORY = 1 << 22
"""Above this size in bytes, the rows of a relation are in a file."""


class Columns:
    """The rows of one relation, in the order in which they are added."""

    def __init__(self, relation: str) -> None:
        self.names = tuple(SCHEMAS[relation])
        self._values: list[Any] = []
        """The values of the last rows, row by row."""
        self._most_values = _UNSEALED * len(self.names)
        self._arrays: list[np.ndarray] = []
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        self._in_file = self._bytes = 0
        self.count = 0

    def add(self, row: tuple[Any, ...]) -> None:
        """Add a row. Raises NotReducibleError if a value has more than 64 bits."""
        self._values += row
        self.count += 1
        if len(self._values) >= self._most_values:
            self.seal()

    def add_all(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows. Raises NotReducibleError if a value has more than 64 bits."""
        self._values += chain.from_iterable(rows)
        self.count += len(rows)
        if len(self._values) >= self._most_values:
            self.seal()

    def seal(self) -> None:
        """Convert the last rows. Raises NotReducibleError like `add`."""
        if not self._values:
            return
        try:
            numbers = array_of("q", self._values)
        except OverflowError:
            raise NotReducibleError("a number has more than 64 bits") from None
        self._values.clear()
        self.append(np.frombuffer(numbers, np.int64).reshape(-1, len(self.names)))

    def append(self, array: np.ndarray) -> None:
        """Add rows as one array."""
        self._arrays.append(array)
        self._bytes += array.nbytes
        if self._bytes > _IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the columns
            for array in self._arrays:
                array.tofile(self._file)
                self._in_file += len(array)
            self._file.flush()
        except OSError as error:
            reason = error.strerror or str(error)
            raise TargetError(
                f"a temporary file cannot be written: {reason};"
                " free some space, or set TMPDIR to a directory with enough space"
            ) from None
        self._arrays.clear()
        self._bytes = 0

    def table(self) -> Any:
        """Return all rows as one array, which is mapped from a file if it is large."""
        self.seal()
        width = len(self.names)
        if self._file is None:
            if len(self._arrays) != 1:
                self._arrays = [np.concatenate([np.zeros((0, width), np.int64), *self._arrays])]
            return self._arrays[0]
        self._spill()
        if self._map is None or len(self._map) < self._in_file * width * 8:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, np.int64).reshape(self._in_file, width)

    def taken(self, *names: str) -> np.ndarray:
        """Return some columns of all rows, in memory."""
        table, places = self.table(), [self.names.index(name) for name in names]
        found = np.empty((len(table), len(places)), np.int64)
        for first in range(0, len(table), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            for column, place in enumerate(places):
                found[some, column] = table[some, place]
            self.release()
        return found

    def release(self) -> None:
        """Release the memory of the parts of the file that were read; they can be read again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in blocks, as they were added."""
        table = self.table()
        for first in range(0, len(table), _AT_ONCE):
            rows = table[first : first + _AT_ONCE]
            yield {name: rows[:, at] for at, name in enumerate(self.names)}
            self.release()
