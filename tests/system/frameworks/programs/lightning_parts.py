"""The model, the data and the Trainer that the programs of Lightning share."""

from __future__ import annotations

import csv
import hashlib
import importlib
import logging
import warnings
from pathlib import Path
from typing import Any

ROWS, VALIDATION_ROWS, BATCH = 6, 4, 2


def lightning(package: str = "lightning.pytorch") -> Any:
    """Return the package, and silence its advice."""
    warnings.filterwarnings("ignore")
    logging.getLogger(package).setLevel(logging.ERROR)
    return importlib.import_module(package)


def data(rows: int = ROWS, seed: int = 2) -> Any:
    """Return labelled examples."""
    import torch
    from torch.utils.data import TensorDataset

    drawn = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(rows, 8, generator=drawn), torch.randint(3, (rows,), generator=drawn)
    )


def loader(rows: int = ROWS, **options: Any) -> Any:
    """Return a loader of labelled examples in batches of two."""
    from torch.utils.data import DataLoader

    return DataLoader(data(rows), **{"batch_size": BATCH, **options})


def classifier(package: str = "lightning.pytorch", **methods: Any) -> Any:
    """Return a LightningModule that classifies; `methods` replace those of its class."""
    import torch
    from torch import nn

    pl = lightning(package)

    class Classifier(pl.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, rate: float = 0.1) -> None:  # noqa: ARG002 - a hyperparameter
            super().__init__()
            self.save_hyperparameters()
            self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 3))

        def loss(self, batch: Any) -> torch.Tensor:
            examples, labels = batch
            return nn.functional.cross_entropy(self.model(examples), labels)

        def training_step(self, batch: Any, _batch_idx: int) -> torch.Tensor:
            loss = self.loss(batch)
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("rows", float(len(batch[0])))
            return loss

        def validation_step(self, batch: Any, _batch_idx: int) -> None:
            self.log("val_loss", self.loss(batch))

        def test_step(self, batch: Any, _batch_idx: int) -> None:  # noqa: PT019 - no test
            self.log("test_loss", self.loss(batch), on_step=True, on_epoch=True)

        def predict_step(self, batch: Any, _batch_idx: int) -> torch.Tensor:
            return self.model(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])

    for name, method in methods.items():
        setattr(Classifier, name, method)
    return Classifier()


def trainer(package: str = "lightning.pytorch", **options: Any) -> Any:
    """Return a Trainer that logs to a file each step, and does nothing else beside training."""
    pl = lightning(package)
    loggers = importlib.import_module(f"{package}.loggers")
    defaults: dict[str, Any] = {
        "max_epochs": 2, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 1,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
        "num_sanity_val_steps": 0, "logger": loggers.CSVLogger("csv", version="0"),
    }  # fmt: skip
    return pl.Trainer(**{**defaults, **options})


def results(module: Any, **others: Any) -> dict[str, Any]:
    """Return the final weights, the values in the files of CSVLogger, and `others`."""
    weights = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        weights.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return {"weights": weights.hexdigest(), "logs": logs(), **others}


def logs(directory: str = "csv") -> list[list[Any]]:
    """Return the names and values in the files of CSVLogger, in order."""
    found = []
    for path in sorted(Path(directory).glob("**/metrics.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                found += [
                    [name, float(value)]
                    for name, value in row.items()
                    if value and name not in ("epoch", "step")
                ]
    return found


def fit(*methods: Any, validates: bool = True, **options: Any) -> dict[str, Any]:
    """Train a classifier, and return its results."""
    module = classifier(**(methods[0] if methods else {}))
    runs = trainer(**options)
    runs.fit(module, loader(), loader(VALIDATION_ROWS) if validates else None)
    return results(module, global_step=runs.global_step)
