"""Tests that share a costly fixture run in one process, even if many processes run the tests."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("alone")
def test_xdist_group_is_retained_in_the_test_id(request: pytest.FixtureRequest) -> None:
    """pytest-xdist appends the group to a test's id; some versions of pytest remove it again."""
    is_one_of_many = "PYTEST_XDIST_WORKER" in os.environ
    assert request.node.nodeid.endswith("@alone") is is_one_of_many
