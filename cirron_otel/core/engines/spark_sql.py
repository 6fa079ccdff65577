"""The compiler of Ibis for Spark, without the options of a connection by Ibis."""

from __future__ import annotations

from typing import Any, ClassVar

from ibis.backends.sql.compilers.base import SQLGlotCompiler
from ibis.backends.sql.compilers.pyspark import PySparkCompiler
from sqlglot import exp


class ExactSparkCompiler(PySparkCompiler):  # type: ignore[misc]
    """Values that are not a number stay what they are."""

    __slots__ = ()
    dialect: ClassVar[Any] = PySparkCompiler.dialect
    SIMPLE_OPS: ClassVar[dict[Any, str]] = {}
    """The methods of these would replace those below; the others are inherited."""

    def visit_NonNullLiteral(self, op: Any, *, value: Any, dtype: Any) -> Any:  # noqa: N802 - a name of Ibis
        """Return a literal."""
        if dtype.is_floating():
            return self.visit_DefaultLiteral(op, value=value, dtype=dtype)
        return super().visit_NonNullLiteral(op, value=value, dtype=dtype)

    def visit_Hash(self, op: Any, *, arg: Any) -> Any:  # noqa: ARG002, N802 - a name of Ibis
        """Return a hash of 64 bits, NULL for NULL; Ibis has one of 32 bits."""
        return self.if_(arg.is_(exp.null()), exp.null(), self.f.xxhash64(arg))

    visit_Field = SQLGlotCompiler.visit_Field  # noqa: N815 - a name of Ibis
