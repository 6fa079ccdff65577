"""Models, data and trainers that the programs of transformers and TRL share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

TIMES = ("_runtime", "_per_second", "_time", "total_flos")
"""The ends of names of logged values that differ from run to run, or that are not marks."""


def digest(model: Any) -> str:
    """Return the SHA-256 of the values of a model's state."""
    result = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        result.update(name.encode() + tensor.detach().float().numpy().tobytes())
    return result.hexdigest()


def results(trainer: Any, **others: Any) -> dict[str, Any]:
    """Return the final weights and the log history without times; the latter are also the marks."""
    history = [
        {name: value for name, value in row.items() if not name.endswith(TIMES)}
        for row in trainer.state.log_history
    ]
    logs = [
        [name, value]
        for row in history
        for name, value in row.items()
        if name not in ("epoch", "step")
    ]
    return {"logs": logs, "history": history, "weights": digest(trainer.model), **others}


def classifier(*, fails_at: int = 0, error: str = "a bad batch") -> Any:
    """Return a small model that computes its loss itself; its call number `fails_at` raises."""
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
            self.calls = 0

        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
            self.calls += 1
            if self.calls == fails_at:
                raise RuntimeError(error)
            logits = self.layers(x)
            if labels is None:
                return {"logits": logits}
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    return Classifier()


def rows(count: int, seed: int = 2) -> Any:
    """Return a dataset of `count` examples for `classifier`."""
    import torch
    from torch.utils.data import Dataset

    class Rows(Dataset[dict[str, Any]]):
        def __init__(self) -> None:
            drawn = torch.Generator().manual_seed(seed)
            self.x = torch.randn(count, 4, generator=drawn)
            self.labels = torch.randint(3, (count,), generator=drawn)

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": self.x[index], "labels": self.labels[index]}

    return Rows()


def stream(count: int) -> Any:
    """Return the same examples as an iterable without a length."""
    from torch.utils.data import IterableDataset

    class Stream(IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            examples = rows(count)
            return (examples[index] for index in range(count))

    return Stream()


def tokens(count: int) -> Any:
    """Return a dataset of `count` sequences for `language_model`."""
    import torch
    from torch.utils.data import Dataset

    class Tokens(Dataset[dict[str, Any]]):
        def __init__(self) -> None:
            self._rows = torch.randint(32, (count, 8), generator=torch.Generator().manual_seed(2))

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": self._rows[index], "labels": self._rows[index]}

    return Tokens()


def language_model() -> Any:
    """Return a small GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def options(**others: Any) -> dict[str, Any]:
    """Return training arguments: two epochs, batches of two, a log after each step."""
    return {
        "output_dir": "out", "num_train_epochs": 2, "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2, "save_strategy": "no", "logging_steps": 1,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "seed": 1, **others,
    }  # fmt: skip


def trainer_of(kind: Any = None, *, model: Any = None, **others: Any) -> Any:
    """Return a Trainer with six examples to train and four to evaluate.

    Names that Trainer accepts are its arguments, and the others are training arguments.
    """
    from transformers import Trainer, TrainingArguments

    own = ("callbacks", "compute_metrics", "eval_dataset", "optimizers", "train_dataset")
    arguments = {name: others.pop(name) for name in own if name in others}
    if "model_init" in others:
        arguments["model_init"] = others.pop("model_init")
    else:
        arguments["model"] = classifier() if model is None else model
    arguments.setdefault("train_dataset", rows(6))
    arguments.setdefault("eval_dataset", rows(4, seed=3))
    return (kind or Trainer)(args=TrainingArguments(**options(**others)), **arguments)
