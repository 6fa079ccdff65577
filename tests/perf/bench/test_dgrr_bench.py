"""The section of DGRR traces runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("dgrr")
    for row in (
        r"a training +floor +\d+\.\d+ µs, ours +\d+\.\d+ µs: +\d+\.\d+ x floor",
        r"peak memory, verify, +\d+\.\d MB +\d+ MB",
        r"peak memory, compare, +\d+\.\d MB +\d+ MB",
    ):
        assert has_rows(printed, row), printed
