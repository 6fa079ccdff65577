"""Measure large tensors in host memory in two passes, in portions that stay in the cache.

Only one portion at a time is held in memory as doubles. Sums equal those of numpy in float64 for
every dtype.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from .statistics import BINS, NUDGE, Moments, exponent_of
from .tensors import pieces

PORTION = 1 << 20
"""Number of elements in a portion: 17 MB of buffers, which mostly stay in a cache.

Smaller portions are slower if several threads share a portion and wait for each other.
"""
_COMPLEX = 1 << 16
"""Number of complex elements whose magnitudes are computed at once: 3 MB of buffers."""


class Serial:
    """Measures tensors one after the other, in buffers that it reuses."""

    def __init__(self, portion: int = PORTION) -> None:
        """`portion` is a number of elements."""
        torch = sys.modules["torch"]
        self._torch = torch
        self._portion = portion
        self._values = torch.empty(portion, dtype=torch.float64, device="cpu")
        self._shifted = torch.empty(portion, dtype=torch.float64, device="cpu")
        self._bins = torch.empty(portion, dtype=torch.uint8, device="cpu")
        integers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
        floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        self._native = frozenset(integers + floats)
        """The dtypes whose minimum and maximum torch can compute."""

    def measure(self, tensor: Any, zeros: int = 0) -> Moments:
        """Return the moments of a dense tensor and `zeros` additional zero elements."""
        moments = Moments()
        if zeros:
            moments.low = moments.high = 0.0
        self._find_range(tensor, moments)
        if moments.low > moments.high:
            return moments  # no element is finite
        self._sum_up(tensor, moments)
        moments.add_zeros(zeros)
        return moments

    def _find_range(self, tensor: Any, moments: Moments) -> None:
        aminmax = self._torch.aminmax
        for piece in pieces(tensor, self._portion):
            values = self._real(piece)
            if values.dtype not in self._native:
                values = self._doubles(values)
            low, high = map(float, aminmax(values))
            if not (math.isfinite(low) and math.isfinite(high)):
                values = self._count_kinds(values, moments)
                if not values.numel():
                    continue
                low, high = map(float, aminmax(values))
            moments.low, moments.high = min(moments.low, low), max(moments.high, high)

    def _count_kinds(self, values: Any, moments: Moments) -> Any:
        """Count non-finite elements by kind, and return the finite ones."""
        torch = self._torch
        values = values.reshape(-1)
        infs = int((values == math.inf).sum())
        neg_infs = int((values == -math.inf).sum())
        finite = values[torch.isfinite(values)]
        moments.infs += infs
        moments.neg_infs += neg_infs
        moments.nans += values.numel() - finite.numel() - infs - neg_infs
        return finite

    def _sum_up(self, tensor: Any, moments: Moments) -> None:
        """Compute mean, squared deviations, and histogram once the range is known."""
        torch = self._torch
        low, high = moments.low, moments.high
        moments.exponent = exponent_of(max(-low, high))
        scale = 2.0**-moments.exponent
        low, high = low * scale, high * scale
        per_width = NUDGE * BINS / (high - low) if low < high else 0.0
        counts = torch.zeros(BINS, dtype=torch.int64, device="cpu")
        has_others = bool(moments.not_finite)
        for piece in pieces(tensor, self._portion):
            values = self._real(piece)
            if has_others:
                if values.dtype not in self._native:
                    values = self._doubles(values)
                values = values.reshape(-1)
                values = values[torch.isfinite(values)]
            count = values.numel()
            if not count:
                continue
            doubles = self._doubles(values)
            if scale != 1.0:
                doubles.mul_(scale)
            mean = float(doubles.sum()) / count
            if per_width:
                shifted = torch.sub(doubles, low, out=self._shifted[:count])
                shifted.mul_(per_width).clamp_(0.0, BINS - 1.0)
                bins = self._bins[:count].copy_(shifted)
                counts += torch.bincount(bins, minlength=BINS)
            else:
                counts[0] += count
            doubles.sub_(mean)
            moments.add(count, mean, float(torch.dot(doubles, doubles)))
        moments.counts = counts.tolist()

    def _doubles(self, values: Any) -> Any:
        """Copy a portion to the buffer; the next portion overwrites it."""
        buffer = self._values[: values.numel()]
        buffer.view(values.shape).copy_(values)
        return buffer

    def _real(self, piece: Any) -> Any:
        if piece.device.type != "cpu":
            piece = piece.cpu()
        return magnitudes(piece) if piece.dtype.is_complex else piece


def magnitudes(values: Any) -> Any:
    """Return the absolute values of complex numbers as float64.

    Equal elements have equal results. `torch.abs` rounds an element differently at the end of a
    tensor, so a constant tensor would have a nonzero standard deviation.
    """
    torch = sys.modules["torch"]
    result = torch.empty(values.shape, dtype=torch.float64, device=values.device)
    flat, places = values.detach().resolve_conj().reshape(-1), result.view(-1)
    for some, place in zip(flat.split(_COMPLEX), places.split(_COMPLEX), strict=True):
        parts = torch.view_as_real(some).to(torch.float64, copy=True).abs_()
        real, imaginary = parts.unbind(-1)
        larger = torch.maximum(real, imaginary, out=place)
        ratio = torch.minimum(real, imaginary).div_(larger)
        ratio.mul_(ratio).add_(1).sqrt_()
        is_zero, is_infinite = larger == 0, torch.fmax(real, imaginary).isinf()
        larger.mul_(ratio).masked_fill_(is_zero, 0.0).masked_fill_(is_infinite, math.inf)
    return result
