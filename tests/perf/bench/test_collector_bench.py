"""The collector's section runs and prints all that it is for; its sizes say nothing about times."""

from __future__ import annotations

import platform
import re

import pytest

from tests.conftest import leave_out

from .printing import has_rows, printed_by

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("collector bench")]
COST = r" +\d+\.\d+ +\d+\.\d +\d+\.\d +\d+   refused: \d+"
FIGURES = r" +[\d,]+ +[\d,]+" + COST
NUMBER = r" +\d+\.\d+ µs of CPU a span"
ROWS = (
    r"cirron-otel" + FIGURES,
    r"  of which receive: \d+\.\d+ µs a span",
    r"  of which translate, seal: \d+\.\d+ µs a span",
    r"  measuring a request before it is parsed" + NUMBER,
    r"  parsing it" + NUMBER,
    r"  parsing it, and the rows of its spans" + NUMBER,
    r"  all that, and the text of the batch" + NUMBER,
    r"  sealing the batch" + NUMBER,
)
BESIDE = (
    r"otelcol, file exporter" + FIGURES,
    r"otelcol, fsynced queue +[\d,]+ +nowhere" + COST,
    r"acknowledged a second beside the fsynced queue: \d+\.\d+ \(bar: at least 2",
    r"CPU a span beside the file exporter: \d+\.\d+ \(bar: at most 3",
)


@pytest.fixture(scope="module")
def printed() -> str:
    return printed_by("collector")


def test_output_names_the_python_version(printed: str) -> None:
    assert printed.startswith(f"Python {platform.python_version()} ")


@pytest.mark.parametrize("row", ROWS)
def test_every_figure_is_printed(printed: str, row: str) -> None:
    assert has_rows(printed, row), printed


def test_figures_cover_identical_and_varied_spans(printed: str) -> None:
    loads = re.findall(
        r"^collector, requests of 500 (\w+) spans over gRPC, 2 at once$", printed, re.M
    )
    assert loads == ["alike", "varied"], printed
    assert len(re.findall(r"^  cirron-otel" + FIGURES, printed, re.M)) == 2, printed


@pytest.mark.parametrize("row", BESIDE)
def test_collector_is_compared_with_otelcol(printed: str, row: str) -> None:
    if "without otelcol" in printed:
        leave_out("there is no otelcol here to be measured beside: make backends")
    assert has_rows(printed, row), printed
