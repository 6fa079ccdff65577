"""Convert a mark's value to a float64, an int of any size, a bool, or a string of 256 bytes.

Source: Cirron's concepts page, "Marks". Values of numpy and torch are recognised by their
attributes, without importing either library.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from .device_scalar import CapturedError, arriving

MAX_TEXT_BYTES = 256
USUAL = frozenset({str, int, float, bool, type(None), list, tuple, dict})
"""Types of attribute values that are never on a device."""
_NO_DEVICE = frozenset({"cpu", "meta"})


class Deferred:
    """A copy of a scalar on a device, which the flush thread reads instead of the training thread.

    Reading it immediately would wait for the device.
    """

    __slots__ = ("_read", "_value")

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read: Callable[[], Any] | None = read
        self._value: Any = None

    def value(self) -> Any:
        """Return the number; wait for the device if necessary. Raises the errors of reading it."""
        if self._read is not None:
            self._value, self._read = coerce(self._read()), None
        return self._value


class RefusedValueError(TypeError):
    """Raised for a value that a mark cannot have."""


def coerce(value: Any) -> Any:
    """Convert `value` to a bool, int, float, or str, or to a `Deferred`.

    Raises RefusedValueError for anything else: arrays and tensors of more than one element belong
    in snapshots.
    """
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, str):
        return cut(str(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if _is_array(value):
        return _scalar(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, (numbers.Real, Decimal)):
        return float(value)
    raise RefusedValueError(
        f"a mark's value must be a number, a bool or a string, not {type(value).__name__}"
    )


def hold(attrs: dict[str, Any]) -> None:
    """Replace attributes that are tensors on a device with the result of `held`."""
    for key, value in attrs.items():
        if type(value) not in USUAL:
            attrs[key] = held(value)


def held(value: Any) -> Any:
    """Return an attribute's value; a tensor on a device becomes a Deferred, or a description.

    This is done when the attribute is set and not when it is written, because the flush thread
    makes no CUDA calls (device_scalar).
    """
    try:
        device = getattr(value, "device", None)
        if getattr(device, "type", "cpu") in _NO_DEVICE or not hasattr(value, "detach"):
            return value
        try:
            return _scalar(value)
        except RefusedValueError:
            return f"<{type(value).__name__} of {tuple(value.shape)} on {device}>"
    except Exception:
        return f"<{type(value).__name__}>"


def cut(text: str) -> str:
    """Truncate `text` to 256 bytes of UTF-8, between code points."""
    if len(text) * 4 <= MAX_TEXT_BYTES:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_TEXT_BYTES:
        return text
    end = MAX_TEXT_BYTES
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass")


def _is_array(value: Any) -> bool:
    return callable(getattr(value, "item", None)) and hasattr(value, "dtype")


def _scalar(value: Any) -> Any:
    """Convert one value from numpy, torch, or jax; copy a tensor on a device without waiting."""
    shape = getattr(value, "shape", ())
    size = 1
    for length in shape:
        size *= int(length)
    if size != 1:
        raise RefusedValueError(
            f"a mark's value must have one element, not the shape {tuple(shape)}: use a snapshot"
        )
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if device == "meta":
        raise RefusedValueError("a tensor on the meta device has no value to mark")
    if device != "cpu" and hasattr(value, "detach"):
        try:
            read = arriving(value)
        except CapturedError as error:
            raise RefusedValueError(f"a mark's value is not known: {error}") from None
        return Deferred(read or value.detach().clone().item)
    item = value.item()
    if _is_array(item):
        raise RefusedValueError(f"a mark's value cannot be read from {type(value).__name__}")
    return coerce(item)
