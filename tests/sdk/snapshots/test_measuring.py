"""Both ways of measuring, against exact arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cirron_otel.sdk.snapshots import batched
from cirron_otel.sdk.snapshots.serial import Serial
from cirron_otel.sdk.snapshots.statistics import Moments, moments_of, statistics

from .reference import check, check_histogram

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "bool")
ODD = st.sampled_from([math.nan, math.inf, -math.inf])


def both_ways(tensor: Any, zeros: int = 0, portion: int = 7) -> list[Moments]:
    """Its moments by the one and the other, in small portions; a neighbour changes nothing."""
    found = [Serial(portion).measure(tensor, zeros)]
    if tensor.numel():
        other = torch.tensor([1e300, -3.0, math.nan], dtype=torch.float64)
        rows = batched.measure([other, tensor, other], [0, zeros, 0], portion)
        moments = moments_of(rows[1].tolist())
        moments.add_zeros(zeros)
        found.append(moments)
    return found


def elements(tensor: Any) -> list[float]:
    return [float(value) for value in tensor.to(torch.float64).reshape(-1).tolist()]


def see(tensor: Any, values: list[float], zeros: int = 0) -> None:
    """Both ways give what the values are, zeros included."""
    finite = [value for value in values if math.isfinite(value)]
    for moments in both_ways(tensor, zeros):
        stats = statistics(moments)
        assert stats is not None
        if len(finite) == len(values):
            check(stats, values)
            continue
        assert "histogram" not in stats
        assert stats["nonfinite_count"] == len(values) - len(finite)
        assert moments.nans == sum(map(math.isnan, values))
        assert stats["finite"]["count"] == len(finite)
        if finite:
            check(stats["finite"], finite)
        with np.errstate(all="ignore"):
            whole = {
                "min": np.min(values),
                "max": np.max(values),
                "mean": np.sum(values, dtype=np.longdouble),
            }
        for key, value in whole.items():
            said = stats["nonfinite"].get(key)
            assert (said, stats[key]) == (
                (None, value) if math.isfinite(value) else (str(value).replace("-nan", "nan"), None)
            )


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """Of any dtype, shape and layout, ordinary and extreme values mixed."""
    dtype = getattr(torch, draw(st.sampled_from(FLOATS + INTEGERS)))
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    size = math.prod(shape)
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        ordinary = st.floats(-2.0, 2.0)
        extreme = st.sampled_from([limits.max, limits.min, limits.tiny, -limits.tiny, 0.0, -0.0])
        some = st.one_of(ordinary, ordinary, extreme, ODD) if draw(st.booleans()) else ordinary
    elif dtype is torch.bool:
        some = st.integers(0, 1)
    else:
        limits = torch.iinfo(dtype)
        some = st.integers(limits.min, limits.max)
    values = draw(st.lists(some, min_size=size, max_size=size))
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    tensor = torch.tensor(values, dtype=wide).reshape(shape).to(dtype)
    return laid_out(draw, tensor)


def laid_out(draw: st.DrawFn, tensor: Any) -> Any:
    """The same, transposed, reversed, with gaps, or repeated without memory of its own."""
    how = draw(st.sampled_from(["plain", "transposed", "gaps", "expanded", "channels"]))
    if how == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1)
    if how == "gaps":
        return tensor.repeat_interleave(2, 0)[::2] if tensor.dim() else tensor
    if how == "expanded":
        return tensor.unsqueeze(-1).expand(*tensor.shape, 3)
    if how == "channels" and tensor.dim() == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


@given(tensors())
@settings(max_examples=100, deadline=None)
def test_any_tensor(tensor: Any) -> None:
    see(tensor, elements(tensor))


wide_floats = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(wide_floats, min_size=1, max_size=20))
@example([1.7e308, -1.7e308, 1.7e308])
@example([5e-324, 0.0, -5e-324])
@example([1.0, 1.0 + 2**-52] * 3)
@example([1e300, 1.0, -1e300])
@example([2.0**400, -(2.0**399)])
@settings(max_examples=100, deadline=None)
def test_doubles_of_any_size(values: list[float]) -> None:
    see(torch.tensor(values, dtype=torch.float64), values)


@pytest.mark.parametrize("value", [0.0, -2.5, 1e20, 0.1])
def test_constant_tensor_has_zero_deviation(value: float) -> None:
    tensor = torch.full((1000,), value)
    for moments in both_ways(tensor, portion=64):
        stats = statistics(moments)
        assert stats is not None
        assert stats["mean"] == stats["min"] == stats["max"] == tensor[0].item()
        assert stats["std"] == 0.0
        assert stats["histogram"]["counts"] == [1000, *[0] * 15]


def test_deviations_that_float32_would_lose() -> None:
    tensor = 1000 + torch.arange(4096, dtype=torch.float32) / 2**13
    told = tensor.to(torch.float64).numpy()
    for moments in both_ways(tensor, portion=100):
        stats = statistics(moments)
        assert stats is not None
        assert stats["std"] == pytest.approx(told.std(), rel=1e-12)


def test_a_large_tensor_as_numpy_has_it() -> None:
    generator = torch.Generator().manual_seed(3)
    tensor = torch.randn(1_000_003, generator=generator)
    told = tensor.to(torch.float64).numpy()
    counts, edges = np.histogram(told, bins=16)
    for moments in (Serial().measure(tensor), both_ways(tensor, portion=1 << 17)[1]):
        stats = statistics(moments)
        assert stats is not None
        assert stats["mean"] == pytest.approx(told.mean(), rel=1e-12)
        assert stats["std"] == pytest.approx(told.std(), rel=1e-12)
        assert stats["norm"] == pytest.approx(np.linalg.norm(told), rel=1e-12)
        assert stats["histogram"]["counts"] == counts.tolist()
        assert stats["histogram"]["bins"] == pytest.approx(edges.tolist(), rel=1e-12)


def test_edge_value_counts_in_the_upper_bin_and_the_maximum_in_the_last() -> None:
    tensor = torch.arange(33, dtype=torch.float32) / 32 * 3 + 0.7
    exact_edges = torch.arange(0, 17, dtype=torch.int32)
    for moments in both_ways(exact_edges):
        assert moments.counts == [*[1] * 15, 2]
    for moments in both_ways(tensor):
        check_histogram({"bins": statistics(moments)["histogram"]["bins"],  # type: ignore[index]
                         "counts": moments.counts}, elements(tensor))  # fmt: skip


@given(st.lists(st.floats(-2, 2, width=32) | ODD, max_size=12), st.integers(1, 30))
@settings(max_examples=80, deadline=None)
def test_zeros_that_are_not_stored_count(values: list[float], zeros: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float32)
    see(tensor, elements(tensor) + [0.0] * zeros, zeros)


some_complex = st.complex_numbers(max_magnitude=100, width=64) | st.sampled_from(
    [0j, 3 + 4j, -1e-20 - 1e-20j, 1e19 + 3e19j, complex(1.0, math.nan), complex(0.0, -math.inf),
     complex(math.nan, math.inf)]
)  # fmt: skip


@given(st.lists(some_complex, min_size=1, max_size=20))
@example([0j] * 7 + [26.598989486694336 + 23.236417770385742j])
@example([26.598989486694336 + 23.236417770385742j] * 17)
@settings(max_examples=50, deadline=None)
def test_complex_numbers_count_by_their_magnitude(values: list[complex]) -> None:
    """Equal elements have equal magnitudes, wherever they are in a tensor."""
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.tensor(values, dtype=dtype)
        exact = [magnitude(value) for value in tensor.tolist()]
        assert exact == pytest.approx(elements(tensor.abs()), rel=1e-6, nan_ok=True)
        see(tensor, exact)
        see(torch.conj(tensor), exact)


@pytest.mark.parametrize("size", [1e300, 1e-310])
def test_magnitudes_are_correct_if_complex_squares_overflow_or_underflow(size: float) -> None:
    values = [complex(3 * size, 4 * size), complex(0.0, size)]
    for moments in both_ways(torch.tensor(values, dtype=torch.complex128)):
        stats = statistics(moments)
        assert stats is not None
        assert (stats["min"], stats["max"]) == (size, pytest.approx(5 * size))


def test_complex_weights_that_are_trained() -> None:
    weights = torch.nn.Parameter(torch.tensor([3 + 4j, 1j]))
    see(weights, [5.0, 1.0])
    assert weights.tolist() == [3 + 4j, 1j]


def magnitude(value: complex) -> float:
    """The absolute value by the same operations; torch's root differs from that of `math`."""
    real, imaginary = abs(value.real), abs(value.imag)
    if math.isinf(real) or math.isinf(imaginary):
        return math.inf
    if math.isnan(real) or math.isnan(imaginary):
        return math.nan
    larger, smaller = max(real, imaginary), min(real, imaginary)
    ratio = smaller / larger if larger else 0.0
    root = torch.tensor(1 + ratio * ratio, dtype=torch.float64).sqrt().item()
    assert root == pytest.approx(math.sqrt(1 + ratio * ratio), rel=1e-15)
    return float(larger * root)


def test_deterministic_algorithms_do_not_change_the_statistics() -> None:
    tensor = torch.cat([torch.linspace(-1, 5, 500), torch.tensor([math.inf])])
    before = [statistics(each) for each in both_ways(tensor, portion=64)]
    torch.use_deterministic_algorithms(True)
    try:
        assert [statistics(each) for each in both_ways(tensor, portion=64)] == before
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("settled", ["dtype", "device", "autocast", "inference"])
def test_global_torch_settings_do_not_change_the_statistics(settled: str) -> None:
    tensor = torch.linspace(-1, 5, 500)
    before = [statistics(each) for each in both_ways(tensor, portion=64)]
    try:
        if settled == "dtype":
            torch.set_default_dtype(torch.bfloat16)
        elif settled == "device":
            torch.set_default_device("meta")
        context: Any = (
            torch.autocast("cpu", torch.bfloat16)
            if settled == "autocast"
            else torch.inference_mode(settled == "inference")
        )
        with context:
            rows = batched.measure([tensor], [0], 64)
            found = [Serial(64).measure(tensor), moments_of(rows[0].tolist())]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert [statistics(each) for each in found] == before
