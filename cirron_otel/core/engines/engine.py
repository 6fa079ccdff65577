"""The relations that an analysis starts from, and the interface of the engines that compute it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from decimal import Decimal
from importlib import import_module
from typing import Any, ClassVar, Final, Self, TypeAlias

import ibis

Table: TypeAlias = Any
"""A table expression of Ibis."""
Schema: TypeAlias = Mapping[str, str]

SPAN: Final[Schema] = {
    "no": "int64", "position": "int64", "id": "string", "parent": "string", "name": "string",
    "idx": "string",
    "start_ns": "int64", "end_ns": "int64", "pid": "int64", "rank": "int64", "thread_id": "int64",
    "error": "string", "gpu_ns": "int64", "memory_peak": "int64", "device_peak": "int64",
    "reserved_peak": "int64", "is_peak_sampled": "boolean", "phases_are_sums": "boolean",
    "training": "int64", "origin": "string",
}  # fmt: skip
"""The columns of a span, as in the index of `core/analysis`. `no` orders the spans."""
MARK: Final[Schema] = {
    "no": "int64", "id": "string", "span": "string", "name": "string", "kind": "string",
    "ts_ns": "int64", "device": "string", "text": "string", "number": "float64",
    "integer": "int64", "flag": "boolean", "is_summarised": "boolean", "is_string": "boolean",
}  # fmt: skip
"""The columns of a mark. At most one of `text`, `number`, `integer` and `flag` is not null: the
value. `is_summarised` is whether its batch contains summaries of steps, `is_string` whether `text`
is a string."""
REPEATED: Final[Schema] = {"file": "string", "batch_key": "string"}
"""The columns of batches that an earlier group has: the name of a group's file, and the key."""
PLACE: Final[Schema] = {"batch_key": "string", "number": "int64"}
"""The columns of `place`: the batches whose records the tables have, and their numbers."""
_AT_ONCE: Final = 10_000
PLACES: Final = 1 << 24
"""The number of places in a batch: `no` is the number of the batch times this, plus the place."""


class SqlEngine(ABC):
    """A connection to an SQL engine, with the relations `span` and `mark`.

    A subclass creates these two relations, and provides `dialect`, `create`, `record_batches` and
    `close`; everything else is shared.

    A context manager that closes it. Methods raise InputError if the engine cannot read the
    relations, TargetError if it has too little disk space, EndpointError if a server fails, and
    NeedsPythonError if the engine cannot represent a record.
    """

    dialect: ClassVar[str]
    """The name of the engine's compiler in Ibis."""

    def __init__(self) -> None:
        self.span: Table = ibis.table(SPAN, name="span")
        self.mark: Table = ibis.table(MARK, name="mark")
        self._stored = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def store(self, expression: Table) -> Table:
        """Compute a table expression into a temporary table, and return that table."""
        self._stored += 1
        name = f"part_{self._stored}"
        schema = expression.schema()
        self.create(name, self.sql(expression))
        return ibis.table(schema, name=name)

    def count(self, expression: Table) -> int:
        """Return the number of rows."""
        [(count,)] = self.rows(expression.aggregate(count=expression.count()))
        return int(count)

    def sql(self, expression: Table) -> str:
        """Return the SQL of an expression."""
        compiler = self.compiler()
        return str(compiler.to_sqlglot(expression).sql(dialect=compiler.dialect))

    def compiler(self) -> Any:
        """Return the compiler of Ibis, which needs no driver."""
        return import_module(f"ibis.backends.sql.compilers.{self.dialect}").compiler

    @abstractmethod
    def create(self, name: str, query: str) -> None:
        """Create a temporary table from a query."""

    def rows(self, expression: Table) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an expression, in its order. There are few."""
        return self.streamed(expression)

    def streamed(self, expression: Table) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an expression, in its order, of which there may be many."""
        for batch in self.record_batches(expression, _AT_ONCE):
            yield from zip(*map(_values, batch.columns), strict=True)

    @abstractmethod
    def record_batches(self, expression: Table, size: int) -> Iterator[Any]:
        """Yield the rows of an expression, in its order, as Arrow record batches of about `size`.

        Several expressions can be read at the same time.
        """

    @abstractmethod
    def close(self) -> None:
        """Drop the relations and the temporary tables, and close the connection."""


def _values(column: Any) -> list[Any]:
    """Return the values of a column; DuckDB's sums of integers are decimals, here integers."""
    values: list[Any] = column.to_pylist()
    if isinstance(next((each for each in values if each is not None), None), Decimal):
        return [None if each is None else int(each) for each in values]
    return values
