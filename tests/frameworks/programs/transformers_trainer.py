"""Programs that train with the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from tests.frameworks import program

EVALUATION = """
    eval[{0}]
      data_load
      forward
      data_load
      forward"""
STEPS = """
  epoch[{0}]
    step[0-2]
      data_load
      forward
      backward
      optimizer_step"""


def _train(**options: Any) -> dict[str, Any]:
    import torch
    from torch.utils.data import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Tokens(Dataset[dict[str, torch.Tensor]]):
        def __init__(self, rows: int) -> None:
            self._rows = torch.randint(32, (rows, 8), generator=torch.Generator().manual_seed(2))

        def __len__(self) -> int:
            return len(self._rows)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"input_ids": self._rows[index], "labels": self._rows[index]}

    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    defaults: dict[str, Any] = {
        "output_dir": "out", "num_train_epochs": 2, "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2, "save_strategy": "no", "logging_steps": 1,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "seed": 1,
    }  # fmt: skip
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(**{**defaults, **options}),
        train_dataset=Tokens(6),
        eval_dataset=Tokens(4),
    )
    trainer.train()
    names = ("loss", "grad_norm", "learning_rate", "eval_loss")
    history = trainer.state.log_history
    logs = [[name, row[name]] for row in history for name in names if name in row]
    return {"logs": logs}


@program("cirron.session" + "".join(STEPS.format(n) + EVALUATION.format(n) for n in range(2)))
def evaluates_after_each_epoch() -> dict[str, Any]:
    """A language model that is evaluated after each epoch."""
    return _train(eval_strategy="epoch")
