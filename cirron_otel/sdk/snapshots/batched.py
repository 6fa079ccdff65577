"""Measure many tensors together on their device, without waiting for it.

Tensors are split into pieces, and pieces of similar length become the rows of a matrix of doubles.
Every operation processes a complete matrix: first it computes the range of each tensor, then its
sums and its histogram. The result is one small tensor on the device. No operation depends on a
value that the host would have to read, so no operation synchronises (docs/snapshots.md, "On a
GPU").
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .serial import magnitudes
from .statistics import BINS, LARGE, NUDGE
from .tensors import pieces

COLUMNS = ("count", "nans", "infs", "neg_infs", "low", "high", "mean", "squares", "exponent")
"""The columns of the result, before the 16 counts of the histogram."""
ON_DEVICE = 1 << 21
"""Maximum elements of a matrix on an accelerator: about 64 MB with all intermediate results."""
ON_HOST = 1 << 15
"""Maximum elements of a matrix in host memory: 1 MB."""
_MOST_ROWS = 1024


@dataclass(slots=True)
class _Bundle:
    """Pieces that are measured together, as the rows of one matrix."""

    owners: list[int]
    parts: list[Any]

    @property
    def length(self) -> int:
        return int(self.parts[0].numel())  # the first one is the longest


def measure(tensors: Sequence[Any], zeros: Sequence[int], limit: int) -> Any:
    """Return the moments of dense tensors on one device, one row each, for `statistics.moments_of`.

    `zeros` contains, for each tensor, the number of additional zero elements: they extend the
    tensor's range, but are not counted.
    """
    return _Measuring(tensors, zeros, limit).run()


def _bundles(tensors: Sequence[Any], limit: int) -> list[_Bundle]:
    cut = [(piece, owner) for owner, each in enumerate(tensors) for piece in pieces(each, limit)]
    cut.sort(key=lambda pair: -pair[0].numel())
    bundles: list[_Bundle] = []
    longest = 0
    for piece, owner in cut:
        rows = len(bundles[-1].parts) if bundles else _MOST_ROWS
        # Rows are padded with zeros, at most as many as there are elements.
        if rows < _MOST_ROWS and (rows + 1) * longest <= limit and 2 * piece.numel() >= longest:
            bundles[-1].owners.append(owner)
            bundles[-1].parts.append(piece)
        else:
            bundles.append(_Bundle([owner], [piece]))
            longest = piece.numel()
    return bundles


class _Measuring:
    def __init__(self, tensors: Sequence[Any], zeros: Sequence[int], limit: int) -> None:
        torch = sys.modules["torch"]
        self._torch = torch
        self._device = tensors[0].device
        self._doubles = {"dtype": torch.float64, "device": self._device}
        self._bundles = _bundles(tensors, limit)
        owners = [owner for bundle in self._bundles for owner in bundle.owners]
        self._owners = self._sent(owners)
        self._pieces = self._places(owners, len(tensors))
        self._has_zeros = any(zeros)
        self._zeros = self._sent([min(each, 1) for each in zeros])

    def run(self) -> Any:
        torch = self._torch
        ranges_of_pieces = torch.cat([self._ranges(bundle) for bundle in self._bundles])
        empty = self._sent([[0.0, 0.0, 0.0, 0.0, math.inf, -math.inf]])
        by_piece = torch.cat([ranges_of_pieces, empty])[self._pieces]
        totals = by_piece[:, :, :4].sum(1)
        low, high = by_piece[:, :, 4].amin(1), by_piece[:, :, 5].amax(1)
        if self._has_zeros:
            is_sparse = self._zeros > 0
            low = torch.where(is_sparse, low.clamp(max=0.0), low)
            high = torch.where(is_sparse, high.clamp(min=0.0), high)
        exponent = self._exponents(torch.maximum(-low, high))
        scale = torch.exp2(-exponent)
        scaled = torch.stack([low * scale, high * scale, scale], 1)[self._owners]
        sums, at = [], 0
        for bundle in self._bundles:
            rows = len(bundle.owners)
            sums.append(
                self._sums(bundle, scaled[at : at + rows], ranges_of_pieces[at : at + rows, 0])
            )
            at += rows
        joined = self._joined(torch.cat(sums), totals[:, 0])
        ranges = torch.stack([low, high], 1)
        return torch.cat([totals, ranges, joined[:, :2], exponent[:, None], joined[:, 2:]], 1)

    def _sent(self, numbers: list[Any]) -> Any:
        """Copy integers or doubles to the device without waiting, unlike torch's default."""
        torch = self._torch
        is_integer = not numbers or isinstance(numbers[0], int) or isinstance(numbers[0][0], int)
        kind = torch.int64 if is_integer else torch.float64
        values = torch.tensor(numbers, dtype=kind, device="cpu")
        if self._device.type == "cpu":
            return values
        # A copy from memory that is not pinned may still wait, and the hooks would count `to` as
        # a transfer of the user's program.
        pinned = torch.empty(values.shape, dtype=kind, device="cpu", pin_memory=True).copy_(values)
        on_device = torch.empty(values.shape, dtype=kind, device=self._device)
        return on_device.copy_(pinned, non_blocking=True)

    def _places(self, owners: list[int], tensors: int) -> Any:
        """Return the piece numbers of each tensor, padded with the number after the last piece."""
        of: list[list[int]] = [[] for _ in range(tensors)]
        for number, owner in enumerate(owners):
            of[owner].append(number)
        most = max(map(len, of))
        return self._sent([numbers + [len(owners)] * (most - len(numbers)) for numbers in of])

    def _matrix(self, bundle: _Bundle) -> tuple[Any, Any]:
        """Return the pieces as doubles, one row each, and a mask that is False for padding.

        The mask is None if no row is padded.
        """
        torch = self._torch
        parts = [
            magnitudes(part) if part.dtype.is_complex else part for part in bundle.parts
        ]  # fmt: skip
        length = bundle.length
        if len(parts) == 1:
            return parts[0].reshape(1, -1).to(torch.float64, copy=True), None
        matrix = torch.zeros((len(parts), length), **self._doubles)
        sizes = [part.numel() for part in parts]
        rows = [row[:size] for row, size in zip(matrix.unbind(0), sizes, strict=True)]
        torch._foreach_copy_(rows, [part.reshape(-1) for part in parts])
        if min(sizes) == length:
            return matrix, None
        columns = torch.arange(length, device=self._device)
        return matrix, columns < self._sent(sizes)[:, None]

    def _ranges(self, bundle: _Bundle) -> Any:
        """Return each piece's counts of finite and non-finite elements, and its finite range."""
        torch = self._torch
        matrix, is_piece = self._matrix(bundle)
        infs = (matrix == math.inf).sum(1)
        neg_infs = (matrix == -math.inf).sum(1)
        finite = self._finite(matrix, is_piece)
        count = finite.sum(1)
        sizes = matrix.shape[1] if is_piece is None else is_piece.sum(1)
        low = torch.where(finite, matrix, math.inf).amin(1)
        high = torch.where(finite, matrix, -math.inf).amax(1)
        nans = sizes - count - infs - neg_infs
        return torch.stack([count, nans, infs, neg_infs, low, high], 1)

    def _finite(self, matrix: Any, is_piece: Any) -> Any:
        finite = matrix.abs() < math.inf
        return finite if is_piece is None else finite & is_piece

    def _exponents(self, largest: Any) -> Any:
        """Return `statistics.exponent_of` for all tensors; 0 if no element is finite."""
        torch = self._torch
        is_plain = ((largest > 1 / LARGE) & (largest < LARGE)) | ~(largest.abs() < math.inf)
        exponents = torch.frexp(largest).exponent.to(torch.float64).clamp(-900, 1000)
        return torch.where(is_plain | (largest == 0), 0.0, exponents)

    def _sums(self, bundle: _Bundle, scaled: Any, count: Any) -> Any:
        """Return each piece's mean, its squared deviations from the mean, and its histogram."""
        torch = self._torch
        matrix, is_piece = self._matrix(bundle)
        finite = self._finite(matrix, is_piece)
        matrix = torch.where(finite, matrix, 0.0).mul_(scaled[:, 2, None])
        low, high = scaled[:, 0, None], scaled[:, 1, None]
        mean = matrix.sum(1) / count.clamp(min=1.0)
        per_width = torch.where(low < high, NUDGE * BINS / (high - low), 0.0)
        bins = torch.where(low < high, (matrix - low).mul_(per_width), 0.0)
        bins.clamp_(0.0, BINS - 1.0).floor_()
        counts = self._histograms(bins, finite)
        del bins
        matrix.sub_(mean[:, None])
        deviations = torch.where(finite, matrix, 0.0)
        squares = deviations.mul_(deviations).sum(1)
        return torch.cat([count[:, None], mean[:, None], squares[:, None], counts], 1)

    def _histograms(self, bins: Any, finite: Any) -> Any:
        """Return, for each row, the number of elements in each bin."""
        torch = self._torch
        if torch.are_deterministic_algorithms_enabled():  # histc then raises on a GPU
            each = [((bins == number) & finite).sum(1) for number in range(BINS)]
            return torch.stack(each, 1).to(torch.float64)
        rows = bins.shape[0]
        # Each row has separate bins, shifted by half a bin because histc rounds; -1 is not counted.
        first = torch.arange(rows, **self._doubles)[:, None] * BINS + 0.5
        numbered = torch.where(finite, bins.add_(first), -1.0)
        return torch.histc(numbered, rows * BINS, 0, rows * BINS).view(rows, BINS)

    def _joined(self, sums: Any, totals: Any) -> Any:
        """Combine the sums of the pieces of each tensor: mean, squared deviations, histogram."""
        torch = self._torch
        nothing = torch.zeros((1, sums.shape[1]), **self._doubles)
        by_piece = torch.cat([sums, nothing])[self._pieces]
        count, mean, squares = by_piece[:, :, 0], by_piece[:, :, 1], by_piece[:, :, 2]
        mean_of_all = (count * mean).sum(1) / totals.clamp(min=1.0)
        deviation = (mean - mean_of_all[:, None]).square_()
        joined = (squares + count * deviation).sum(1)
        return torch.cat([mean_of_all[:, None], joined[:, None], by_piece[:, :, 3:].sum(1)], 1)
