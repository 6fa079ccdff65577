"""Snapshot files in the safetensors format: 8 bytes of length, a JSON header, the tensors' bytes.

The format is defined in the README of https://github.com/huggingface/safetensors. That library
requires a second copy of all tensors as bytes; this module writes them directly from their memory.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import TargetError
from ..atomic_files import replacing_file, sync_directory, write_all

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "complex64": "C64",
}  # fmt: skip
"""The torch dtypes that the format defines and that its reader for torch accepts."""
RESERVED = "__metadata__"
"""The one name that the format does not allow for a tensor."""


def can_store(name: str, tensor: Any) -> bool:
    """Return whether the format supports the tensor's dtype and layout, and allows its name."""
    torch = sys.modules["torch"]
    if name == RESERVED or tensor.layout is not torch.strided:
        return False
    return str(tensor.dtype).removeprefix("torch.") in DTYPES


def copied(tensor: Any) -> Any:
    """Return a dense copy, in host memory, of a tensor that passes `can_store`.

    Blocks until a GPU tensor has been copied.
    """
    torch = sys.modules["torch"]
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return copy.copy_(tensor)


def write(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> int:
    """Write tensors that `copied` returned, and texts by name; return the file's size.

    The file appears complete or not at all, replaces an existing file, is synced to disk, and is
    readable only by its owner. Raises TargetError if it cannot be written.
    """
    try:
        _make_directory(path.parent)
        with replacing_file(path) as descriptor:
            size = write_all(descriptor, header(tensors, metadata))
            for tensor in _ordered(tensors).values():
                size += write_all(descriptor, _bytes_of(tensor))
    except OSError as error:
        raise TargetError(
            f"{path} cannot be written: {error.strerror or error}; free some space, or choose a"
            " directory that can be written"
        ) from None
    return size


def header(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the part of the file before the tensors' bytes; its length is a multiple of 8."""
    entries: dict[str, Any] = {} if metadata is None else {RESERVED: dict(metadata)}
    at = 0
    for name, tensor in _ordered(tensors).items():
        end = at + tensor.numel() * tensor.element_size()
        kind = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _ordered(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Sort tensors by element size, largest first, so that all offsets are aligned to elements."""
    return dict(sorted(tensors.items(), key=lambda pair: (-pair[1].element_size(), pair[0])))


def _bytes_of(tensor: Any) -> memoryview:
    """Return a view of a dense tensor's memory; the tensor must outlive the view."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _make_directory(directory: Path) -> None:
    for each in (directory.parent, directory):
        if not each.is_dir():
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_directory(each.parent)
