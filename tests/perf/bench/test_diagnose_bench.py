"""The section of `diagnose` runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("diagnose")
    for row in (
        r"report +\d+\.\d+ µs, diagnose +\d+\.\d+ µs: +\d+\.\d+ x report",
        r"peak memory, 400 steps +\d+ MB: +\d+\.\d+ x that of half as many",
    ):
        assert has_rows(printed, row), printed
