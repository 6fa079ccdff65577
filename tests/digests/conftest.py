"""Settings of the tests of digests, which tests/conftest.py leaves out if torch is missing."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Other test processes use the machine's other cores."""
    import torch

    torch.set_num_threads(1)
