"""What the tests of snapshots share; without torch tests/conftest.py leaves them out."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The machine's cores belong to the test processes."""
    import torch

    torch.set_num_threads(1)
