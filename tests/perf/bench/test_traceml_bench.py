"""The section of TraceML's frames runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("traceml")
    for row in (
        r"a frame for 50 steps +ours +\d+\.\d+ µs, its aggregator +\d+\.\d+ µs: +\d+\.\d+ x it",
        r"a frame for each step +ours +",
        r"recorded by 0\.5\.0 +ours +",
    ):
        assert has_rows(printed, row), printed
