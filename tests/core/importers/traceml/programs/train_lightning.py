"""A Lightning Trainer with TraceML's callback: `train_lightning.py STEPS` writes its LOSSES."""

import json
import os
import sys
from pathlib import Path

import lightning.pytorch as pl
import torch
from traceml_ai.integrations.lightning import TraceMLCallback, init

STEPS = int(sys.argv[1])
losses: list[float] = []


class Network(pl.LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    """Train, and write the losses."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    init()
    items = torch.utils.data.TensorDataset(torch.randn(4 * STEPS, 8), torch.randn(4 * STEPS, 1))
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[TraceMLCallback()],
    )  # fmt: skip
    trainer.fit(Network(), torch.utils.data.DataLoader(items, batch_size=4))
    Path(os.environ["LOSSES"]).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
