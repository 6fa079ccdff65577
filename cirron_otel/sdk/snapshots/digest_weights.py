"""The weights of a digest, and the products of rows of bytes with them (docs/digests.md).

The weight of a word is the product of a weight of its column and a weight of its row. A row's sum
of words times column weights is a sum of bytes times the digits of these weights in base 256. So
two halves of 64 bits are one product of matrices of 8-bit integers, with 16 columns, whose results
fit into 32 bits. That reads the memory once and needs no intermediate result.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

COLUMNS = 1024
"""Words in a row."""
ROW = 4 * COLUMNS
"""Bytes in a row."""
_HALVES = 2
_DIGITS = 8
_MASK = (1 << 64) - 1
_FIRST_ROW = 1 << 40
_GOLDEN = 0x9E3779B97F4A7C15
_WORDS_AT_ONCE = 1 << 20
"""Words that are widened to 64 bits at a time: 8 MB, and 8 MB for their products."""


def odd(number: int) -> int:
    """Return an odd integer of 64 bits: the finaliser of SplitMix64, with bit 0 set."""
    mixed = number * _GOLDEN & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31 | 1


def column_weight(column: int, half: int) -> int:
    """Return the weight of a column for one half of the digest."""
    return odd(2 * column + half + 1)


def row_weights(rows: int, device: Any) -> Any:
    """Return the weights of the first `rows` rows on `device`, one column for each half."""
    torch = sys.modules["torch"]
    places = torch.arange(rows * _HALVES, dtype=torch.int64, device=device).add_(_FIRST_ROW)
    mixed = places.mul_(_signed(_GOLDEN))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        # A shift of signed integers copies the sign, which the mask removes.
        mixed ^= (mixed >> shift) & ((1 << 64 - shift) - 1)
        mixed *= _signed(factor)
    return (mixed | 1).view(rows, _HALVES)


def _signed(number: int) -> int:
    """Return the signed integer with the same 64 bits."""
    return number - (1 << 64) if number >> 63 else number


class Matrix:
    """Multiplies rows by the digits of the column weights, as 8-bit integers."""

    width = _HALVES * _DIGITS
    """Results for each row."""

    def __init__(self, device: Any) -> None:
        torch = sys.modules["torch"]
        self.dtype = torch.int32
        digits = torch.tensor(_digits(), dtype=torch.int8, device="cpu")
        self._weights = to_device(digits, device).t()
        powers = torch.tensor([1 << 8 * place for place in range(_DIGITS)], device="cpu")
        self._powers = to_device(powers, device)

    def multiply(self, rows: Any, out: Any) -> None:
        """Store the results of `rows`, bytes as int8, in `out`, int32."""
        sys.modules["torch"]._int_mm(rows, self._weights, out=out)

    def halves(self, results: Any) -> Any:
        """Return both sums of each row, modulo 2⁶⁴."""
        torch = sys.modules["torch"]
        wide = results.to(torch.int64).view(-1, _HALVES, _DIGITS)
        return wide.mul_(self._powers).sum(2)


class Words:
    """Multiplies rows by the column weights, as 64-bit integers; available on every device."""

    width = _HALVES

    def __init__(self, device: Any) -> None:
        torch = sys.modules["torch"]
        self.dtype = torch.int64
        weights = [[_signed(column_weight(c, h)) for c in range(COLUMNS)] for h in range(_HALVES)]
        self._weights = to_device(torch.tensor(weights, dtype=torch.int64, device="cpu"), device)

    def multiply(self, rows: Any, out: Any) -> None:
        """Store the sums of `rows`, bytes as int8, in `out`, int64."""
        torch = sys.modules["torch"]
        at_once = _WORDS_AT_ONCE // COLUMNS
        for part, into in zip(rows.split(at_once), out.split(at_once), strict=True):
            # The sign of each byte counts: flip the top bits, and subtract 128 from each byte.
            words = part.view(torch.int32).bitwise_xor(-0x7F7F7F80).to(torch.int64)
            words.bitwise_and_(0xFFFFFFFF).sub_(0x80808080)
            for half in range(_HALVES):
                into[:, half] = torch.mul(words, self._weights[half]).sum(1)

    def halves(self, results: Any) -> Any:
        """Return both sums of each row, modulo 2⁶⁴."""
        return results


@cache
def _digits() -> list[list[int]]:
    """Return the digits from −128 to 127 of each byte's weight in base 256, modulo 2⁶⁴.

    There is one list for each half and place, least significant first, with a digit for each byte.
    """
    lists: list[list[int]] = []
    for half in range(_HALVES):
        columns = []
        for column in range(COLUMNS):
            rest, digits = column_weight(column, half), []
            for _ in range(_DIGITS):
                digit = (rest + 128) % 256 - 128
                digits.append(digit)
                rest = (rest - digit) >> 8
            columns.append(digits)
        for place in range(_DIGITS):
            lists.append(
                [
                    digits[place - byte] if place >= byte else 0
                    for digits in columns
                    for byte in range(4)
                ]
            )
    return lists


def to_device(values: Any, device: Any) -> Any:
    """Copy a tensor in host memory to a device without waiting for the device.

    A copy from memory that is not pinned may wait.
    """
    if device.type == "cpu":
        return values
    torch = sys.modules["torch"]
    shape, kind = values.shape, values.dtype
    pinned = torch.empty(shape, dtype=kind, device="cpu", pin_memory=True).copy_(values)
    return torch.empty(shape, dtype=kind, device=device).copy_(pinned, non_blocking=True)


def multiplier(device: Any) -> Matrix | Words:
    """Return the fastest multiplier that gives exact results on `device`."""
    words = Words(device)
    if not _has_byte_products(device):
        return words
    try:
        matrix = Matrix(device)
        return matrix if _agree(device, matrix, words) else words
    except Exception:  # this version of torch does not support it on this device
        return words


def _agree(device: Any, *multipliers: Matrix | Words) -> bool:
    """Return whether both multipliers give equal results for extreme rows.

    On a device, they are only run, because comparing their results would wait for it.
    """
    torch = sys.modules["torch"]
    rows = torch.full((64, ROW), -128, dtype=torch.int8, device=device)
    rows[::2] = 127
    halves = []
    for each in multipliers:
        results = torch.empty((len(rows), each.width), dtype=each.dtype, device=device)
        each.multiply(rows, results)
        halves.append(each.halves(results))
    return device.type != "cpu" or bool(torch.equal(*halves))


def _has_byte_products(device: Any) -> bool:
    """Return whether products of 8-bit matrices are exact and fast.

    Without the instructions for them, a CPU may saturate sums at 16 bits.
    """
    torch = sys.modules["torch"]
    if not hasattr(torch, "_int_mm"):
        return False
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    return device.type == "cpu" and has_vnni is not None and bool(has_vnni())
