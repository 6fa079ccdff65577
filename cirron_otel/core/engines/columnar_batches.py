"""The batches of a directory of tables in the order of a spool, of which some must be expanded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Final, NamedTuple

from ...errors import InputError
from ..columns.layout import BatchGroup
from ..columns.reading import ColumnsReader, named_apart
from ..columns.store import EXPECTED
from ..records.columns import name_of_column
from ..records.problems import ReadingProblem
from ..spool.reader import BatchFile

_AT_ONCE: Final = 64


class ColumnarBatch(NamedTuple):
    """A batch in the tables."""

    name: str
    """The name of its file in a spool."""
    key: str
    group: BatchGroup


class ColumnarBatches:
    """The batches of a directory of tables, in the order of their names, as in a spool."""

    def __init__(self, directory: Path, sizes: Mapping[str, int] | None = None) -> None:
        """`sizes` has the names and the sizes of the batches to read; None for all.

        Raises InputError if the directory has no tables, or if they cannot be read.
        """
        self._reader = ColumnsReader(directory)
        self.directory = directory
        self._sizes = sizes
        self._ahead: dict[int, BatchFile] = {}
        self._files: dict[str, list[str]] = {}
        self.repeated: list[tuple[str, str]] = []
        """The name of a group's file and the key, for each batch that an earlier group has."""
        self.groups = self._reader.groups()
        self.batches = sorted(self._all(), key=lambda batch: batch.name)
        self._places = {batch.name: number for number, batch in enumerate(self.batches)}

    def files(self, table: str) -> list[str]:
        """Return the files of a table that count; at least one, which may be without rows.

        Raises InputError if one is missing.
        """
        if table not in self._files:
            self._files[table] = list(self._present(table))
        if not self._files[table]:
            raise InputError(f"{self.directory} has no table {table}: {EXPECTED}")
        return self._files[table]

    def _present(self, table: str) -> Iterator[str]:
        for group in self.groups:
            path = self.directory / table / group.path
            if path.exists():
                yield str(path)
            else:
                self._reader.check_absent(table, group)

    def contents(self, numbers: Iterable[int]) -> Iterator[tuple[int, BatchFile]]:
        """Yield the batches with these numbers, which are positions in `batches`, in their order.

        Raises InputError if one is damaged.
        """
        for _, some in groupby(numbers, key=lambda number: self.batches[number].group):
            while chunk := list(islice(some, _AT_ONCE)):
                yield from self._read(chunk).items()

    def content(self, number: int) -> BatchFile:
        """Return the batch with a number, and read ahead. Raises InputError if one is damaged."""
        if number not in self._ahead:
            group = self.batches[number].group
            following = range(number, min(number + _AT_ONCE, len(self.batches)))
            self._ahead = self._read([n for n in following if self.batches[n].group == group])
        return self._ahead[number]

    def read_all(self, names: Iterable[str]) -> Iterator[BatchFile]:
        """Yield the batches with some names, group by group. Raises InputError like `contents`."""
        numbers = [self._places[name] for name in names if name in self._places]
        numbers.sort(key=lambda number: (self.batches[number].group, number))
        for _, batch in self.contents(numbers):
            yield batch

    def _read(self, numbers: list[int]) -> dict[int, BatchFile]:
        """Return batches of one group by their numbers."""
        group = self.batches[numbers[0]].group
        keys = frozenset(self.batches[number].key for number in numbers)
        contents: dict[str, bytes] = {}
        for each in self._reader.batches(group, keys):
            if isinstance(each, ReadingProblem):
                raise InputError(f"{each.path} in {each.name} is damaged: {each.message}")
            contents[each.key] = each.data
        if contents.keys() != keys:
            raise InputError(f"the tables in {self.directory} have changed: run the command again")
        return {
            number: BatchFile(batch.name, self.directory, contents[batch.key])
            for number in numbers
            for batch in (self.batches[number],)
        }

    def _all(self) -> Iterator[ColumnarBatch]:
        names: set[str] = set()
        seen: set[str] = set()
        for group in self.groups:
            for key, column, size in self._reader.headers(group):
                name = name_of_column(column)
                if key in seen:
                    self.repeated.append((group.file, key))
                    continue
                seen.add(key)
                is_wanted = self._sizes is None or self._sizes.get(name) == size
                if is_wanted:
                    name = named_apart(name, key) if name in names else name
                    names.add(name)
                    yield ColumnarBatch(name, key, group)
