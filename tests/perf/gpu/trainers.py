"""Checks of values that are marked without a wait, and of a trainer's steps on the device."""

from __future__ import annotations

import importlib.util
import tempfile
from typing import Any

import torch
from torch import Tensor, nn

from .loops import Training
from .machine import (
    Machine,
    Unavailable,
    expect,
    gpu_ms,
    traced,
)

LOSS_MARK = "loss"


def loss_marks(machine: Machine) -> None:
    """With `mark_loss`, the host does not wait, and the marks are the losses of the steps."""
    steps = machine.size(8, 2)
    training = Training(machine, 64, 1, busy_ms=machine.size(50, 1))
    training.run(2)
    training.losses.clear()
    with traced(mark_loss=True) as session:
        training.run(2)
        host, device = machine.race(lambda: training.run(steps))
    marked = [
        mark["value"]
        for batch in session.batches
        for mark in batch["marks"]
        if mark["name"] == LOSS_MARK
    ]
    machine.figures.update({"host_ms": host, "device_ms": device, "marks": len(marked)})
    expect(marked == training.told(), f"marked are {marked}, not {training.told()}")
    if machine.is_gpu:
        expect(host < device / 2, f"the host took {host} ms of the device's {device} ms")


class _Rows(torch.utils.data.Dataset[Any]):
    """Rows of ones, as transformers' Trainer reads them."""

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((self.width,), 1.0 + index / self.rows)}


class _Regression(nn.Module):
    """A model that returns its loss, as transformers' models do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.layers(x).square().mean()}


def trainer(machine: Machine) -> None:
    """The steps of transformers' Trainer have the device's time, and compute the same."""
    if importlib.util.find_spec("transformers") is None:
        raise Unavailable("the Trainer cannot be imported", lacks="transformers")
    from transformers import Trainer, TrainingArguments

    steps, width = 6, machine.size(1024, 8)

    def train() -> list[float]:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as directory:
            arguments = TrainingArguments(
                directory, max_steps=steps, per_device_train_batch_size=4, logging_steps=1,
                gradient_accumulation_steps=2, report_to=[], save_strategy="no",
                use_cpu=not machine.is_gpu, bf16=machine.is_gpu, disable_tqdm=True,
            )  # fmt: skip
            running = Trainer(_Regression(width), arguments, train_dataset=_Rows(64, width))
            running.train()
            return [each["loss"] for each in running.state.log_history if "loss" in each]

    expected = train()
    with traced(frameworks=["torch", "transformers"]) as session:
        found = train()
    recorded = session.find("step")
    machine.figures.update({"steps": len(recorded), "last_loss": found[-1]})
    expect(found == expected, f"the losses are {found}, not {expected}")
    expect(len(recorded) == steps, f"{len(recorded)} steps")
    if machine.is_gpu:
        for name, number in (("step", steps), ("forward", 2 * steps), ("backward", 2 * steps)):
            known = [gpu_ms(node) for node in session.find(name)]
            expect(len(known) == number, f"{len(known)} scopes {name}")
            expect(None not in known, f"{name} without the device's time: {known}")
