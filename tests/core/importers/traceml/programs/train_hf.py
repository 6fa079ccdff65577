"""A Hugging Face Trainer with TraceML's callback: `train_hf.py STEPS` writes losses to LOSSES."""

import json
import os
import sys
from pathlib import Path

import torch
from traceml_ai.integrations.huggingface import TraceMLTrainerCallback, init
from transformers import Trainer, TrainingArguments

STEPS = int(sys.argv[1])


class Network(torch.nn.Module):
    """A linear model that returns its loss, as the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(output, labels), "logits": output}


def main() -> None:
    """Train, and write the losses."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    init()
    rows = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(4 * STEPS)]
    arguments = TrainingArguments(
        output_dir="trainer", max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        model=Network(), args=arguments, train_dataset=rows, callbacks=[TraceMLTrainerCallback()]
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    Path(os.environ["LOSSES"]).write_text(json.dumps([float(loss) for loss in losses]))


if __name__ == "__main__":
    main()
