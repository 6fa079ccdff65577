"""The section of the figures runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by

_ROW = r" +\d+ ranks x +\d+ units, +\d+ ns a row, +\d+ ns a unit of 5 rows \(.*\), +\d+ MB"


def test_every_figure_is_printed() -> None:
    printed = printed_by("figures")
    assert has_rows(printed, _ROW), printed
    assert printed.count("ns a unit of 5 rows (") == 2
