"""Record `checkpoint_save` and `checkpoint_load`, with the sizes of the files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..patches import Patches
from .kinds import RESTORE, SAVE
from .upkeep import Ended, ScopeWrapper

_MOST_ENTRIES = 100_000
"""Maximum number of entries of a state that are counted for its size."""

_SAFETENSORS = {
    "save_file": SAVE, "save_model": SAVE, "save": SAVE,
    "load_file": RESTORE, "load_model": RESTORE, "load": RESTORE,
}  # fmt: skip
_DISTRIBUTED = {"save": SAVE, "async_save": SAVE, "load": RESTORE}


class CheckpointFiles:
    """Hooks the functions that save and load checkpoints."""

    def __init__(self, wrapper: ScopeWrapper, patches: Patches) -> None:
        self._wrapper, self._patches = wrapper, patches

    def torch(self) -> None:
        """Hook `torch.save` and `torch.load`. Raises AttributeError if torch has changed."""
        import torch  # noqa: PLC0415

        self._replace((torch.serialization, torch), "save", SAVE, "torch.save", _Size(1, "f"))
        self._replace((torch.serialization, torch), "load", RESTORE, "torch.load", _Size(0, "f"))

    def safetensors(self, module: Any) -> None:
        """Hook `module`, which is `safetensors.torch`."""
        for name, kind in _SAFETENSORS.items():
            if hasattr(module, name):
                size = _Size(0 if kind is RESTORE else 1, "filename")
                if name == "save":
                    size = _Size(0, "tensors")
                elif name == "load":
                    size = _Size(0, "data")
                elif name == "load_model":
                    size = _Size(1, "filename")
                self._replace((module,), name, kind, f"safetensors.{name}", size)

    def distributed(self, module: Any) -> None:
        """Hook `module`, which is `torch.distributed.checkpoint`."""
        for name, kind in _DISTRIBUTED.items():
            if hasattr(module, name):
                function = f"torch.distributed.checkpoint.{name}"
                self._replace((module,), name, kind, function, _Size(0, "state_dict"))

    def _replace(
        self, owners: tuple[Any, ...], name: str, kind: int, function: str, ended: Ended
    ) -> None:
        original = getattr(owners[0], name)
        wrapped = self._wrapper.wrap(original, kind, lambda _a, _k: {"function": function}, ended)
        self._patches.replace_function(owners, name, wrapped)


class _Size:
    """Adds the attribute `bytes`: the size of an argument's file, data, or tensors."""

    def __init__(self, position: int, name: str) -> None:
        self._position, self._name = position, name

    def __call__(
        self, attrs: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Add the attribute; called at the end of the wrapped call."""
        target = args[self._position] if len(args) > self._position else kwargs.get(self._name)
        size = size_of(target)
        if size is not None:
            attrs["bytes"] = size


def size_of(target: Any) -> int | None:
    """Return the size of a file, of bytes, or of the tensors in a state; None if unknown."""
    if isinstance(target, (bytes, bytearray, memoryview)):
        return len(target)
    if isinstance(target, dict):
        return sum(tensor_bytes(target))
    try:
        if isinstance(target, (str, os.PathLike)):
            return Path(target).stat().st_size
        if hasattr(target, "getbuffer"):
            return len(target.getbuffer())
        if hasattr(target, "fileno"):
            # Part of the written data may still be in the object's own buffer.
            return max(os.fstat(target.fileno()).st_size, int(target.tell()))
    except (OSError, ValueError):
        pass  # a pipe, or a name that another library resolves
    return None


def tensor_bytes(state: Any) -> Iterator[int]:
    """Yield the sizes of the tensors in nested dictionaries and sequences."""
    pending = [state]
    for _ in range(_MOST_ENTRIES):
        if not pending:
            return
        each = pending.pop()
        try:
            size = getattr(each, "nbytes", None)
        except RuntimeError:
            continue  # a sparse tensor has no size
        if isinstance(size, int):
            yield size
        elif isinstance(each, dict):
            pending += each.values()
        elif isinstance(each, (list, tuple)):
            pending += each
