"""How far the tensors are apart that two runs have stored with `digest_keep` (docs/digests.md)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from ....errors import InputError
from ....ulp import FORMATS, FloatFormat, ulp_distance
from ...targets.objects.tensors import Tensor, TensorFile

_PIECE: Final = 1 << 16
_VALUES: Final = "values"
_REAL: Final = {"complex64": "float32", "complex128": "float64"}
_INTEGERS: Final = {8: "B", 16: "H", 32: "I", 64: "Q"}
"""The codes of `struct` for integers of so many bits."""


class KeptDistance(NamedTuple):
    """The largest distance of all elements of a tensor."""

    ulp: int | None
    """None if exactly one of two elements is a NaN, or if the elements are not those of the same
    places."""


def kept_distance(a: Path, b: Path, name: str) -> KeptDistance | None:
    """Return the largest distance of a tensor's elements in two files.

    None if the files do not have it with the same dtype, shape and layout, if its elements are not
    floating-point numbers, or if a file cannot be read.
    """
    try:
        with a.open("rb") as one, b.open("rb") as other:
            return _distance(one, TensorFile(one), other, TensorFile(other), name)
    except (OSError, InputError):
        return None


class _Part(NamedTuple):
    """One of the dense tensors that a tensor is stored as."""

    key: str
    """The name in the file."""
    dtype: str


def _distance(
    a: BinaryIO, first: TensorFile, b: BinaryIO, second: TensorFile, name: str
) -> KeptDistance | None:
    description = first.metadata.get(name)
    if description is None or description != second.metadata.get(name):
        return None
    parts = _parts(name, description)
    numbers = next((each for each in parts if each.key == f"{name}#{_VALUES}"), parts[0])
    form = FORMATS.get(_REAL.get(numbers.dtype, numbers.dtype))
    pairs = {part: (first.tensors.get(part.key), second.tensors.get(part.key)) for part in parts}
    farthest: int | None = 0
    for part, (one, other) in pairs.items():
        if one is None or other is None or one.size != other.size or form is None:
            return None
        for piece in _different_pieces(a, one, b, other):
            if part is not numbers:
                return KeptDistance(None)  # the indices of a sparse tensor, for example
            ulp = _farthest(*piece, _REAL.get(part.dtype, part.dtype), form)
            farthest = None if ulp is None or farthest is None else max(farthest, ulp)
    return KeptDistance(farthest)


def _parts(name: str, description: str) -> list[_Part]:
    """Return the parts of a tensor by its description: dtype and shape, and those of the parts."""
    words = description.split()
    keys, dtypes = words[3::3], words[4::3]
    if not keys:
        return [_Part(name, words[0])]
    return [_Part(f"{name}#{key}", dtype) for key, dtype in zip(keys, dtypes, strict=False)]


def _farthest(a: bytes, b: bytes, dtype: str, form: FloatFormat) -> int | None:
    """Return the largest distance of the numbers in two texts; None if one of a pair is a NaN."""
    code = f"<{len(a) * 8 // form.bits}{_INTEGERS[form.bits]}"
    sign, farthest = 1 << form.bits - 1, 0
    for x, y in zip(struct.unpack(code, a), struct.unpack(code, b), strict=True):
        if x == y:
            continue
        are_ordered = form.is_signed and form.has_negative_zero and x ^ y < sign
        if are_ordered and (x | sign) - sign <= form.largest >= (y | sign) - sign:
            distance: int | None = abs(x - y)
        else:
            distance = ulp_distance(x, y, dtype)
        if distance is None:
            return None
        farthest = max(farthest, distance)
    return farthest


def _different_pieces(
    a: BinaryIO, first: Tensor, b: BinaryIO, second: Tensor
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the pieces of two tensors of the same size that differ."""
    a.seek(first.start)
    b.seek(second.start)
    size = first.size
    while size > 0:
        length = min(size, _PIECE)
        one, other = a.read(length), b.read(length)
        if len(one) != length or len(other) != length:
            raise InputError("the file of a kept tensor ends early")
        if one != other:
            yield one, other
        size -= length
