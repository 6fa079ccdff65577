"""The section of `make bench` about digests runs and prints every figure, whatever it is."""

from __future__ import annotations

import re

import pytest

from tests.conftest import need_torch

from . import digest_cost


def test_every_figure_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    need_torch()
    digest_cost.section(digest_cost.TINY)
    printed = capsys.readouterr().out
    number = r" +\d+\.\d"
    assert re.search(r"^digests of the weights and gradients of 1,000 parameters in 20", printed)
    for threads in ("1 thread ", "2 threads"):
        row = rf"^  {threads} +_foreach_norm{number} ms   digests{number} ms   ratio{number}"
        assert re.search(row, printed, re.MULTILINE), printed
    assert re.search(rf"beside the tensors:{number} MB", printed)
