"""Whether the backwards of a loop without a loader add up, and whether its weights change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .shared import Shared


class Gradients:
    """The gradient and the version of one trained parameter, between two backwards."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._reference: Any = None
        """A weak reference to the parameter; None if none with a gradient is known."""
        self._version = 0
        self._is_first = True
        self.adds = False
        """Whether the backward that runs adds to the gradients of one before it."""

    def backward_begins(self) -> None:
        """Compare the parameter with its state after the last backward."""
        if self._is_first:
            self.adds = False
        elif self._reference is None:
            self.adds = True  # nothing shows that it does not
        else:
            parameter = self._reference()
            self.adds = (
                parameter is not None
                and parameter.grad is not None
                and parameter._version == self._version
            )

    def backward_ended(self) -> None:
        """Note the parameter's state; if it has no gradient, another one is looked for."""
        self._is_first = False
        parameter = self._trained()
        if parameter is None or parameter.grad is None:
            self._reference, self._shared.seeks_parameter = None, True
        else:
            self._reference, self._version = self._shared.parameter, int(parameter._version)

    def have_changed_weights(self) -> bool:
        """Whether the parameter was changed since the last backward."""
        parameter = None if self._reference is None else self._reference()
        return parameter is not None and parameter._version != self._version

    def are_gone(self) -> bool:
        """Whether the model of the last backward is gone."""
        return self._reference is not None and self._reference() is None

    def are_an_optimizers(self) -> bool:
        """Whether an optimizer of `torch.optim` has the parameter."""
        parameter = None if self._reference is None else self._reference()
        return any(
            each is parameter
            for optimizer in self._shared.living_optimizers()
            for group in optimizer.param_groups
            for each in group["params"]
        )

    def forget(self) -> None:
        """An optimizer has stepped: the next backward is the first one."""
        self._reference, self._is_first = None, True

    def _trained(self) -> Any:
        reference = self._shared.parameter
        return None if reference is None else reference()
