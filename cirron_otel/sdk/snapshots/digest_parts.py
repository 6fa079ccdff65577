"""The parts of a tensor that its digest covers, and their description (docs/digests.md)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from .tensors import is_flattened

_COMPRESSED = {
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_bsr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
    "sparse_bsc": ("ccol_indices", "row_indices"),
}
VALUES = "values"
_MOST_DEPTH = 4
"""Maximum depth of tensor subclasses that wrap each other."""
_FAKE = frozenset({"FakeTensor", "FunctionalTensor"})


class NoBytesError(TypeError):
    """Raised for a tensor of which no bytes can be read."""


class Unreadable:
    """Takes the place of a tensor that could not be obtained."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@dataclass(slots=True)
class Subject:
    """A tensor that is digested, as dense tensors without gradients."""

    name: str
    description: str
    dtype: str
    """The dtype of its numbers."""
    shape: list[int]
    is_shard: bool = False
    """Whether the tensor is this process's part of a sharded one."""
    parts: dict[str, Any] = field(default_factory=dict)
    """The dense tensors by name, "" for a tensor in one piece. Empty on the meta device."""

    @property
    def numbers(self) -> Any:
        """The part of which four numbers are recorded, as real numbers; None if there is none."""
        if not self.parts:
            return None
        part = self.parts.get(VALUES)
        return real(next(iter(self.parts.values())) if part is None else part)


def subject_of(name: str, tensor: Any) -> Subject:
    """Return a tensor's parts. Reads and changes no element.

    Raises the errors of the tensor, or that of an `Unreadable`.
    """
    if isinstance(tensor, Unreadable):
        raise tensor.error
    torch = sys.modules["torch"]
    is_shard = is_flattened(tensor)
    tensor = torch.Tensor.detach(tensor)  # a subclass may override the method
    if type(tensor) is not torch.Tensor and hasattr(tensor, "placements"):
        is_shard = not all(each.is_replicate() for each in tensor.placements)
        tensor = tensor.to_local()
        to_wait = getattr(tensor, "wait", None)  # of a collective that has not ended
        tensor = tensor if to_wait is None else to_wait()
    dtype, shape = dtype_of(tensor), list(map(_size, tensor.shape))
    subject = Subject(name, f"{dtype} {_shape(shape)}", _number_dtype(tensor), shape, is_shard)
    if tensor.device.type == "meta":
        return subject
    layout, parts = _parts(torch, tensor, 0)
    subject.parts = parts
    if layout:
        described = (f"{key} {dtype_of(each)} {_shape(each.shape)}" for key, each in parts.items())
        subject.description = " ".join([subject.description, layout, *described])
        subject.dtype = dtype_of(subject.numbers)
    return subject


def _parts(torch: Any, tensor: Any, depth: int) -> tuple[str, dict[str, Any]]:
    """Return the name of the layout, "" for a tensor in one piece, and the dense parts."""
    if depth > _MOST_DEPTH or type(tensor).__name__ in _FAKE:
        raise NoBytesError(f"{type(tensor).__name__} has no bytes that can be read")
    layout = str(tensor.layout).removeprefix("torch.")
    if layout == "jagged":
        return layout, {VALUES: tensor.values(), "offsets": tensor.offsets()}
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is not None:
        inner = {key: getattr(tensor, key) for key in flatten(tensor)[0]}
        return type(tensor).__name__, _flat(torch, inner, depth)
    if getattr(tensor, "is_quantized", False):
        return "quantized", _quantized(torch, tensor)
    if layout == "sparse_coo":
        return layout, {"indices": tensor._indices(), VALUES: tensor._values()}
    if layout in _COMPRESSED:
        indices = {key: getattr(tensor, key)() for key in _COMPRESSED[layout]}
        return layout, {**indices, VALUES: tensor.values()}
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if type(tensor) is not torch.Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            tensor = tensor.as_subclass(torch.Tensor)
    return "", {"": tensor}


def _flat(torch: Any, tensors: dict[str, Any], depth: int) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, tensor in tensors.items():
        _, parts = _parts(torch, tensor.detach(), depth + 1)
        for inner, part in parts.items():
            flat[f"{key}.{inner}" if inner else key] = part
    return flat


def _quantized(torch: Any, tensor: Any) -> dict[str, Any]:
    if "channel" in str(tensor.qscheme()):
        scales, points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    else:
        scales = torch.tensor(tensor.q_scale(), dtype=torch.float64, device="cpu")
        points = torch.tensor(tensor.q_zero_point(), dtype=torch.int64, device="cpu")
    return {VALUES: tensor.int_repr(), "scales": scales, "zero_points": points}


def real(tensor: Any) -> Any:
    """Return a view of complex numbers as real numbers; other tensors unchanged."""
    return sys.modules["torch"].view_as_real(tensor) if tensor.dtype.is_complex else tensor


def dtype_of(tensor: Any) -> str:
    """Return the name of a tensor's dtype, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _number_dtype(tensor: Any) -> str:
    dtype = tensor.dtype
    return str(dtype.to_real() if dtype.is_complex else dtype).removeprefix("torch.")


def _shape(shape: Any) -> str:
    return "[" + ",".join(str(_size(size)) for size in shape) + "]"


def _size(size: Any) -> int:
    """Return a size; −1 for that of a nested tensor, which its offsets contain."""
    try:
        return int(size)
    except (AttributeError, TypeError, RuntimeError):
        return -1
