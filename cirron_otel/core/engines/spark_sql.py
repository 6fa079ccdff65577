"""The compiler of Ibis for Spark, without the options of a connection by Ibis."""

from __future__ import annotations

from typing import Any, ClassVar

from ibis.backends.sql.compilers.base import SQLGlotCompiler
from ibis.backends.sql.compilers.pyspark import PySparkCompiler


class ExactSparkCompiler(PySparkCompiler):  # type: ignore[misc]
    """Values that are not a number stay what they are."""

    __slots__ = ()
    dialect: ClassVar[Any] = PySparkCompiler.dialect

    visit_Field = SQLGlotCompiler.visit_Field  # noqa: N815 - a name of Ibis
