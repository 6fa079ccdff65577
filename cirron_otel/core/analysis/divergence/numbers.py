"""Numbers of which the bits are recorded, as text."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ....ulp import FORMATS

_UNPACKED: Final = {"float64": "<d", "float32": "<f", "float16": "<e"}


class ExactNumber(NamedTuple):
    """A number of which all bits are recorded."""

    tensor: str | None
    """The tensor that it is the only element of, if the quantity has several."""
    dtype: str
    bits: int


def number_text(number: ExactNumber) -> str:
    """Return a number in decimals, or its bits in hexadecimal for other than common formats."""
    dtype, bits = number.dtype, number.bits
    if dtype == "bfloat16":
        dtype, bits = "float32", bits << 16
    form = FORMATS.get(dtype)
    if dtype not in _UNPACKED or form is None or bits >> form.bits:
        return f"0x{bits:x}"
    value: float = struct.unpack(_UNPACKED[dtype], bits.to_bytes(form.bits // 8, "little"))[0]
    return repr(value) if dtype == "float64" else f"{value:.9g}"
