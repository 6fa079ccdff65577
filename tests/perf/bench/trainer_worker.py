"""One process of the trainers' benchmark: it trains a small model with a trainer, or without one.

Run as a file by any interpreter that has torch and the trainer:
`trainer_worker.py MODULE PROGRAM OPTIONS`. MODULE is the package of the tool (`cirron_otel` or
`cirron`), PROGRAM one of PROGRAMS, and OPTIONS a JSON object of keyword arguments for the tool's
`profile`. Each line of standard input is a JSON object: `{"traced": true, "steps": 400}` trains one
run, with the tool on or off, and is answered by a line with the run's µs per step.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LINEAR_LAYERS, WIDTH, BATCH = 13, 64, 8
"""The sizes of the torch benchmark's model and batches."""
WARM_STEPS = 40
"""Steps at the start of each run that do not count."""

Stamp = Callable[[], None]
"""Called at the end of each step."""


class Rows(Dataset[dict[str, torch.Tensor]]):
    """A regression's data, in the form that a Trainer's default collator expects."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._x = torch.randn(rows, WIDTH, generator=generator)
        self._y = torch.randn(rows, 1, generator=generator)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self._x[index], "labels": self._y[index]}


class Model(nn.Module):
    """The network of the torch benchmark, which returns its loss as a model of transformers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(LINEAR_LAYERS - 1):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTH, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        predicted = self.layers(x)
        return {"loss": nn.functional.mse_loss(predicted, labels), "predicted": predicted}


def _collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def written_out(steps: int, stamp: Stamp) -> None:
    """The same training without a trainer: one epoch of a plain loop."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))
    loader = DataLoader(Rows(steps * BATCH), BATCH, shuffle=True, collate_fn=_collate)
    model.train()
    for batch in loader:
        moved = {name: tensor.to("cpu") for name, tensor in batch.items()}
        loss = model(**moved)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        stamp()


def transformers(steps: int, stamp: Stamp) -> None:
    """The Trainer of transformers, with its default clipping and scheduler."""
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    class Stamps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamp()

    trainer = Trainer(
        model=Model(),
        args=TrainingArguments(
            output_dir="out", num_train_epochs=1, per_device_train_batch_size=BATCH, optim="sgd",
            save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
            logging_strategy="no", dataloader_pin_memory=False,
        ),
        data_collator=_collate,
        train_dataset=Rows(steps * BATCH),
        callbacks=[Stamps()],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def lightning(steps: int, stamp: Stamp) -> None:
    """Lightning's Trainer, with the clipping and the scheduler of the others."""
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 1 - step / (steps + 1)
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    class Stamps(pl.Callback):
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            stamp()

    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", gradient_clip_val=1.0, logger=False, callbacks=[Stamps()],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(Rows(steps * BATCH), BATCH, shuffle=True, collate_fn=_collate)
    trainer.fit(Module(), loader)


PROGRAMS: dict[str, Callable[[int, Stamp], None]] = {
    "written out": written_out,
    "transformers": transformers,
    "lightning": lightning,
}


def run(tool: Any, program: str, steps: int, options: dict[str, Any] | None) -> dict[str, float]:
    """Train once; return the µs per step by the thread's CPU time and by the wall clock.

    `options` are those of `profile`; None trains without the tool.
    """
    if options is not None:
        tool.profile(**options)
    gc.collect()
    cpu: list[int] = []
    wall: list[int] = []
    thread_time, perf_counter = time.thread_time_ns, time.perf_counter_ns

    def stamp() -> None:
        cpu.append(thread_time())
        wall.append(perf_counter())

    PROGRAMS[program](WARM_STEPS + steps, stamp)
    lost = 0
    if options is not None:
        lost = sum(count for name, count in tool.health().items() if name.endswith("_count"))
        tool.shutdown()
    figures = {
        name: (stamps[-1] - stamps[-1 - steps]) / steps / 1e3
        for name, stamps in (("thread", cpu), ("wall", wall))
    }
    return figures | {"lost": lost}


def main(module: str, program: str, options_json: str) -> None:
    """Serve until the end of the input."""
    options: dict[str, Any] = json.loads(options_json)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in ("cirron", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    tool = importlib.import_module(module)
    for line in sys.stdin:
        asked = json.loads(line)
        figures = run(tool, program, asked["steps"], options if asked["traced"] else None)
        print(json.dumps(figures), file=replies, flush=True)
    os._exit(0)  # the tool has been closed, and torch takes a second to be torn down


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
