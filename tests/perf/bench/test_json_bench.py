"""The section of OTLP/JSON runs and prints its figures."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("json")
    for load in ("attributes on marks and phases", "bare marks and phases"):
        for writer in ("compact", "with spaces", "indented", "with an escaped colon"):
            figures = r"\d+\.\d+ µs, +\d+\.\d+ x floor, repeated keys +\d+\.\d%"
            assert has_rows(printed, rf"{load}, {writer} +{figures}"), printed
