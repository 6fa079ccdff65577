"""The section of wrapped estimators runs and prints its figures."""

from __future__ import annotations

import pytest

from tests.conftest import leave_out

from .printing import has_rows, printed_by

pytestmark = pytest.mark.xdist_group("sklearn bench")


def test_every_figure_is_printed() -> None:
    printed = printed_by("sklearn")
    if "cannot be made" in printed:
        leave_out(printed)
    for row in (r"transform", r"fit", r"transform of a pipeline of three, a scope"):
        assert has_rows(printed, rf"{row} +-?\d+\.\d+  \(bare"), printed
    assert "0 scopes dropped, 0 errors" in printed
