"""Settings of the tests of digests, which tests/conftest.py leaves out if torch is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Recorded = Callable[..., Path]
"""A function of the name of a loop and of a variant, which is `again`, `scaled` or a plain run."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Other test processes use the machine's other cores."""
    import torch

    torch.set_num_threads(1)


def _scale(model: Any, *_: Any) -> None:
    next(model.parameters()).grad.mul_(2)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Return the recording of a loop, which is made once: also repeated, or with a fault."""
    import cirron_otel as ci

    from .loops import LOOPS, Loop, traced

    found: dict[tuple[str, str], Path] = {}

    def recorded(name: str, variant: str = "first") -> Path:
        key = name, variant
        if key not in found:
            folder = tmp_path_factory.mktemp(f"{name}-{variant}")
            loop = Loop(_scale, "backward") if variant == "scaled" else Loop()
            with traced(folder, digest="tensors"):
                LOOPS[name](loop)
            assert ci.health()["swallowed_errors"] == {}
            found[key] = folder
        return found[key]

    return recorded
