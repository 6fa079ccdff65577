"""The section of Stormlog's recordings runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("stormlog")
    for row in (
        r"samples of the CPU tracker +floor +\d+\.\d+ µs, ours +\d+\.\d+ µs: +\d+\.\d+ x floor",
        r"  and its export beside it +floor",
        r"torchrun, schema 4, phases +floor",
        r"peak memory, segment, +\d+ MB +\d+ MB",
        r"peak memory, array, +\d+ MB +\d+ MB",
    ):
        assert has_rows(printed, row), printed
