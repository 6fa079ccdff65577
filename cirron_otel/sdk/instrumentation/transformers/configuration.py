"""Record the Trainer's arguments and its model as the configuration of the run."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

from ...session.errors import record_error
from ...session.run_details import add_hyperparameters
from .loop import NAME

IMPORTANT = (
    "learning_rate", "per_device_train_batch_size", "per_device_eval_batch_size",
    "gradient_accumulation_steps", "num_train_epochs", "max_steps", "bf16", "fp16", "seed", "optim",
    "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "torch_compile",
)  # fmt: skip
"""The arguments that are recorded even if they have their default values."""
_SECRET = ("token", "secret", "password", "key")
_PLAIN = (bool, int, float, str)


def record_configuration(trainer: Any) -> None:
    """Record arguments that differ from their defaults, and the model. Raises nothing."""
    try:
        add_hyperparameters(_arguments(trainer.args) | _model(trainer))
    except Exception as error:
        record_error(NAME, error)


def _arguments(arguments: Any) -> dict[str, Any]:
    recorded = {}
    for field in dataclasses.fields(arguments):
        value = _plain(getattr(arguments, field.name, None))
        is_secret = any(word in field.name for word in _SECRET) and isinstance(value, str)
        if value is None or is_secret:
            continue
        if field.name in IMPORTANT or value != _plain(_default(field)):
            recorded[field.name] = value
    return recorded


def _default(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    factory = field.default_factory
    return None if factory is dataclasses.MISSING else factory()


def _plain(value: Any) -> Any:
    """Return an argument's value as a number, a text, or a list or dict of these."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()} or None
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value] or None
    return value if value is None or isinstance(value, _PLAIN) else str(value)


def _model(trainer: Any) -> dict[str, Any]:
    model = trainer.model
    recorded: dict[str, Any] = {"class": type(getattr(model, "_orig_mod", model)).__name__}
    counts = [0, 0]
    for parameter in model.parameters():
        count = int(getattr(parameter, "ds_numel", 0) or parameter.numel())
        counts[0] += count
        counts[1] += count if parameter.requires_grad else 0
    recorded["parameters"], recorded["trainable_parameters"] = counts
    precision = getattr(getattr(trainer, "accelerator", None), "mixed_precision", None)
    dtype = next((str(each.dtype) for each in model.parameters()), "").removeprefix("torch.")
    return {"model": recorded, "precision": dtype if precision in (None, "no") else precision}
