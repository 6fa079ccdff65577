"""The Trainer of Lightning, its sanity check of the validation included."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from .program import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    EVALUATION_BATCHES,
    Arguments,
    labelled,
    run,
    small_model,
)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = small_model()
        self.losses: list[float] = []

    def _loss(self, batch: Any) -> torch.Tensor:
        examples, labels = batch
        loss = nn.functional.cross_entropy(self.model(examples), labels)
        self.losses.append(loss.item())
        return loss

    def training_step(self, batch: Any, _batch_idx: int) -> torch.Tensor:
        return self._loss(batch)

    def validation_step(self, batch: Any, _batch_idx: int) -> None:
        self._loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def train(arguments: Arguments) -> tuple[list[float], nn.Module]:
    # It advises more workers and more logging.
    warnings.filterwarnings("ignore", module="lightning")
    module = Classifier()
    with tempfile.TemporaryDirectory() as directory:
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=1,
            accumulate_grad_batches=arguments.accumulate,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=directory,
        )
        kinds: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": arguments.workers}
        trainer.fit(
            module,
            DataLoader(labelled(BATCHES, seed=2), shuffle=True, **kinds),
            DataLoader(labelled(EVALUATION_BATCHES, seed=3), **kinds),
        )
    return module.losses, module


if __name__ == "__main__":
    run(train)
