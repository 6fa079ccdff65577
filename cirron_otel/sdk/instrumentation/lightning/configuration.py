"""Record the configuration of a run of Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...session.run_details import add_hyperparameters

_SETTINGS = (
    "max_epochs", "min_epochs", "max_steps", "min_steps", "accumulate_grad_batches",
    "gradient_clip_val", "gradient_clip_algorithm", "num_devices", "num_nodes",
    "world_size", "log_every_n_steps", "check_val_every_n_epoch", "val_check_interval",
    "limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches",
    "overfit_batches", "fast_dev_run", "num_sanity_val_steps", "reload_dataloaders_every_n_epochs",
)  # fmt: skip
_PLAIN = (str, int, float, bool)
_SECRET = ("token", "secret", "password", "key")
_DEPTH = 4


def announce(trainer: Any) -> None:
    """Record hyperparameters, the Trainer's settings, and the model's class and size."""
    module = trainer.lightning_module
    settings = {name: getattr(trainer, name, None) for name in _SETTINGS}
    settings["strategy"] = type(trainer.strategy).__name__
    settings["accelerator"] = type(trainer.accelerator).__name__
    add_hyperparameters({
        "model": type(module).__name__,
        **_sizes(module),
        "precision": str(trainer.precision),
        "trainer": _plain(settings),
        **_plain(getattr(trainer.datamodule, "hparams", None) or {}),
        **_plain(getattr(module, "hparams", None) or {}),
    })  # fmt: skip


def _sizes(module: Any) -> dict[str, int]:
    """Return the number of parameters; nothing if some have no size yet."""
    try:
        parameters = list(module.parameters())
        return {
            "parameters": sum(each.numel() for each in parameters),
            "trainable_parameters": sum(each.numel() for each in parameters if each.requires_grad),
        }
    except Exception:  # an uninitialized parameter of a lazy module
        return {}


def _plain(values: Any, depth: int = 0) -> dict[str, Any]:
    """Return a copy of the values that are numbers, texts, lists or mappings of such values.

    Texts whose names suggest a secret are left out.
    """
    kept: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key)
        if isinstance(value, str) and any(word in name.lower() for word in _SECRET):
            continue
        if isinstance(value, _PLAIN):
            kept[name] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(each, _PLAIN) for each in value):
            kept[name] = list(value)
        elif isinstance(value, Mapping) and depth < _DEPTH:
            kept[name] = _plain(value, depth + 1)
    return kept
