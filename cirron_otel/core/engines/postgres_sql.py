"""The compiler of Ibis for PostgreSQL, with what its SQL needs so that figures are equal."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc
from ibis.backends.sql.compilers.postgres import PostgresCompiler
from sqlglot import exp

_ESCAPE: Final = "\x01"
_ESCAPED: Final = (("\x01", "\x01\x02"), ("\x00", "\x01\x01"))
"""Characters and their replacements, in the order of replacing. They keep the order of texts."""


class ExactPostgresCompiler(PostgresCompiler):  # type: ignore[misc]
    """Sums of integers are integers, NULL equals NULL in a join by a hash, and U+0000 is a text."""

    __slots__ = ()
    dialect: ClassVar[Any] = PostgresCompiler.dialect

    def visit_Sum(self, op: Any, *, arg: Any, where: Any) -> Any:  # noqa: N802 - a name of Ibis
        """Return the sum in its type: PostgreSQL adds 64-bit integers to a decimal."""
        return self.cast(super().visit_Sum(op, arg=arg, where=where), op.dtype)

    def visit_WindowFunction(self, op: Any, *, func: Any, **window: Any) -> Any:  # noqa: N802 - a name of Ibis
        """Return a function over a window, in its type."""
        if not isinstance(func, exp.Cast):
            return super().visit_WindowFunction(op, func=func, **window)
        return self.cast(super().visit_WindowFunction(op, func=func.this, **window), op.dtype)

    def visit_IdenticalTo(self, op: Any, *, left: Any, right: Any) -> Any:  # noqa: ARG002, N802 - a name of Ibis
        """Return a comparison of arrays, whose elements are equal also if both are NULL.

        PostgreSQL joins by a hash with `=`, but not with IS NOT DISTINCT FROM.
        """
        sides = (exp.Array(expressions=[each]) for each in (left, right))
        return exp.EQ(this=next(sides), expression=next(sides))

    def visit_NonNullLiteral(self, op: Any, *, value: Any, dtype: Any) -> Any:  # noqa: N802 - a name of Ibis
        """Return a literal, in which text is escaped like the values of columns."""
        if dtype.is_string():
            return self.visit_DefaultLiteral(op, value=escaped(value), dtype=dtype)
        return super().visit_NonNullLiteral(op, value=value, dtype=dtype)


def escaped(text: str) -> str:
    """Return a text without U+0000, which no text of PostgreSQL can contain."""
    for character, replacement in _ESCAPED:
        text = text.replace(character, replacement)
    return text


def escaped_column(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return a column of texts without U+0000; None if it is the same column."""
    if not pa.types.is_string(column.type):
        return None
    if not pc.any(pc.match_substring_regex(column, "[\\x00\\x01]")).as_py():
        return None
    for character, replacement in _ESCAPED:
        column = pc.replace_substring(column, character, replacement)
    return column


def unescaped_column(column: pa.Array) -> pa.Array:
    """Return a column with the originals of escaped texts."""
    if pa.types.is_string(column.type):
        for character, replacement in reversed(_ESCAPED):
            column = pc.replace_substring(column, replacement, character)
    return column
