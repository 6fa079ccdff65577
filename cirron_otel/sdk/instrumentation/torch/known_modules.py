"""Modules that were called: whether each is a model or a loss, and which parameter it has."""

from __future__ import annotations

from typing import Any

from ...session.errors import record_error
from .kinds import LOSS, NAMES
from .tensor_references import TensorReference


class Models(dict[int, "KnownModule"]):
    """The modules that were called, by their ids."""

    def __reduce__(self) -> Any:
        return Models, ()


class KnownModule:
    """A module that was called."""

    __slots__ = ("attrs", "is_ahead", "is_loss", "is_metric", "is_proven", "is_usual", "kind",
                 "name", "parameter", "reference", "without_optimizer")  # fmt: skip

    def __init__(self, reference: Any, kind: int, attrs: dict[str, Any], is_metric: bool) -> None:
        self.reference, self.kind, self.attrs = reference, kind, attrs
        self.name, self.is_loss = NAMES[kind], kind == LOSS
        self.is_metric = is_metric
        self.is_usual = self.is_loss and not is_metric
        """Whether a call to the module in a step provides no new information; for a model, whether
        it was trained."""
        self.is_ahead = self.is_proven = False
        """For a module without parameters: `is_ahead` if it is known not to be a loss, `is_proven`
        if it is known to be a loss."""
        self.parameter: TensorReference | None = None
        """A trained parameter of the model."""
        self.without_optimizer: Any = None
        """The number of optimizers when none of them trained the model."""

    def has_parameter(self, parameter: Any) -> bool:
        """Return whether `parameter` is the model's first trained parameter."""
        reference = self.parameter
        return parameter is not None and reference is not None and reference.get() is parameter


def has_parameters(module: Any) -> bool:
    """Return whether a module has a parameter; a module that is not initialized has none."""
    try:
        if not hasattr(module, "_parameters"):
            return False  # its class does not call `super().__init__()`: a transform
        return next(iter(module.parameters()), None) is not None
    except Exception as error:
        record_error("torch", error)
        return True  # no loss has such parameters


def is_torchmetric(module: Any) -> bool:
    """Return whether `module` is a metric of torchmetrics, which is not imported for this."""
    return any(each.__module__.startswith("torchmetrics.") for each in type(module).__mro__)
