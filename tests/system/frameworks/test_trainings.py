"""Two calls of a trainer are two trainings if their optimizers have no parameter in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cirron_otel as ci
from tests.sdk.instrumentation.torch.one_session import recorded

from .programs import lightning_parts, transformers_parts

Fit = Callable[[], object]


@pytest.fixture(autouse=True)
def _closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    ci.shutdown()


def lightning() -> Fit:
    """Return a function that trains a new model for three steps."""
    pytest.importorskip("lightning")
    module = lightning_parts.classifier()
    return lambda: lightning_parts.trainer(max_epochs=1).fit(module, lightning_parts.loader())


def transformers() -> Fit:
    pytest.importorskip("transformers")
    model = transformers_parts.classifier()
    return lambda: transformers_parts.trainer_of(model=model, max_steps=3).train()


def accelerate() -> Fit:
    package = pytest.importorskip("accelerate")
    import torch

    model = torch.nn.Linear(8, 3)

    def fit() -> None:
        accelerator = package.Accelerator(cpu=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prepared, optimizer, loader = accelerator.prepare(
            model, optimizer, lightning_parts.loader()
        )
        for examples, labels in loader:
            accelerator.backward(torch.nn.functional.cross_entropy(prepared(examples), labels))
            optimizer.step()
            optimizer.zero_grad()

    return fit


@pytest.mark.parametrize("trainer", [lightning, transformers, accelerate])
def test_each_model_is_a_training(trainer: Callable[[], Fit], tmp_path: Path) -> None:
    first, second = trainer(), trainer()

    def program() -> None:
        for fit in (first, second, second):
            fit()

    spool = recorded(tmp_path / "run", program, flush_interval=60)
    steps = [span for span in spool.spans if span["name"] == "step"]
    steps.sort(key=lambda step: int(step["start_ns"]))
    assert [step["attrs"].get("training") for step in steps] == [None] * 3 + [1] * 6
    assert [mark["value"] for mark in spool.marks if mark["name"] == "training"] == [1]
