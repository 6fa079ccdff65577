"""The SDK's section runs and prints all that it is for; its sizes here say nothing about times."""

from __future__ import annotations

import re

import pytest

from tests.conftest import leave_out

from .printing import has_rows, printed_by

pytestmark = pytest.mark.xdist_group("sdk bench")

NUMBER = r" +\d+\.\d+"
RATIO = rf"{NUMBER}, cpu{NUMBER}"
ROWS = (
    r"stock span" + RATIO,
    r"stock add_event" + RATIO,
    r"scope, depth 1" + NUMBER + RATIO + r" \(bar 0\.18",
    r"scope, depth 4" + NUMBER + RATIO + r" \(bar 0\.18",
    r"mark" + NUMBER + RATIO + r" \(bar 0\.25",
    r"loop iteration, range" + NUMBER + RATIO + r" \(bar 0\.11",
    r"loop iteration, generator" + NUMBER + RATIO + r" \(bar 0\.11",
    r"flush\(\) of 200 into the spool:" + NUMBER + " µs a scope",
    r"collect \+ encode" + NUMBER + r" µs/scope" + RATIO + r" \(bar 4",
    r"100 marks on one span:" + NUMBER + r" µs/mark; 10:" + NUMBER,
    r"scope with an attribute +\d+ B",
    r"peak of a flush, beside them +\d+ B",
    r"cpu_time" + NUMBER + r"  [+-]\d",
    r"memory_peak" + NUMBER + r"  [+-]\d",
    r"no SDK" + NUMBER + " ms",
    r"cirron-otel" + NUMBER + " ms",
)


@pytest.fixture(scope="module")
def printed() -> str:
    return printed_by("sdk")


@pytest.mark.parametrize("row", ROWS)
def test_every_figure_is_printed(printed: str, row: str) -> None:
    assert has_rows(printed, row), printed


def test_nothing_was_dropped_and_nothing_went_wrong(printed: str) -> None:
    line = "dropped by cirron-otel: 0 scopes, 0 marks, 0 batches; 0 errors swallowed"
    assert line in printed


def test_flush_side_prints_its_span_and_mark_counts(printed: str) -> None:
    # 200 scopes: a mark on one in four, and the SDK's own time on each.
    assert "  200 spans, 250 marks, " in printed


def test_cirron_sdk_is_measured_in_the_same_run_if_installed(printed: str) -> None:
    if "without cirron-sdk" in printed:
        leave_out("cirron-sdk cannot be installed here")
    assert "cirron-otel / cirron-sdk, quiet" in printed
    assert re.search(rf"^  cirron-sdk{NUMBER} ms", printed, re.MULTILINE)
