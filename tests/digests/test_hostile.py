"""Programs with objects of their own: digests call none of their methods, and raise nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import cirron_otel as ci

from .loops import traced
from .reading import Digest, digests


def _train(directory: Path | None, *, collate: Any = None, steps: int = 4) -> list[float]:
    """Train on batches of four rows; without a directory, without a session."""
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows = torch.randn(4 * steps, 8)
    losses = []

    def loop() -> None:
        for batch in DataLoader(rows, 4, collate_fn=collate):
            inputs = batch if isinstance(batch, torch.Tensor) else batch["x"]
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    if directory is None:
        loop()
    else:
        with traced(directory, digest="tensors"):
            loop()
    return losses


def _of(directory: Path, quantity: str) -> list[Digest]:
    return [each for each in digests(directory) if each.mark.quantity == quantity]


@pytest.fixture
def _numpy_state() -> Any:
    generator = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(generator)


@pytest.mark.usefixtures("_numpy_state")
@pytest.mark.parametrize("kind", [np.random.Philox, np.random.PCG64, np.random.MT19937])
def test_any_bit_generator_of_numpy(kind: Any, tmp_path: Path) -> None:
    losses = _train(None)
    np.random.set_bit_generator(kind(1))
    assert _train(tmp_path / "a") == losses
    assert ci.health()["swallowed_errors"] == {}
    np.random.set_bit_generator(kind(1))
    with traced(tmp_path / "b", digest="tensors"):
        weight = torch.ones(3, requires_grad=True)
        for batch in DataLoader(torch.randn(8, 3), 2):
            np.random.random()
            (weight * batch).sum().backward()
            torch.optim.SGD([weight], 0.1).step()
    states = [each.tensors["numpy"].digest for each in _of(tmp_path / "b", "rng")]
    assert len(set(states)) == len(states) == 4


def test_a_generator_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = _train(None)

    def fail() -> Any:
        raise OSError("no state")

    monkeypatch.setattr(random, "getstate", fail)
    assert _train(tmp_path) == losses
    assert len(_of(tmp_path, "batch")) == 4
    for each in _of(tmp_path, "rng"):
        assert each.mark.failed == "python: OSError: no state"
        assert list(each.tensors)[-1] == "torch"
