"""The tracing section prints all its figures; its sizes here mean nothing for times."""

from __future__ import annotations

import pytest

from .printing import has_rows, printed_by

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_cost_and_reported_figure_are_printed_for_each_loop() -> None:
    printed = printed_by("tracing")
    figures = r" +\d+\.\d  tracing costs [+-]\d+\.\d, the report shows \d+\.\d"
    assert has_rows(
        printed, f"a loop with a loader{figures}", f"a loop without a loader{figures}",
        f"a loop of shorter steps{figures}",
        r"  reported / cost: -?\d+\.\d+ \(from 0\.8 to 1\.2", "  findings: ",
    ), printed  # fmt: skip
