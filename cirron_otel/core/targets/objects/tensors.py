"""Safetensors files: read their headers, and extract one tensor as a separate file.

Format: the README of https://github.com/huggingface/safetensors. Values are copied as bytes and
never decoded, so bfloat16 and the eight-bit floats stay exact, and torch is not needed.
"""

from __future__ import annotations

import json
import os
from math import prod
from typing import Any, BinaryIO, NamedTuple

from ....errors import InputError
from ...spool.snapshot_files import RESERVED
from .store import BlobContent

MAX_HEADER_BYTES = 32_000_000
"""The maximum size of a header, enough for 200,000 tensors.

The format allows 100 MB, which takes a gigabyte once parsed.
"""
_MOST_DIMENSIONS = 64
_LARGEST = 2**63 - 1

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_GRADIENT = ".grad"


class Tensor(NamedTuple):
    """A tensor's entry in the safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    """The offset of the tensor's bytes in the file."""
    size: int
    """The number of the tensor's bytes."""


class TensorFile:
    """A safetensors file that is open for reading."""

    def __init__(self, file: BinaryIO) -> None:
        """Read the header. Raises InputError if it is invalid, and OSError if reading fails."""
        self._file = file
        self.tensors, metadata, self._begin, self._end = _header(file)
        """The tensors by name."""
        self.metadata: dict[str, str] = _texts(metadata)
        """The texts of the header's `__metadata__`."""

    def check_coverage(self) -> None:
        """Raise InputError unless the tensors use every byte after the header exactly once.

        The format requires it ("no holes"). A file that lacks its last bytes fails in the
        constructor already, because an offset is outside of it.
        """
        at = self._begin
        for name, tensor in sorted(self.tensors.items(), key=lambda item: item[1][2:]):
            if tensor.start != at:
                problem = "overlaps" if tensor.start < at else "is not adjacent to"
                raise InputError(
                    f"the snapshot file's tensor {name[:80]!a} {problem} the values before it:"
                    f" expected its offset to be {at - self._begin},"
                    f" found {tensor.start - self._begin}"
                )
            at += tensor.size
        if at != self._end:
            raise InputError(f"the snapshot file has {self._end - at} bytes after its last tensor")

    def find(self, name: str) -> str | None:
        """Return the name that the file uses for the tensor `name` of a record; None if missing.

        The names may differ: cirron-sdk 0.3.0 stores the gradient `w.grad` as `w`
        (docs/spool-format.md, "Blobs").
        """
        for known in (name, name.removesuffix(_GRADIENT)):
            if known in self.tensors:
                return known
        return None

    def content(self, found: str, name: str) -> BlobContent:
        """Return a safetensors file that contains only the tensor `found`, with the name `name`."""
        tensor = self.tensors[found]
        header = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [0, tensor.size],
        }
        text = json.dumps({name: header}, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)  # so that the values are aligned
        return BlobContent(
            self._file, tensor.start, tensor.size, len(text).to_bytes(8, "little") + text
        )


def _header(file: BinaryIO) -> tuple[dict[str, Tensor], object, int, int]:
    """Return the entries of the tensors by name, that of the metadata, and where values are."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(os.pread(file.fileno(), 8, 0), "little")
    if size < 10 or not 2 <= length <= min(size - 8, MAX_HEADER_BYTES):
        raise InputError("the snapshot file is not a safetensors file: its header length is wrong")
    data = os.pread(file.fileno(), length, 8)
    try:
        header = json.loads(data.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise InputError("the snapshot file's header is not JSON with unique keys") from None
    if not isinstance(header, dict):
        raise InputError("the snapshot file's header is not a JSON object")
    begin, room = 8 + length, size - 8 - length
    metadata = header.pop(RESERVED, None)
    tensors = {name: _tensor(name, each, begin, room) for name, each in header.items()}
    return tensors, metadata, begin, size


def _texts(metadata: object) -> dict[str, str]:
    entries = metadata.items() if isinstance(metadata, dict) else ()
    return {name: text for name, text in entries if isinstance(text, str)}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError
    return members


def _tensor(name: str, entry: Any, begin: int, room: int) -> Tensor:
    try:
        name.encode()
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_right = (
            isinstance(dtype, str)
            and len(shape) <= _MOST_DIMENSIONS
            and all(type(n) is int and 0 <= n <= _LARGEST for n in (*shape, first, last))
            and first <= last
        )
    except (KeyError, TypeError, ValueError):
        is_right = False
    if not is_right:
        raise InputError(f"the snapshot file's header entry of tensor {name[:80]!a} is not valid")
    if last > room:
        raise InputError(
            f"the snapshot file ends before the values of tensor {name[:80]!a}: it has {room} bytes"
            f" of values, and the tensor ends at {last}"
        )
    bits = _BITS.get(dtype)
    if bits is not None and prod(shape) * bits != (last - first) * 8:
        raise InputError(
            f"the snapshot file's tensor {name[:80]!a} has {last - first} bytes, which does not"
            f" match its shape and {dtype}"
        )
    return Tensor(dtype, tuple(shape), begin + first, last - first)
