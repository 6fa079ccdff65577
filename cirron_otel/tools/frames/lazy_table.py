"""A table that is read when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ...core.analysis.runs import table
from ...core.columns.extra import require
from ...errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_MOST_SHOWN: Final = 20


class LazyTable:
    """One table of a recording. It is read when it is first used, and then kept in memory.

    Libraries that read Arrow data, such as DuckDB, accept it as it is (`__arrow_c_stream__`).
    """

    def __init__(self, name: str, read: Callable[[], pa.Table]) -> None:
        """`read` returns the rows; it is called at most once."""
        self.name = name
        self._read = read
        self._table: pa.Table | None = None

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`.

        Raises MissingExtraError without pyarrow, and the errors of reading the recording.
        """
        if self._table is None:
            require()
            self._table = self._read()
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a `pandas.DataFrame` with columns of `pandas.ArrowDtype`.

        So integers stay integers if some are missing, and a missing value differs from NaN. Raises
        UsageError without pandas, and the errors of `to_arrow`.
        """
        pandas = _package("pandas", "to_pandas()")
        frame: pd.DataFrame = self.to_arrow().to_pandas(types_mapper=pandas.ArrowDtype)
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a `polars.DataFrame`.

        Raises UsageError without Polars, and the errors of `to_arrow`.
        """
        polars = _package("polars", "to_polars()")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        """Return the rows through Arrow's interface of capsules."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        size = "not read yet" if self._table is None else f"{self._table.num_rows:,} rows"
        return f"<{type(self).__name__} {self.name}: {size}>"

    def _repr_html_(self) -> str:
        """Return the first rows for a notebook."""
        rows = self.to_arrow()
        shown = rows.slice(0, _MOST_SHOWN).to_pylist()
        text = table(
            rows.column_names,
            (["" if each is None else str(each) for each in row.values()] for row in shown),
        )
        more = rows.num_rows - len(shown)
        return text + (f"<p>and {more:,} more rows</p>" if more else "")


def _package(name: str, feature: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name != name:
            raise UsageError(f"{name} cannot be imported: {error}") from error
        raise UsageError(f"{feature} needs {name}: run `pip install {name}`") from None
