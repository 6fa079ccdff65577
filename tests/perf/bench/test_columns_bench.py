"""The section of the columnar tables runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("columns")
    for row in (
        r"wall time, --jobs 2 +OTLP +\d+\.\d+ µs, Parquet +\d+\.\d+ µs a span: \d+\.\d+ x",
        r"CPU time, --jobs 1 +OTLP +\d+\.\d+ µs, Parquet +\d+\.\d+ µs a span: \d+\.\d+ x",
        r"CPU time, nothing to add, --jobs 1 +\d+\.\d+ µs a span",
        r"CPU time, back to a spool +\d+\.\d+ µs a span",
        r"peak memory, writing, +\d+ MB +\d+ MB",
        r"peak memory, reading, +\d+ MB +\d+ MB",
    ):
        assert has_rows(printed, row), printed
