"""The section of the figures runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("figures")
    assert has_rows(printed, r" +\d+ ranks x +\d+ units, +\d+ ns a row \(.*\), +\d+ MB"), printed
    assert printed.count("ns a row (") == 2
