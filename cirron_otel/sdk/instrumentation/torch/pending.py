"""Track which of the fetched batches a pass has used."""

from __future__ import annotations

import itertools
from collections import UserDict
from typing import Any

from ...tracing.own_attributes import own_attributes
from ...tracing.phase import Phase
from .tensor_references import references

_TENSORS = 16
_OBJECTS = 64
_DEPTH = 4


class BatchTensors:
    """A batch, represented by references to its tensors."""

    __slots__ = ("tensors",)

    def __init__(self, batch: Any) -> None:
        self.tensors = [references.of(each) for each in tensors_in(batch)]

    @property
    def is_alive(self) -> bool:
        """Whether the program still references a part of the batch."""
        return any(each.get() is not None for each in self.tensors)


class FetchedBatch(BatchTensors):
    """A fetched batch of a pass."""

    __slots__ = ("load",)

    def __init__(self, load: Phase, fetched: Any) -> None:
        super().__init__(fetched)
        self.load = load

    def contains_any(self, tensors: list[Any]) -> bool:
        """Return whether any of `tensors` is in this batch, or shares memory with this batch."""
        tensors_of_batch = [tensor for each in self.tensors if (tensor := each.get()) is not None]
        return any(_is_same(one, other) for one in tensors_of_batch for other in tensors)


class UnusedBatches:
    """A pass's batches that have been fetched but not used yet."""

    __slots__ = ("batches", "current", "is_ahead", "is_expected", "is_flat", "used", "was_used")

    def __init__(self) -> None:
        self.batches: list[FetchedBatch] = []
        self.current: FetchedBatch | None = None
        """The batch in use."""
        self.is_expected = True
        """Whether the fetch in progress belongs to the pass."""
        self.is_ahead = False
        """Whether the pass is known to fetch ahead."""
        self.is_flat = False
        """Whether fetches are attached to the epoch: too many of them preceded the first use."""
        self.used = self.was_used = False
        """`used`: whether a batch was used since the last fetch; `was_used`: since the first."""

    def moved(self, tensor: Any, copy: Any) -> None:
        """Record that a tensor was copied to a device; the copy is also part of its batch."""
        for batch in [*self.batches, self.current]:
            if batch is not None and any(each.get() is tensor for each in batch.tensors):
                batch.tensors.append(references.of(copy))
                return

    def find(self, arguments: Any) -> int | None:
        """Return the index of the batch that a call uses according to its arguments, or None."""
        tensors = tensors_in(arguments)
        for index, batch in enumerate(self.batches):
            if tensors and batch.contains_any(tensors):
                return index
        return None

    def is_current(self, arguments: Any) -> bool:
        """Return whether a call uses the current batch."""
        return self.current is not None and self.current.contains_any(tensors_in(arguments))

    def take(self, index: int) -> None:
        """Make a batch the current batch."""
        self.current = self.batches.pop(index)
        self.batches = [batch for batch in self.batches if batch.is_alive]


def tensors_in(thing: Any) -> list[Any]:
    """Return the first tensors in nested lists, tuples, dictionaries and plain objects."""
    import torch  # noqa: PLC0415

    tensors: list[Any] = []
    waiting = [(thing, 0)]
    for _ in range(_OBJECTS):
        if not waiting or len(tensors) >= _TENSORS:
            break
        each, depth = waiting.pop(0)
        if issubclass(type(each), torch.Tensor):
            tensors.append(each)
        elif depth < _DEPTH:
            waiting += [(inner, depth + 1) for inner in _parts_of(each)]
    return tensors


def _parts_of(thing: Any) -> list[Any]:
    kind = type(thing)
    if issubclass(kind, (list, tuple)):
        parts = list.__iter__(thing) if issubclass(kind, list) else tuple.__iter__(thing)
    elif issubclass(kind, dict):
        parts = iter(dict.values(thing))
    elif issubclass(kind, UserDict):
        parts = iter([own_attributes(thing).get("data")])
    else:
        parts = iter(own_attributes(thing).values())
    return list(itertools.islice(parts, _TENSORS))


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    import torch  # noqa: PLC0415

    if type(one) is not torch.Tensor or type(other) is not torch.Tensor:
        return False
    try:
        with torch._C.DisableTorchFunction():
            return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return False  # a tensor without storage
