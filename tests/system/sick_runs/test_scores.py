"""The findings about simulated runs are at least as good as the expected outcomes."""

from __future__ import annotations

from . import bar
from .scored import analysis


def test_no_family_is_worse_than_expected() -> None:
    """`python -m tests.system.sick_runs --write-bar` writes the outcomes that are expected."""
    assert not bar.worse(bar.read_bar(), bar.scores(analysis()))
