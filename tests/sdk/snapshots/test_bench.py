"""The section of `make bench` runs and prints all that it is for; its sizes say nothing here."""

from __future__ import annotations

import re

import pytest

from tests.perf.bench import snapshots


def test_every_figure_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    snapshots.section(snapshots.TINY)
    printed = capsys.readouterr().out
    number = r" +\d+\.\d"
    assert re.search(r"^snapshot statistics of [\d,]+ parameters in 145 tensors", printed)
    for threads in ("1 thread ", "2 threads"):
        row = rf"^  {threads} +plain loop{number} ms   cirron-otel{number} ms   ratio{number}"
        assert re.search(row, printed, re.MULTILINE), printed
    assert re.search(rf"beside the model:{number} MB", printed)
