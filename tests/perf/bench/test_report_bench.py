"""The section of `report` runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("report", "--big")
    row = r" +\d,\d{3} spans, this tree +\d+\.\d+ s, CPU +\d+\.\d+ s, +\d+\.\d µs a span"
    assert has_rows(printed, row), printed
    assert printed.count("µs a span") == 3
