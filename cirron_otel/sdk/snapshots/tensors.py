"""Which tensors a snapshot is of: a model's parameters and their gradients, under which names.

docs/snapshots.md, "Which tensors", says what is decided here and why.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of names that stand for a wrapper that torch put around a module."""
GRAD = ".grad"


@dataclass(slots=True)
class Subject:
    """A tensor of which there is a record."""

    name: str
    is_gradient: bool
    shape: list[int]
    dtype: str
    attrs: dict[str, Any] = field(default_factory=dict)
    values: Any = None
    """What is measured: a dense tensor; None where there are no values."""
    zeros: int = 0
    """Zeros beside `values` that a sparse tensor does not store."""
    whole: Any = None
    """What is stored, as it is; None where it cannot be."""
    failure: Exception | None = None
    """Why there are no statistics, where something went wrong."""

    def fail(self, error: Exception) -> None:
        """There are none of it; the record says why."""
        self.values = None
        self.failure = error
        self.attrs["without_statistics"] = f"{type(error).__name__}: {error}"[:200]


def subjects_of(model: Any) -> list[Subject]:
    """The parameters of `model` in its own order, then the gradients there are.

    Buffers are left out, as in cirron-sdk. A parameter that is used in several places is one
    subject under its first name; one that has no shape yet is none. Empty for what is no model.
    """
    found: list[Subject] = []
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
        found.append(_subject(shown[first], parameter, attrs, is_gradient=False))
        gradient = parameter.grad
        if gradient is not None:
            gradients.append(_subject(shown[first] + GRAD, gradient, attrs, is_gradient=True))
    return found + gradients


def unwrapped(model: Any) -> Any:
    """The module inside `torch.compile`, DistributedDataParallel and DataParallel."""
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
    except TypeError:  # overridden, without that argument
        return list(model.named_parameters())


def _shown(name: str) -> str:
    """A name without what wrappers put into it: the one that the module itself gives it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _shown_names(names: list[str]) -> dict[str, str]:
    """Names without wrappers; one that would stand twice stays as it is."""
    shown = {name: _shown(name) for name in names}
    seen: set[str] = set()
    for name, short in shown.items():
        if short in seen:
            shown[name] = name
        seen.add(shown[name])
    return shown


def _is_uninitialised(parameter: Any) -> bool:
    """Whether it is a lazy module's, which has no shape before its first call."""
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
    """The part of this process in a tensor that several share; the attributes say which that is."""
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor and hasattr(tensor, "placements"):
        attrs["shard"] = ", ".join(map(str, tensor.placements))
        attrs["global_shape"] = [int(size) for size in tensor.shape]
        return tensor.to_local()
    own = getattr(parameter, "__dict__", {})
    if "_fsdp_flattened" in own or "_fqns" in own:
        attrs["shard"] = "FullyShardedDataParallel"
        if "_fqns" in own:
            attrs["flattened"] = [str(name) for name in own["_fqns"]]
    return tensor


def _look_at(tensor: Any, subject: Subject) -> None:
    """Find what there is to measure and to store."""
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
        subject.values = subject.whole = tensor
    if subject.values.dtype.is_complex:
        attrs["statistics_of"] = "magnitude"
    if not tensor.numel():
        attrs["without_statistics"] = "empty"
        subject.values = None


def _stored_values(torch: Any, tensor: Any) -> tuple[Any, int]:
    """The values that a sparse tensor stores, each once, and how many zeros it does not."""
    if tensor.layout is torch.sparse_coo:
        values = tensor.coalesce().values()
    elif str(tensor.layout).startswith("torch.sparse"):
        values = tensor.values()
    else:  # mkldnn and its like: another order of the same values
        return tensor.to_dense(), 0
    return values, tensor.numel() - values.numel()


def pieces(tensor: Any, limit: int) -> Iterator[Any]:
    """Views of at most about `limit` elements that together are `tensor`, in any order.

    A dense tensor comes as vectors, whatever the order of its dimensions; one with gaps is cut
    until a copy of each piece is small.
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
