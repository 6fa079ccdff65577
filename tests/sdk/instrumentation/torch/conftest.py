"""Fixtures that the tests of torch share: one thread, and the oldest torch."""

from __future__ import annotations

import pytest

from tests.conftest import leave_out

from .environments import OLDEST


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The machine's cores belong to the test processes."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def oldest_torch() -> None:
    """Leave the test out where the oldest torch is not installed."""
    if not OLDEST.is_made:
        leave_out(f"{OLDEST.name} is not installed: run `make torch-oldest`")
