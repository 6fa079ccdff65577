"""The parts of a tensor that its digest covers, and their description (docs/digests.md)."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ...core.records.digest_marks import number_size
from .digest_plan import PlanKey, part_key
from .digest_sums import readable
from .tensors import NoBytesError, is_flattened

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


class Unreadable:
    """Takes the place of a tensor that could not be obtained."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class TensorFacts(NamedTuple):
    """The facts about a tensor that its record depends on."""

    description: str
    dtype: str
    """The dtype of its numbers."""
    shape: list[int]
    is_shard: bool = False
    """Whether the tensor is this process's part of a sharded one."""


DigestInput = tuple[TensorFacts, Any, PlanKey, list[Any]]
"""A tensor as it is summed up: the facts about it, its device, its key, and its parts, as views."""


@dataclass(slots=True)
class Subject:
    """A tensor that is digested, as dense tensors without gradients."""

    name: str
    facts: TensorFacts
    parts: dict[str, Any] = field(default_factory=dict)
    """The dense tensors by name, "" for a tensor in one piece. Empty on the meta device."""

    def read(self, *, has_numbers: bool) -> DigestInput:
        """Return what is summed up; with `has_numbers`, also four numbers."""
        torch = sys.modules["torch"]
        keys, views = [], []
        for part in self.parts.values():
            item_size = part.element_size()
            size = part.numel() * item_size
            access, view = readable(torch, part, size, item_size)
            keys.append(part_key(size, access))
            views.append(view)
        at = list(self.parts).index(VALUES) if VALUES in self.parts else 0
        number = number_size(self.facts.dtype) if has_numbers and views else None
        key = PlanKey(tuple(keys), number or 0, at)
        device = next((part.device for part in self.parts.values()), torch.device("cpu"))
        return self.facts, device, key, views


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
    facts = TensorFacts(f"{dtype} {_shape(shape)}", _number_dtype(tensor.dtype), shape, is_shard)
    if tensor.device.type == "meta":
        return Subject(name, facts)
    layout, parts = _parts(torch, tensor, 0)
    if layout and not parts:
        raise NoBytesError(f"{type(tensor).__name__} contains no tensor")
    if layout:
        described = (f"{key} {dtype_of(each)} {_shape(each.shape)}" for key, each in parts.items())
        description = " ".join([facts.description, layout, *described])
        numbers = parts[VALUES] if VALUES in parts else next(iter(parts.values()))
        facts = facts._replace(description=description, dtype=_number_dtype(numbers.dtype))
    return Subject(name, facts, parts)


def plain_input(torch: Any, tensor: Any, *, has_numbers: bool) -> DigestInput | None:
    """Return what `subject_of(…).read(…)` would, sooner, for a usual tensor; None for others.

    A usual tensor is dense and real, on the host or on a CUDA device, and of none but torch's own
    types. Gradients have to be disabled.
    """
    # A subclass, and an instance with attributes of FSDP, may hold something else.
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return None
    if (tensor.__dict__ and is_flattened(tensor)) or tensor.layout is not torch.strided:
        return None
    if not (tensor.is_cuda or tensor.is_cpu) or tensor.is_neg():
        return None
    known = _plain(tensor.dtype, tensor.shape, has_numbers)
    if known is None:
        return None
    access, view = readable(torch, tensor, known.size, known.item_size)
    key = known.keys.get(access)
    if key is None:
        parts = (part_key(known.size, access),)
        key = known.keys[access] = PlanKey(parts, known.number_size, 0)
    return known.facts, tensor.device, key, [view]


class _Plain(NamedTuple):
    """The facts about dense tensors of a dtype and a shape."""

    facts: TensorFacts
    size: int
    """The bytes of all elements."""
    item_size: int
    number_size: int
    """The bytes of each number that is read; 0 if none is."""
    keys: dict[int, PlanKey]
    """The tensors' keys by the access to them."""


@lru_cache(1 << 12)
def _plain(dtype: Any, shape: tuple[int, ...], has_numbers: bool) -> _Plain | None:
    """Return the facts about a dense tensor; None if it is complex or quantized."""
    name = str(dtype).removeprefix("torch.")
    if dtype.is_complex or name.startswith(("qint", "quint")):
        return None
    sizes = list(map(int, shape))
    facts = TensorFacts(f"{name} {_shape(sizes)}", name, sizes)
    number = number_size(name) if has_numbers else None
    size = math.prod(sizes) * dtype.itemsize
    return _Plain(facts, size, dtype.itemsize, number or 0, {})


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


def dtype_of(tensor: Any) -> str:
    """Return the name of a tensor's dtype, such as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _number_dtype(dtype: Any) -> str:
    return str(dtype.to_real() if dtype.is_complex else dtype).removeprefix("torch.")


def _shape(shape: Any) -> str:
    return "[" + ",".join(str(_size(size)) for size in shape) + "]"


def _size(size: Any) -> int:
    """Return a size; −1 for that of a nested tensor, which its offsets contain."""
    try:
        return int(size)
    except (AttributeError, TypeError, RuntimeError):
        return -1
