"""ULP distances against slow definitions."""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.ulp import FORMATS, bits_of_double, ulp_distance

from .traces import RECORDINGS

TABLE = json.loads((RECORDINGS / "ulp.json").read_text())
_LAYOUTS = {  # exponent bits, fraction bits, bias
    "float32": (8, 23, 127), "bfloat16": (8, 7, 127), "float16": (5, 10, 15),
    "float8_e5m2": (5, 2, 15), "float8_e4m3fn": (4, 3, 7),
    "float8_e5m2fnuz": (5, 2, 16), "float8_e4m3fnuz": (4, 3, 8), "float8_e8m0fnu": (8, 0, 127),
}  # fmt: skip
_IEEE = {"float32", "bfloat16", "float16", "float8_e5m2"}
_INFINITY = Fraction(2) ** 2000
SMALL = [name for name, form in FORMATS.items() if form.bits == 8]


def value_of(bits: int, dtype: str) -> Fraction | None:
    """The number with these bits, by the definition of the format; None for a NaN."""
    exponents, fractions, bias = _LAYOUTS[dtype]
    if dtype == "float8_e8m0fnu":
        return None if bits == 0xFF else Fraction(2) ** (bits - bias)
    sign = -1 if bits >> exponents + fractions else 1
    exponent = bits >> fractions & (1 << exponents) - 1
    fraction = bits & (1 << fractions) - 1
    top = exponent == (1 << exponents) - 1
    if dtype in _IEEE and top:
        return None if fraction else sign * _INFINITY
    if dtype == "float8_e4m3fn" and top and fraction == 7:
        return None
    if dtype.endswith("fnuz") and bits == 0x80:
        return None
    if exponent == 0:
        return sign * Fraction(fraction) * Fraction(2) ** (1 - bias - fractions)
    scale = Fraction(2) ** (exponent - bias - fractions)
    return sign * (fraction + (1 << fractions)) * scale


def line_of(dtype: str) -> dict[Fraction, int]:
    """The distinct numbers of a format in order, by counting."""
    numbers = {value_of(bits, dtype) for bits in range(1 << FORMATS[dtype].bits)}
    return {value: place for place, value in enumerate(sorted(numbers - {None}))}  # type: ignore[type-var, misc]


def slow(a: int, b: int, dtype: str, line: dict[Fraction, int]) -> int | None:
    first, second = value_of(a, dtype), value_of(b, dtype)
    if first is None or second is None:
        return 0 if first is second else None
    return abs(line[first] - line[second])


@pytest.mark.parametrize("dtype", SMALL)
def test_all_pairs_of_float8(dtype: str) -> None:
    line = line_of(dtype)
    for a, b in itertools.product(range(256), repeat=2):
        assert ulp_distance(a, b, dtype) == slow(a, b, dtype, line), (a, b)
        assert ulp_distance(a, b, dtype) == ulp_distance(b, a, dtype)


@pytest.mark.torch
def test_float8_formats_match_torch() -> None:
    """All numbers of every float8 format that torch has are those of the slow definition."""
    import torch

    names = {name for name in dir(torch) if name.startswith("float8_")}
    assert names <= set(SMALL)
    patterns = torch.tensor(range(256), dtype=torch.uint8)
    for name in names:
        numbers = patterns.view(getattr(torch, name)).to(torch.float64).tolist()
        for bits, number in enumerate(numbers):
            value = value_of(bits, name)
            if value is None:
                assert math.isnan(number), (name, bits)
            elif abs(value) == _INFINITY:
                assert number == (math.inf if value > 0 else -math.inf), (name, bits)
            else:
                assert Fraction(number) == value, (name, bits)


def test_the_scale_format_has_neither_sign_nor_zero() -> None:
    """`float8_e8m0fnu`: 255 powers of two, and one NaN."""
    dtype = "float8_e8m0fnu"
    assert ulp_distance(0, 0x80, dtype) == 0x80
    assert ulp_distance(0, 0xFE, dtype) == 254
    assert ulp_distance(0xFF, 0xFE, dtype) is ulp_distance(0, 0xFF, dtype) is None
    assert ulp_distance(0xFF, 0xFF, dtype) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_samples_of_16_bits(dtype: str) -> None:
    line, draw = line_of(dtype), random.Random(dtype)
    for _ in range(20_000):
        a, b = draw.randrange(1 << 16), draw.randrange(1 << 16)
        assert ulp_distance(a, b, dtype) == slow(a, b, dtype, line), (a, b)


def test_float32_neighbours_and_sums_of_distances() -> None:
    """Numbers are neighbours if no number is between them; distances add up along the line."""
    draw = random.Random(32)
    for _ in range(5_000):
        bits = draw.randrange(0x7F800000)
        low, high = value_of(bits, "float32"), value_of(bits + 1, "float32")
        assert low is not None
        assert high is not None
        assert low < high
        assert ulp_distance(bits, bits + 1, "float32") == 1
        other = draw.randrange(0x7F800000)
        assert ulp_distance(bits, other, "float32") == abs(bits - other)
        assert ulp_distance(bits, other | 1 << 31, "float32") == bits + other


def counted(a: float, b: float) -> int:
    """The number of steps of `nextafter` from a to b."""
    steps = 0
    while a != b:
        a, steps = math.nextafter(a, b), steps + 1
    return steps


_STARTS = st.one_of(
    st.floats(allow_nan=False), st.sampled_from([0.0, -0.0, 1.0, 2.0**-1022, math.inf, -5e-324])
)


@given(_STARTS, st.integers(-200, 200))
def test_doubles_by_counting_nextafter(start: float, steps: int) -> None:
    end = start
    for _ in range(abs(steps)):
        end = math.nextafter(end, math.copysign(math.inf, steps))
    assert ulp_distance(start, end) == ulp_distance(end, start) == counted(start, end)


@given(st.floats(), st.floats())
def test_doubles_are_symmetric_and_zero_for_equal_numbers(a: float, b: float) -> None:
    distance = ulp_distance(a, b)
    assert distance == ulp_distance(b, a)
    assert (distance == 0) == (a == b or (math.isnan(a) and math.isnan(b)))
    assert (distance is None) == (math.isnan(a) != math.isnan(b))
    assert ulp_distance(bits_of_double(a), bits_of_double(b), "float64") == distance


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['a']}-{row['b']}")
def test_the_table_of_the_testdata(row: dict[str, Any]) -> None:
    """Two NaNs have the distance 0 here, and none in the table."""
    a, b = (struct.unpack(">d", bytes.fromhex(row[key]))[0] for key in ("a_bits", "b_bits"))
    expected = 0 if math.isnan(a) and math.isnan(b) else row["ulp_ordered_int"]
    assert ulp_distance(a, b) == expected


def test_the_largest_finite_number_is_next_to_infinity() -> None:
    for dtype in _IEEE:
        largest = FORMATS[dtype].largest
        assert value_of(largest, dtype) == _INFINITY
        assert ulp_distance(largest, largest - 1, dtype) == 1
    assert ulp_distance(math.inf, math.nextafter(math.inf, 0)) == 1


def test_invalid_bits_or_format_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown format 'float4': expected one of float64"):
        ulp_distance(0, 0, "float4")
    for bits in (256, -1, 1.0):
        with pytest.raises(ValueError, match="is not a number of 8 bits"):
            ulp_distance(bits, 0, "float8_e5m2")
