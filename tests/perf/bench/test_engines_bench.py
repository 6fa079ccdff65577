"""The section of the engines runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("engines")
    for row in (
        "the same figures, to the digit",
        r"plain query +\d+\.\d+ s, CPU +\d+\.\d+ s",
        r"DuckDB +\d+\.\d+ s, CPU +\d+\.\d+ s",
        r"Python +\d+\.\d+ s, CPU +\d+\.\d+ s",
        r"Python / DuckDB +\d+\.\d+ x, CPU +\d+\.\d+ x \(bar at least 10",
        r"DuckDB / plain query +\d+\.\d+ x, CPU +\d+\.\d+ x \(bar 3",
        r"Parquet / \.binpb +\d+\.\d+ x, CPU +\d+\.\d+ x \(bar 1\.5",
        r"peak memory, DuckDB +\d+ MB \(bar 1000",
    ):
        assert has_rows(printed, row), printed
