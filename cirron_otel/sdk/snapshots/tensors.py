"""Select and name the tensors of a snapshot: a model's parameters and gradients.

docs/snapshots.md, "Which tensors", documents the selection and its reasons.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of names that denote a wrapper that torch puts around a module."""
GRAD = ".grad"


class NoBytesError(TypeError):
    """Raised for a tensor of which no bytes can be read."""


@dataclass(slots=True)
class Subject:
    """A tensor that has a record."""

    name: str
    is_gradient: bool
    shape: list[int]
    dtype: str
    attrs: dict[str, Any] = field(default_factory=dict)
    values: Any = None
    """The dense tensor that is measured; None if there are no values."""
    zeros: int = 0
    """Number of zeros that a sparse tensor does not store, in addition to `values`."""
    whole: Any = None
    """The tensor that is written to a file, unchanged; None if that is impossible."""
    failure: Exception | None = None
    """The error that left the tensor without statistics."""

    def fail(self, error: Exception) -> None:
        """Record why the tensor has no statistics."""
        self.values = None
        self.failure = error
        self.attrs["without_statistics"] = f"{type(error).__name__}: {error}"[:200]


def subjects_of(model: Any) -> list[Subject]:
    """Return the parameters of `model` in the model's order, then the existing gradients.

    Buffers are omitted, as in cirron-sdk. A parameter that is used in several places is one subject
    with its first name; a parameter without a shape is omitted. For an object that is not a model,
    the result is empty.
    """
    subjects: list[Subject] = []
    gradients: list[Subject] = []
    names: dict[int, list[str]] = {}
    parameters: dict[int, Any] = {}
    for name, parameter in _named(model):
        names.setdefault(id(parameter), []).append(name)
        parameters[id(parameter)] = parameter
    shown = _shown_names([each[0] for each in names.values()])
    for key, parameter in parameters.items():
        if parameter is None or _is_uninitialised(parameter):
            continue
        first, *others = names[key]
        attrs: dict[str, Any] = {"tied_names": [_shown(name) for name in others]} if others else {}
        subjects.append(_subject(shown[first], parameter, attrs, is_gradient=False))
        gradient = parameter.grad
        if gradient is not None:
            gradients.append(_subject(shown[first] + GRAD, gradient, attrs, is_gradient=True))
    return subjects + gradients


def named_tensors(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters and then the buffers of `model`, in its order, under its own names.

    A tensor that is used in several places has its first name. Tensors without a shape are omitted.
    """
    first: dict[int, tuple[str, Any]] = {}
    for name, tensor in [*_named(model), *_named_buffers(model)]:
        if tensor is not None and not _is_uninitialised(tensor):
            first.setdefault(id(tensor), (name, tensor))
    shown = _shown_names([name for name, _ in first.values()])
    return [(shown[name], tensor) for name, tensor in first.values()]


def unwrapped(model: Any) -> Any:
    """Return the module inside `torch.compile`, DistributedDataParallel, and DataParallel."""
    parallel = sys.modules["torch"].nn.parallel
    while True:
        if isinstance(model, (parallel.DistributedDataParallel, parallel.DataParallel)):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and "_orig_mod" in model._modules:
            model = model._orig_mod
        else:
            return model


def _named(model: Any) -> Iterable[tuple[str, Any]]:
    model = unwrapped(model)
    if not callable(getattr(model, "named_parameters", None)):
        return []
    try:
        return list(model.named_parameters(remove_duplicate=False))
    except TypeError:  # the model overrides the method without that argument
        return list(model.named_parameters())


def _named_buffers(model: Any) -> Iterable[tuple[str, Any]]:
    model = unwrapped(model)
    return list(model.named_buffers()) if callable(getattr(model, "named_buffers", None)) else []


def _shown(name: str) -> str:
    """Return a name without the parts that denote wrappers: the name in the unwrapped module."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _shown_names(names: list[str]) -> dict[str, str]:
    """Return names without wrappers; a name that would not be unique stays unchanged."""
    shown = {name: _shown(name) for name in names}
    seen: set[str] = set()
    for name, short in shown.items():
        if short in seen:
            shown[name] = name
        seen.add(shown[name])
    return shown


def _is_uninitialised(parameter: Any) -> bool:
    """Return whether a parameter belongs to a lazy module and has no shape yet."""
    torch = sys.modules["torch"]
    return isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin)


def _subject(name: str, tensor: Any, attrs: dict[str, Any], *, is_gradient: bool) -> Subject:
    subject = Subject(name, is_gradient, [], _dtype(tensor), dict(attrs))
    try:
        tensor = _local(tensor.detach(), tensor, subject.attrs)
        subject.shape = list(map(int, tensor.shape))
        _look_at(tensor, subject)
    except Exception as error:
        subject.whole = None
        subject.fail(error)
    return subject


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _local(tensor: Any, parameter: Any, attrs: dict[str, Any]) -> Any:
    """Return this process's part of a sharded tensor, and describe the part in `attrs`."""
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor and hasattr(tensor, "placements"):
        attrs["shard"] = ", ".join(map(str, tensor.placements))
        attrs["global_shape"] = [int(size) for size in tensor.shape]
        return tensor.to_local()
    if is_flattened(parameter):
        attrs["shard"] = "FullyShardedDataParallel"
        if "_fqns" in parameter.__dict__:
            attrs["flattened"] = [str(name) for name in parameter._fqns]
    return tensor


def is_flattened(parameter: Any) -> bool:
    """Return whether FSDP 1 has made a parameter part of a flat one, or the flat one itself."""
    fields = getattr(parameter, "__dict__", {})
    return "_fsdp_flattened" in fields or "_fqns" in fields


def _look_at(tensor: Any, subject: Subject) -> None:
    """Determine the values to measure and the tensor to store."""
    torch = sys.modules["torch"]
    attrs = subject.attrs
    if tensor.device.type == "meta":
        attrs["without_statistics"] = "meta"
        return
    if tensor.layout is not torch.strided:
        attrs["layout"] = str(tensor.layout).removeprefix("torch.")
        subject.values, subject.zeros = _stored_values(torch, tensor)
    elif getattr(tensor, "is_quantized", False):
        attrs["statistics_of"] = "dequantized"
        subject.values = tensor.dequantize()
    else:
        if (
            type(tensor) is torch.Tensor
            and tensor.numel()
            and not tensor.untyped_storage().nbytes()
        ):
            raise NoBytesError("its memory has been released")
        subject.values = subject.whole = tensor
    if subject.values.dtype.is_complex:
        attrs["statistics_of"] = "magnitude"
    if not tensor.numel():
        attrs["without_statistics"] = "empty"
        subject.values = None


def _stored_values(torch: Any, tensor: Any) -> tuple[Any, int]:
    """Return a sparse tensor's values, duplicates combined, and the number of zeros not stored."""
    if tensor.layout is torch.sparse_coo:
        values = tensor.coalesce().values()
    elif str(tensor.layout).startswith("torch.sparse"):
        values = tensor.values()
    else:  # mkldnn and similar layouts: another order of the same values
        return tensor.to_dense(), 0
    return values, tensor.numel() - values.numel()


def pieces(tensor: Any, limit: int) -> Iterator[Any]:
    """Yield views of at most about `limit` elements that together make up `tensor`, in any order.

    A dense tensor is split into vectors, regardless of the order of its dimensions; a tensor with
    gaps is split until a copy of each piece is small.
    """
    if not tensor.numel():
        return
    if tensor.dim() > 1 and not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(order)
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        yield from flat.split(limit) if flat.numel() > limit else (flat,)
    elif tensor.numel() <= limit:
        yield tensor
    else:
        size = max(tensor.shape)
        rows = max(size * limit // tensor.numel(), 1)
        for part in tensor.split(rows, list(tensor.shape).index(size)):
            yield from pieces(part, limit)
