"""The launcher's section prints all its figures; its sizes here mean nothing for times."""

from __future__ import annotations

from .printing import has_rows, printed_by


def test_every_figure_is_printed() -> None:
    printed = printed_by("launcher")
    assert has_rows(
        printed, r"a step while the launcher is stopped +\d+\.\d µs of CPU time",
        r"CPU of the launcher for a step of the others +\d+\.\d µs",
        r"beside it / while it is stopped: \d\.\d+ ± \d\.\d+, wall \d+\.\d+ \(bar 1\.01",
        r"last words after 200 steps: \d+\.\d+ s, CPU of the launcher \d+\.\d+ s \(bar 3 s",
    ), printed  # fmt: skip
