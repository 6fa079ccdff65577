"""The relations that an analysis starts from, and the interface of the engines that compute it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, TypeAlias

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
    "origin": "string",
}  # fmt: skip
"""The columns of a span, as in the index of `core/analysis`. `no` orders the spans."""
MARK: Final[Schema] = {
    "no": "int64", "id": "string", "span": "string", "name": "string", "kind": "string",
    "ts_ns": "int64", "device": "string", "text": "string", "number": "float64",
    "integer": "int64", "flag": "boolean", "is_summarised": "boolean",
}  # fmt: skip
"""The columns of a mark. At most one of `text`, `number`, `integer` and `flag` is not null: the
value. `is_summarised` is whether its batch contains summaries of steps."""
PLACES: Final = 1 << 24
"""The number of places in a batch: `no` is the number of the batch times this, plus the place."""


class SqlEngine(ABC):
    """A connection to an SQL engine, with the relations `span` and `mark`.

    Methods raise InputError if the engine cannot read the relations, and TargetError if it has too
    little disk space.
    """

    dialect: ClassVar[str]
    """The name of the engine's dialect in Ibis."""
    create: ClassVar[str] = "CREATE TEMPORARY TABLE"

    def __init__(self) -> None:
        self.span: Table = ibis.table(SPAN, name="span")
        self.mark: Table = ibis.table(MARK, name="mark")
        self._stored = 0

    def store(self, expression: Table) -> Table:
        """Compute a table expression into a temporary table, and return that table."""
        self._stored += 1
        name = f"part_{self._stored}"
        schema = expression.schema()
        self.execute(f"{self.create} {name} AS {self.sql(expression)}")
        return ibis.table(schema, name=name)

    def count(self, expression: Table) -> int:
        """Return the number of rows."""
        [(count,)] = self.rows(expression.aggregate(count=expression.count()))
        return int(count)

    def sql(self, expression: Table) -> str:
        """Return the SQL of an expression."""
        return str(ibis.to_sql(expression, dialect=self.dialect, pretty=False))

    @abstractmethod
    def execute(self, statement: str) -> None:
        """Run a statement."""

    @abstractmethod
    def rows(self, expression: Table) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of an expression, in its order."""
