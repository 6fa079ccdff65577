"""A Trainer of transformers with evaluations and checkpoints, without tracing.

With the argument `profile`, the program calls `cirron_otel.profile()` itself.
"""

import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __init__(self, rows: int) -> None:
        self.rows = torch.randint(32, (rows, 8), generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def train() -> None:
    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir="out", num_train_epochs=2, per_device_train_batch_size=2, logging_steps=1,
            per_device_eval_batch_size=2, eval_strategy="epoch", save_strategy="epoch",
            report_to=[], use_cpu=True, disable_tqdm=True, seed=1, save_total_limit=2,
        ),
        train_dataset=Tokens(8),
        eval_dataset=Tokens(4),
    )  # fmt: skip
    trainer.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "profile" in sys.argv:
        import cirron_otel

        cirron_otel.profile()
    train()
