"""Detect gradient accumulation and changes of the weights in a loop without a loader."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from ...snapshots.unseen import unseen
from .tensor_references import TensorReference

if TYPE_CHECKING:
    from .torch_state import TorchState

_ELEMENTS = 1_024
"""Number of elements of a gradient that are read first."""
_PART = 1_048_576
"""Number of further elements that are read at a time."""


class Gradients:
    """Tracks the gradient and the version of one trained parameter between two backward passes.

    Each thread tracks a parameter of a model that it calls itself. Torch crashes if one thread
    reads a gradient while another replaces it.
    """

    def __init__(self, torch_state: TorchState) -> None:
        self._torch_state = torch_state
        self.parameter: TensorReference | None = None
        """A trained parameter of the thread's model."""
        self.seeks_parameter = False
        """Whether to find a trained parameter in backward passes, because no model provided one."""
        self._reference: TensorReference | None = None
        """The parameter; None if no parameter with a gradient is known."""
        self._version = self._gradient_version = 0
        self._is_first = True
        self._was_zero = True
        """Whether the gradient was zero at the end of the backward pass, or was not read."""
        self.accumulates_gradients = False
        """Whether the current backward pass adds to the gradients of an earlier one."""

    def watch(self, reference: TensorReference | None) -> None:
        """Track a parameter from the next backward pass on."""
        self.parameter = self._torch_state.parameter = reference

    def version(self) -> int | None:
        """Return how often the parameter was changed; None if no parameter is known."""
        parameter = self._trained()
        if parameter is None:
            return None
        with self._torch_state.unseen():
            return int(parameter._version)

    def backward_begins(self) -> None:
        """Compare the parameter with its state after the last backward pass."""
        if self._is_first:
            self.accumulates_gradients = False
        elif self._reference is None:
            self.accumulates_gradients = True  # no evidence to the contrary
        else:
            parameter = self._reference.get()
            with self._torch_state.unseen():
                self.accumulates_gradients = (
                    parameter is not None
                    and parameter._version == self._version
                    and (self._is_shared(parameter) or parameter.grad is not None)
                )

    def backward_ended(self, *, is_read: bool = False) -> None:
        """Record the parameter's state. If it has no gradient, look for another parameter.

        With `is_read`, a gradient on the CPU is read, so that `are_removed` detects a removal that
        does not change its version.
        """
        self._is_first = False
        parameter = self._trained()
        with self._torch_state.unseen():
            is_shared = parameter is not None and self._is_shared(parameter)
            gradient = None if parameter is None or is_shared else parameter.grad
            if gradient is None and not is_shared:
                self._reference, self.seeks_parameter = None, True
                return
            self._reference, self._version = self.parameter, int(parameter._version)
            if gradient is not None:
                self._gradient_version = int(gradient._version)
                self._was_zero = not (is_read and _can_read(gradient)) or _is_zero(gradient)

    def have_changed_weights(self) -> bool:
        """Return whether the parameter has changed since the last backward pass."""
        parameter = None if self._reference is None else self._reference.get()
        with self._torch_state.unseen():
            return parameter is not None and parameter._version != self._version

    def are_removed(self) -> bool:
        """Return whether the gradient was set to None or to zero since the last backward pass.

        Its version is the same if it was changed through `.data`; a gradient on a device is not
        read, because that would wait for the device.
        """
        parameter = None if self._reference is None else self._reference.get()
        if parameter is None or self._is_shared(parameter):
            return False
        with self._torch_state.unseen():
            gradient = parameter.grad
            if gradient is None:
                return True
            is_same = gradient._version == self._gradient_version
            if (is_same and self._was_zero) or not _can_read(gradient):
                return False
            return _is_zero(gradient)

    def are_gone(self) -> bool:
        """Return whether the model of the last backward pass has been freed."""
        return self._reference is not None and self._reference.get() is None

    def are_an_optimizers(self) -> bool:
        """Return whether an optimizer of `torch.optim` contains the parameter."""
        parameter = None if self._reference is None else self._reference.get()
        return parameter is not None and self._torch_state.is_optimized(parameter)

    def forget(self) -> None:
        """Start over: after an optimizer step, the next backward pass is the first one."""
        self._reference, self._is_first = None, True

    def _trained(self) -> Any:
        return None if self.parameter is None else self.parameter.get()

    def _is_shared(self, parameter: Any) -> bool:
        """Return whether another thread trains the parameter too, and may replace its gradient."""
        torch_state = self._torch_state
        return torch_state.gate.is_shared and any(
            each.backwards and each.gradients is not self and each.gradients._trained() is parameter
            for each in list(torch_state.trackers)
        )


def _can_read(gradient: Any) -> bool:
    """Return whether a gradient is a plain tensor on the CPU.

    Reading others may wait for a device or for other ranks, and a fake one has no values.
    """
    return (
        gradient.device.type == "cpu"
        and type(gradient).__module__ == "torch"
        and (gradient.is_sparse or _has_memory(gradient))
    )


def _has_memory(gradient: Any) -> bool:
    """Return whether the storage of a dense gradient has all of its elements.

    A program may have freed the storage to save memory.
    """
    if not gradient.numel():
        return True
    last = sum((n - 1) * step for n, step in zip(gradient.shape, gradient.stride(), strict=True))
    needed = (gradient.storage_offset() + last + 1) * gradient.element_size()
    return bool(gradient.untyped_storage().nbytes() >= needed and gradient.data_ptr() != 0)


def _is_zero(gradient: Any) -> bool:
    """Return whether a gradient is zero. Most are not, as their first elements show."""
    bits = _bits_of(gradient)
    if bits is not None:
        parts = (bits[start : start + _PART] for start in range(_ELEMENTS, len(bits), _PART))
        return not any((part << 1).any() for part in (bits[:_ELEMENTS], *parts))
    with unseen():
        elements = (gradient.coalesce().values() if gradient.is_sparse else gradient).detach()
        elements = elements.reshape(-1)
        return not (elements[:_ELEMENTS].any().item() or elements.any().item())


def _bits_of(gradient: Any) -> np.ndarray | None:
    """Return the memory of a gradient, whose first bits are signs; None if it has another form.

    It is read without an operation, which a profiler of the program would record.
    """
    size = gradient.element_size()
    if gradient.is_sparse or not gradient.is_contiguous() or not gradient.is_floating_point():
        return None
    count = gradient.numel() * size
    memory = (ctypes.c_char * count).from_address(gradient.data_ptr()) if count else b""
    return np.frombuffer(memory, f"u{size}")
