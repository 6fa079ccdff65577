"""Values that a framework passes to its loggers, and that its hooks have marked already.

The hooks of a framework mark the values that it logs. A logger of the framework may pass the same
values to a library that is hooked as well, or that marks them itself. Such a library calls
`is_passed_on` and then marks nothing.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from numbers import Real
from typing import Any, Final, Self

TRAINERS: Final = frozenset({
    "keras", "lightning", "lightning_fabric", "pytorch_lightning", "ray", "tensorflow",
    "transformers", "trl",
})  # fmt: skip
"""The packages of frameworks that log values themselves."""
_BETWEEN: Final = frozenset({
    "accelerate", "cirron_otel", "contextlib", "functools", "mlflow", "tensorboard",
    "tensorboardX", "wandb",
})  # fmt: skip
"""Packages whose functions may be on the stack between a logger and the code that logs."""
_TENSORBOARD: Final = "torch.utils.tensorboard"


class _Depth(threading.local):
    def __init__(self) -> None:
        self.value = 0
        self.mappings: tuple[Mapping[str, Any], ...] = ()
        """The values of the open `passing_on` blocks."""


_depth = _Depth()


def is_passed_on() -> bool:
    """Return whether this thread passes values to loggers that are marked already.

    In a `passing_on` block, this is the case if a framework's own code calls the logger.
    """
    return _depth.value > 0 or (bool(_depth.mappings) and _is_called_by_trainer())


def is_passed_on_value(name: str, value: Any) -> bool:
    """Return whether a `passing_on` block has `value` under `name`, or under the name's end.

    `train/loss` is also `loss`, and `eval/loss` is also `eval_loss`.
    """
    for values in _depth.mappings:
        for key in (name, name.rpartition("/")[2], name.replace("/", "_")):
            if key in values and _is_same(values[key], value):
                return True
    return False


def is_number(value: Any) -> bool:
    """Return whether a value can be a mark: a number, or a scalar of numpy or torch."""
    if isinstance(value, (int, float)):
        return True
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) or not callable(getattr(value, "item", None)):
        return False
    return getattr(getattr(value, "dtype", None), "kind", "f") not in "cmMOSU"


class PassedOn:
    """A context in which values are passed to loggers; may be entered again inside itself."""

    __slots__ = ()

    def __enter__(self) -> Self:
        _depth.value += 1
        return self

    def __exit__(self, *_: object) -> None:
        _depth.value -= 1


passed_on = PassedOn()
"""The context, which has no state of its own. The framework's loggers are called in it."""


class passing_on:  # noqa: N801 - used as a function
    """A context in which callbacks get values that are marked already, and may log others.

    A callback of the program may be called in it, which logs values of its own. These are marked.
    """

    __slots__ = ("_before", "_values")

    def __init__(self, values: Any) -> None:
        self._values = values if isinstance(values, Mapping) else {}

    def __enter__(self) -> Self:
        self._before = _depth.mappings
        _depth.mappings = (*self._before, self._values)
        return self

    def __exit__(self, *_: object) -> None:
        _depth.mappings = self._before


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if not isinstance(one, Real) or not isinstance(other, Real):
        return False
    return bool(one == other or (one != one and other != other))


def _is_called_by_trainer() -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package not in _BETWEEN and not module.startswith(_TENSORBOARD):
            return package in TRAINERS
        frame = frame.f_back
    return False
