"""Measuring many tensors at once on their device, without ever waiting for it.

Tensors are cut into pieces, pieces of about the same length are the rows of a matrix of doubles,
and every step is done to the whole matrix: first the range of each tensor, then its sums and its
histogram. What comes out is one small tensor on the device. Nothing depends on a value that the
host would have to read, so no step synchronises (docs/snapshots.md, "On a GPU").
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
"""What a row of the result says, before the 16 counts of the histogram."""
ON_DEVICE = 1 << 21
"""Elements of a matrix on an accelerator: about 64 MB with all that is made of it."""
ON_HOST = 1 << 15
"""The same in the host's memory: 1 MB."""
_MOST_ROWS = 1024


@dataclass(slots=True)
class _Bundle:
    """Pieces that are measured together: the rows of one matrix."""

    owners: list[int]
    parts: list[Any]

    @property
    def length(self) -> int:
        return int(self.parts[0].numel())  # the longest stands first


def measure(tensors: Sequence[Any], zeros: Sequence[int], limit: int) -> Any:
    """The moments of dense tensors of one device, a row each: `statistics.moments_of` reads them.

    `zeros` is how many more elements of each are 0: they widen its range and are not counted.
    """
    return _Measuring(tensors, zeros, limit).run()


def _bundles(tensors: Sequence[Any], limit: int) -> list[_Bundle]:
    cut = [(piece, owner) for owner, each in enumerate(tensors) for piece in pieces(each, limit)]
    cut.sort(key=lambda pair: -pair[0].numel())
    made: list[_Bundle] = []
    longest = 0
    for piece, owner in cut:
        rows = len(made[-1].parts) if made else _MOST_ROWS
        # Rows are filled up with zeros: at most as many as there are elements.
        if rows < _MOST_ROWS and (rows + 1) * longest <= limit and 2 * piece.numel() >= longest:
            made[-1].owners.append(owner)
            made[-1].parts.append(piece)
        else:
            made.append(_Bundle([owner], [piece]))
            longest = piece.numel()
    return made


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
        found = torch.cat([self._ranges(bundle) for bundle in self._bundles])
        empty = self._sent([[0.0, 0.0, 0.0, 0.0, math.inf, -math.inf]])
        by_piece = torch.cat([found, empty])[self._pieces]
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
            sums.append(self._sums(bundle, scaled[at : at + rows], found[at : at + rows, 0]))
            at += rows
        joined = self._joined(torch.cat(sums), totals[:, 0])
        ranges = torch.stack([low, high], 1)
        return torch.cat([totals, ranges, joined[:, :2], exponent[:, None], joined[:, 2:]], 1)

    def _sent(self, numbers: list[Any]) -> Any:
        """Numbers on the device, integers or doubles; by default that would wait for the device."""
        torch = self._torch
        is_whole = not numbers or isinstance(numbers[0], int) or isinstance(numbers[0][0], int)
        kind = torch.int64 if is_whole else torch.float64
        said = torch.tensor(numbers, dtype=kind, device="cpu")
        if self._device.type == "cpu":
            return said
        # Out of memory that is not pinned it may wait all the same; and `to` is a copy of the
        # user's, for the hooks.
        told = torch.empty(said.shape, dtype=kind, device="cpu", pin_memory=True).copy_(said)
        there = torch.empty(said.shape, dtype=kind, device=self._device)
        return there.copy_(told, non_blocking=True)

    def _places(self, owners: list[int], tensors: int) -> Any:
        """The numbers of each tensor's pieces, filled up with one past the last."""
        of: list[list[int]] = [[] for _ in range(tensors)]
        for number, owner in enumerate(owners):
            of[owner].append(number)
        most = max(map(len, of))
        return self._sent([numbers + [len(owners)] * (most - len(numbers)) for numbers in of])

    def _matrix(self, bundle: _Bundle) -> tuple[Any, Any]:
        """The pieces as doubles, a row each, and where the rows are elements of a piece.

        The second is None where all rows are full.
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
        """For each piece: its counts by kind, and the range of what is finite."""
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
        """`statistics.exponent_of`, of all at once; 0 where nothing is finite."""
        torch = self._torch
        is_plain = ((largest > 1 / LARGE) & (largest < LARGE)) | ~(largest.abs() < math.inf)
        found = torch.frexp(largest).exponent.to(torch.float64).clamp(-900, 1000)
        return torch.where(is_plain | (largest == 0), 0.0, found)

    def _sums(self, bundle: _Bundle, scaled: Any, count: Any) -> Any:
        """For each piece: its mean, its squared deviations from it, and its histogram."""
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
        """How many elements of each row are in each bin."""
        torch = self._torch
        if torch.are_deterministic_algorithms_enabled():  # there histc raises on a GPU
            each = [((bins == number) & finite).sum(1) for number in range(BINS)]
            return torch.stack(each, 1).to(torch.float64)
        rows = bins.shape[0]
        # Each row has bins of its own; half a bin up, for histc rounds; what is below counts not.
        first = torch.arange(rows, **self._doubles)[:, None] * BINS + 0.5
        told = torch.where(finite, bins.add_(first), -1.0)
        return torch.histc(told, rows * BINS, 0, rows * BINS).view(rows, BINS)

    def _joined(self, sums: Any, totals: Any) -> Any:
        """The sums of each tensor out of its pieces': mean, squared deviations, histogram."""
        torch = self._torch
        nothing = torch.zeros((1, sums.shape[1]), **self._doubles)
        by_piece = torch.cat([sums, nothing])[self._pieces]
        count, mean, squares = by_piece[:, :, 0], by_piece[:, :, 1], by_piece[:, :, 2]
        whole = (count * mean).sum(1) / totals.clamp(min=1.0)
        apart = (mean - whole[:, None]).square_()
        joined = (squares + count * apart).sum(1)
        return torch.cat([whole[:, None], joined[:, None], by_piece[:, :, 3:].sum(1)], 1)
