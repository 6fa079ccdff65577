"""`checkpoint_save` and `checkpoint_load`: files of weights and states, with their sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..patches import Patches
from .kinds import RESTORE, SAVE
from .upkeep import Ended, Scopes

_MOST_ENTRIES = 100_000
"""Entries of a state that are looked at for their sizes."""

_SAFETENSORS = {
    "save_file": SAVE, "save_model": SAVE, "save": SAVE,
    "load_file": RESTORE, "load_model": RESTORE, "load": RESTORE,
}  # fmt: skip
_DISTRIBUTED = {"save": SAVE, "async_save": SAVE, "load": RESTORE}


class CheckpointFiles:
    """The functions that save and load checkpoints."""

    def __init__(self, scopes: Scopes, patches: Patches) -> None:
        self._scopes, self._patches = scopes, patches

    def torch(self) -> None:
        """`torch.save` and `torch.load`. Raises AttributeError where torch has changed."""
        import torch  # noqa: PLC0415

        self._replace((torch.serialization, torch), "save", SAVE, "torch.save", _Size(1, "f"))
        self._replace((torch.serialization, torch), "load", RESTORE, "torch.load", _Size(0, "f"))

    def safetensors(self, module: Any) -> None:
        """`module` is `safetensors.torch`."""
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
        """`module` is `torch.distributed.checkpoint`."""
        for name, kind in _DISTRIBUTED.items():
            if hasattr(module, name):
                shown = f"torch.distributed.checkpoint.{name}"
                self._replace((module,), name, kind, shown, _Size(0, "state_dict"))

    def _replace(
        self, owners: tuple[Any, ...], name: str, kind: int, shown: str, ended: Ended
    ) -> None:
        original = getattr(owners[0], name)
        made = self._scopes.around(original, kind, lambda _a, _k: {"function": shown}, ended)
        self._patches.replace_function(owners, name, made)


class _Size:
    """Adds `bytes`: the size of the file, of the data or of the tensors that an argument names."""

    def __init__(self, position: int, name: str) -> None:
        self._position, self._name = position, name

    def __call__(
        self, attrs: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Look at the argument when the call is over."""
        target = args[self._position] if len(args) > self._position else kwargs.get(self._name)
        size = size_of(target)
        if size is not None:
            attrs["bytes"] = size


def size_of(target: Any) -> int | None:
    """The size of a file by its name or object, of bytes, or of the tensors in a state."""
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
            # Part of what was written may still be in the object's own buffer.
            return max(os.fstat(target.fileno()).st_size, int(target.tell()))
    except (OSError, ValueError):
        pass  # a pipe, or a name that another library resolves
    return None


def tensor_bytes(state: Any) -> Iterator[int]:
    """The sizes of the tensors in nested dictionaries and sequences."""
    found = [state]
    for _ in range(_MOST_ENTRIES):
        if not found:
            return
        each = found.pop()
        try:
            size = getattr(each, "nbytes", None)
        except RuntimeError:
            continue  # a sparse tensor has none
        if isinstance(size, int):
            yield size
        elif isinstance(each, dict):
            found += each.values()
        elif isinstance(each, (list, tuple)):
            found += each
