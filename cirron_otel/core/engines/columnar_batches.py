"""The batches of a directory of tables in the order of a spool, of which some must be expanded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ..columns.layout import BatchGroup
from ..columns.reading import ColumnsReader, named_apart
from ..records.columns import name_of_column
from ..records.findings import Finding
from ..spool.reader import BatchFile


class ColumnarBatch(NamedTuple):
    """A batch in the tables."""

    name: str
    """The name of its file in a spool."""
    key: str
    group: BatchGroup


class ColumnarBatches:
    """The batches of a directory of tables, in the order of their names, as in a spool."""

    def __init__(self, directory: Path) -> None:
        """Raises InputError if the directory has no tables, or if they cannot be read."""
        self._reader = ColumnsReader(directory)
        self.directory = directory
        self.groups = self._reader.groups()
        self.batches = sorted(self._all(), key=lambda batch: batch.name)
        self._places = {batch.name: number for number, batch in enumerate(self.batches)}

    def files(self, table: str) -> list[str]:
        """Return the files of a table that count; at least one, which may be without rows."""
        paths = (self.directory / table / group.path for group in self.groups)
        return [str(path) for path in paths if path.exists()]

    def contents(self, numbers: list[int]) -> Iterator[tuple[int, BatchFile]]:
        """Yield the batches with these numbers, which are positions in `batches`, in their order.

        Raises InputError if one is damaged.
        """
        for number in numbers:
            yield number, self._content(self.batches[number])

    def read(self, name: str, *, check: bool = True) -> BatchFile | None:  # noqa: ARG002
        """Return a batch by the name of its file; None if there is none. All batches are valid."""
        number = self._places.get(name)
        return None if number is None else self._content(self.batches[number])

    def _content(self, batch: ColumnarBatch) -> BatchFile:
        for each in self._reader.batches(batch.group, frozenset((batch.key,))):
            if isinstance(each, Finding):
                raise InputError(f"{each.path} in {each.name} is damaged: {each.message}")
            return BatchFile(batch.name, self.directory, each.data)
        raise InputError(f"the tables in {self.directory} have changed: run the command again")

    def _all(self) -> Iterator[ColumnarBatch]:
        names: set[str] = set()
        keys: set[str] = set()
        for group in self.groups:
            for key, column in self._reader.keys(group):
                if key not in keys:
                    keys.add(key)
                    name = name_of_column(column)
                    name = named_apart(name, key) if name in names else name
                    names.add(name)
                    yield ColumnarBatch(name, key, group)
