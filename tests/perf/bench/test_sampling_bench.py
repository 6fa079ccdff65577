"""The sampling section prints all its figures; its sizes here mean nothing for times."""

from __future__ import annotations

import pytest

from tests.conftest import leave_out

from .printing import has_rows, printed_by
from .sampling_cost import bar

pytestmark = [pytest.mark.slow]
ADDED = r" +[+-]\d+\.\d µs \([+-]\d+\.\d in its own thread\)"


@pytest.fixture(scope="module")
def printed() -> str:
    return printed_by("sampling")


def test_each_interval_is_measured(printed: str) -> None:
    assert has_rows(
        printed, r"a step without a tool +\d+\.\d µs", f"cirron-otel, traced{ADDED}",
        f"cirron-otel, sampled{ADDED}", f"cirron-otel, sampled often{ADDED}",
        r"sampled / traced: \d\.\d+ ± \d\.\d+ \(bar 1\.01", r"one sample: \d+ µs",
    ), printed  # fmt: skip


def test_the_neighbour_is_measured_in_the_same_run(printed: str) -> None:
    if "without stormlog" in printed:
        leave_out("stormlog cannot be installed here")
    rows = (
        f"stormlog 0.3.9, 20 Hz{ADDED}",
        r"cirron-otel / stormlog at 20 Hz: -?\d+\.\d+ \(bar 0\.1",
    )
    assert has_rows(printed, *rows), printed


@pytest.mark.parametrize(("ratio", "end"), [(0.09, "(bar 0.1)"), (0.11, "(bar 0.1, ABOVE)")])
def test_ratio_exceeding_its_bar_is_marked(ratio: float, end: str) -> None:
    assert bar(ratio, 0.1) == end
