"""Record the configuration of a `fit`: the model, the optimizer and the precision."""

from __future__ import annotations

from typing import Any

from ...session.errors import record_error
from ...session.run_details import add_hyperparameters


def record_configuration(handler: Any) -> None:
    """Record the model and the arguments of a `fit` when its training begins. Raises nothing.

    `handler` is its `CallbackList`.
    """
    try:
        model, params = handler._model, handler.params or {}
        found: dict[str, Any] = {"model": type(model).__name__}
        for name in ("epochs", "steps"):
            if isinstance(params.get(name), int):
                found[name] = params[name]
        if getattr(model, "built", False):
            found["parameters"] = int(model.count_params())
        policy = getattr(model, "dtype_policy", None)
        if policy is not None:
            found["precision"] = str(policy.name)
        for name in ("jit_compile", "run_eagerly", "steps_per_execution"):
            value = getattr(model, name, None)
            if isinstance(value, (bool, int, str)):
                found[name] = value
        add_hyperparameters(found | _optimizer(getattr(model, "optimizer", None)))
    except Exception as error:
        record_error("keras", error)


def _optimizer(optimizer: Any) -> dict[str, Any]:
    if optimizer is None:
        return {}
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    found: dict[str, Any] = {"optimizer": type(inner).__name__}
    rate: Any = getattr(inner, "_learning_rate", None)
    if hasattr(rate, "get_config"):
        found["learning_rate"] = type(rate).__name__
    elif hasattr(rate, "numpy"):
        found["learning_rate"] = float(rate.numpy())
    accumulation = getattr(inner, "gradient_accumulation_steps", None)
    if accumulation:
        found["gradient_accumulation_steps"] = int(accumulation)
    return found
