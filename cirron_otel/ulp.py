"""Distances between floating-point numbers, in units in the last place (ULP).

The numbers of a format are ordered on a line of integers: neighbours differ by 1, −0 and +0 are the
same point, and infinity is the neighbour of the largest finite number. A NaN is not on the line.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_DOUBLE: Final = struct.Struct("<d")
_DOUBLE_BITS: Final = struct.Struct("<Q")


class FloatFormat(NamedTuple):
    """A binary format: a sign bit if it has one, and a magnitude of exponent and fraction bits."""

    bits: int
    """The number of bits, with that of the sign."""
    largest: int
    """The largest magnitude that is not a NaN: infinity, or the largest finite number."""
    has_negative_zero: bool = True
    """Whether the sign bit alone is −0; otherwise it is the format's only NaN."""
    is_signed: bool = True
    """Whether the first bit is a sign."""


FORMATS: Final = {
    "float64": FloatFormat(64, 0x7FF0000000000000),
    "float32": FloatFormat(32, 0x7F800000),
    "bfloat16": FloatFormat(16, 0x7F80),
    "float16": FloatFormat(16, 0x7C00),
    "float8_e5m2": FloatFormat(8, 0x7C),
    "float8_e4m3fn": FloatFormat(8, 0x7E),
    "float8_e5m2fnuz": FloatFormat(8, 0x7F, has_negative_zero=False),
    "float8_e4m3fnuz": FloatFormat(8, 0x7F, has_negative_zero=False),
    "float8_e8m0fnu": FloatFormat(8, 0xFE, is_signed=False),
}
"""The formats by PyTorch's names. `float8_e8m0fnu` has an exponent only; the bits 0 are 2⁻¹²⁷."""


def ulp_distance(a: float, b: float, dtype: str | None = None) -> int | None:
    """Return the distance between two numbers; None if exactly one of them is a NaN.

    Without `dtype`, the numbers are doubles. With it, a key of `FORMATS`, they are the bits of
    numbers of that format, as integers. Two NaNs have the distance 0, whatever their bits.

    Raises ValueError for an unknown `dtype`, and for an integer that has too many bits.
    """
    if dtype is None:
        dtype = "float64"
        a, b = bits_of_double(a), bits_of_double(b)
    first, second = _ordered(a, dtype), _ordered(b, dtype)
    if first is None or second is None:
        return 0 if first is second else None
    return abs(first - second)


def bits_of_double(number: float) -> int:
    """Return the 64 bits of a double as an unsigned integer."""
    bits: int = _DOUBLE_BITS.unpack(_DOUBLE.pack(number))[0]
    return bits


def _ordered(bits: float, dtype: str) -> int | None:
    """Return the position of a number on the line of integers; None for a NaN."""
    form = FORMATS.get(dtype)
    if form is None:
        raise ValueError(f"unknown format {dtype!r}: expected one of {', '.join(FORMATS)}")
    if not isinstance(bits, int) or not 0 <= bits < 1 << form.bits:
        raise ValueError(f"{bits!r} is not a number of {form.bits} bits: expected the bits")
    sign = 1 << form.bits - 1 if form.is_signed else 0
    magnitude = bits & ~sign
    if magnitude > form.largest or (bits == sign and not form.has_negative_zero):
        return None
    return -magnitude if bits & sign else magnitude
