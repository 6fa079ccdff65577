"""What shares a costly fixture runs in one process, however many run the tests."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("alone")
def test_groups_are_kept(request: pytest.FixtureRequest) -> None:
    """pytest-xdist tells a group by the end of a test's id; some versions of pytest undo that."""
    is_one_of_many = "PYTEST_XDIST_WORKER" in os.environ
    assert request.node.nodeid.endswith("@alone") is is_one_of_many
