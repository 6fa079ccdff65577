"""The Trainer of transformers, with a GPT-2 of one layer made on the spot."""

from __future__ import annotations

import os
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", WANDB_DISABLED="true")

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from .program import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    EVALUATION_BATCHES,
    Arguments,
    run,
)


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """So many batches of texts of 8 tokens."""

    def __init__(self, batches: int, seed: int) -> None:
        drawn = torch.Generator().manual_seed(seed)
        self._rows = torch.randint(32, (batches * BATCH_SIZE, 8), generator=drawn)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


def train(arguments: Arguments) -> tuple[list[float], nn.Module]:
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=32,
            n_positions=8,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=directory,
                num_train_epochs=EPOCHS,
                per_device_train_batch_size=BATCH_SIZE,
                per_device_eval_batch_size=BATCH_SIZE,
                gradient_accumulation_steps=arguments.accumulate,
                dataloader_num_workers=arguments.workers,
                eval_strategy="epoch",
                save_strategy="no",
                logging_strategy="steps",
                logging_steps=1,
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                seed=1,
            ),
            train_dataset=Tokens(BATCHES, seed=2),
            eval_dataset=Tokens(EVALUATION_BATCHES, seed=3),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    logged = trainer.state.log_history
    losses = [
        float(entry[key]) for entry in logged for key in ("loss", "eval_loss") if key in entry
    ]
    return losses, model


if __name__ == "__main__":
    run(train)
