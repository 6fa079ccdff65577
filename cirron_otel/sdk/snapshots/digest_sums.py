"""Sum up the words of many tensors on one device, without waiting for it (docs/digests.md).

Tensors are divided into rows. A large contiguous tensor is multiplied where it is, in portions; the
remaining rows of all tensors are gathered into a staging area of the same size. A plan, which
depends only on the sizes, assigns the rows; it is reused while the sizes stay the same.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .digest_weights import ROW, Matrix, Words, multiplier, row_weights, to_device

ON_HOST = (32, 256, 1024)
"""The numbers of rows that a portion in host memory may have: 4 MB at most. Only the last portion
may be smaller. The numbers are few because torch prepares the product for each of them."""
ON_DEVICE = (64, 512, 4096)
"""The same on a device: 16 MB at most."""
_GROUP = 16
"""Portions whose results are added at a time."""
_MOST_PLANS = 32


class Part:
    """A dense tensor, as the bytes of its rows."""

    __slots__ = ("flat", "size", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.size = tensor.numel() * tensor.element_size()
        self.flat: Any = None
        """A view of all bytes as int8; None if the elements are not in row-major order."""
        if self.size and tensor.is_contiguous():
            self.flat = tensor.view(-1).view(sys.modules["torch"].int8)

    @property
    def key(self) -> int:
        """The size in bytes, negative if the elements are not in row-major order."""
        size: int = self.size
        return size if self.flat is not None else -size


class _Segment:
    """Consecutive rows of a part in one portion."""

    __slots__ = ("end", "part", "row", "start")

    def __init__(self, part: int, start: int, end: int, row: int) -> None:
        self.part, self.row = part, row
        """The number of the part, and the segment's first row in the portion."""
        self.start, self.end = start, end
        """The first byte in the part, and the byte after the last."""


class _Stretch(NamedTuple):
    """Bytes of a part that are not placed yet; `row` is the number of their first row."""

    part: int
    start: int
    end: int
    owner: int
    row: int


class _Plan:
    """The portions of parts of given sizes."""

    def __init__(self, keys: Sequence[tuple[int, ...]], device: Any, sizes: Sequence[int]) -> None:
        """`keys` contains the keys of the parts of each tensor."""
        self.portions: list[tuple[int, list[_Segment]]] = []
        """The rows of each portion, and its segments. A segment of all rows is not gathered."""
        self._sizes, self._most = sizes, sizes[-1]
        staged: list[_Stretch] = []
        placed: list[tuple[int, int, int, int]] = []
        part = 0
        for owner, each in enumerate(keys):
            row = 0
            for key in each:
                stretch = self._place_directly(_Stretch(part, 0, abs(key), owner, row), key, placed)
                staged += [stretch] if stretch.start < stretch.end else []
                row += -(-abs(key) // ROW)
                part += 1
        self._place(staged, placed)
        self._tables(device, len(keys), placed)

    def _place_directly(
        self, stretch: _Stretch, key: int, placed: list[tuple[int, int, int, int]]
    ) -> _Stretch:
        """Make portions of the full portions of a contiguous part; return the rest of it."""
        part, start, end, owner, row = stretch
        full = self._most * ROW
        while key > 0 and end - start >= full:
            placed.append((len(self.portions) * self._most, owner, row, self._most))
            self.portions.append((self._most, [_Segment(part, start, start + full, 0)]))
            start += full
            row += self._most
        return _Stretch(part, start, end, owner, row)

    def _place(self, staged: list[_Stretch], placed: list[tuple[int, int, int, int]]) -> None:
        """Fill portions with stretches, which may be divided between rows."""
        most = self._most
        portion: list[_Segment] = []
        used = 0
        for part, begin, last, owner, first in staged:
            start, row = begin, first
            while start < last:
                if used == most:
                    self.portions.append((most, portion))
                    portion, used = [], 0
                rows = min(-(-(last - start) // ROW), most - used)
                end = min(start + rows * ROW, last)
                portion.append(_Segment(part, start, end, used))
                placed.append((len(self.portions) * most + used, owner, row, rows))
                used += rows
                row += rows
                start = end
        if portion:
            self.portions.append((next(size for size in self._sizes if size >= used), portion))

    def _tables(self, device: Any, tensors: int, placed: list[tuple[int, int, int, int]]) -> None:
        """Create, for each row of all portions, the numbers of its tensor and of its weight.

        `placed` contains, for each segment, its place among all rows, its tensor, the number of its
        first row in the tensor, and its rows.
        """
        torch = sys.modules["torch"]
        total = len(self.portions) * self._most
        owners = torch.full((total,), tensors, dtype=torch.int64, device="cpu")
        numbers = torch.zeros(total, dtype=torch.int64, device="cpu")
        self.most_rows = 1
        for at, owner, first, rows in placed:
            owners[at : at + rows] = owner
            torch.arange(first, first + rows, out=numbers[at : at + rows])
            self.most_rows = max(self.most_rows, first + rows)
        self.owners = to_device(owners.to(torch.int32), device)
        self.numbers = to_device(numbers.to(torch.int32), device)


class Summing:
    """Sums up tensors on one device."""

    def __init__(self, device: Any, by: Matrix | Words | None = None) -> None:
        """`by` multiplies the rows; None: the fastest multiplier of the device."""
        self._device = device
        self._sizes = ON_HOST if device.type == "cpu" else ON_DEVICE
        self._by = by or multiplier(device)
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()
        self._row_weights = row_weights(1, device)

    def sums(self, tensors: Sequence[Sequence[Part]]) -> Any:
        """Return the two sums of each tensor, given by its parts: int64, one row each.

        The result is on the device, which may not have computed it yet.
        """
        torch = sys.modules["torch"]
        keys = tuple([tuple([part.key for part in parts]) for parts in tensors])
        plan = self._plan(keys)
        most = self._sizes[-1]
        totals = torch.zeros((len(tensors) + 1, 2), dtype=torch.int64, device=self._device)
        parts = [part for each in tensors for part in each]
        stage = None
        for group in range(0, len(plan.portions), _GROUP):
            portions = plan.portions[group : group + _GROUP]
            results = torch.empty(
                (len(portions) * most, self._by.width), dtype=self._by.dtype, device=self._device
            )
            for number, (rows, segments) in enumerate(portions):
                out = results[number * most : number * most + rows]
                if rows < most:
                    results[number * most + rows : (number + 1) * most].zero_()
                source = self._direct(parts, rows, segments)
                if source is None:
                    if stage is None:
                        shape = (max(rows for rows, _ in plan.portions), ROW)
                        stage = torch.empty(shape, dtype=torch.int8, device=self._device)
                    source = self._gathered(parts, segments, stage[:rows])
                self._by.multiply(source, out)
            at = slice(group * most, group * most + len(results))
            weights = self._row_weights.index_select(0, plan.numbers[at])
            totals.index_add_(0, plan.owners[at], self._by.halves(results).mul_(weights))
        return totals[:-1]

    def _plan(self, keys: Any) -> _Plan:
        plan = self._plans.get(keys)
        if plan is None:
            plan = self._plans[keys] = _Plan(keys, self._device, self._sizes)
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
            if plan.most_rows > len(self._row_weights):
                self._row_weights = row_weights(2 * plan.most_rows, self._device)
        self._plans.move_to_end(keys)
        return plan

    def _direct(self, parts: list[Part], rows: int, segments: list[_Segment]) -> Any:
        """Return the rows of a portion that a tensor already contains as a matrix, or None."""
        first = segments[0]
        flat = parts[first.part].flat
        if len(segments) > 1 or first.end - first.start < rows * ROW or flat is None:
            return None
        return flat[first.start : first.end].view(rows, ROW)

    def _gathered(self, parts: list[Part], segments: list[_Segment], stage: Any) -> Any:
        """Copy the segments of a portion into `stage`; return it."""
        torch = sys.modules["torch"]
        stage.view(torch.int64).zero_()
        flat = stage.view(-1)
        words: tuple[list[Any], list[Any]] = [], []
        for each in segments:
            part = parts[each.part]
            at = each.row * ROW
            into = flat[at : at + each.end - each.start]
            if part.flat is None:
                _copy_strided(part.tensor, into, each)
                continue
            source = part.flat[each.start : each.end]
            if not (len(into) | source.data_ptr()) & 3:
                into, source = into.view(torch.int32), source.view(torch.int32)
                words[0].append(into)
                words[1].append(source)
            else:
                into.copy_(source)
        if words[0]:
            torch._foreach_copy_(*words)
        return stage


def _copy_strided(tensor: Any, into: Any, segment: _Segment) -> None:
    """Copy bytes of a tensor whose elements are not in row-major order."""
    size = tensor.element_size()
    at = 0
    for piece in _pieces(tensor, segment.start // size, segment.end // size):
        end = at + piece.numel() * size
        into[at:end].view(tensor.dtype).view(piece.shape).copy_(piece)
        at = end


def _pieces(tensor: Any, start: int, end: int) -> Iterator[Any]:
    """Yield views that together contain the elements `start` to `end` in row-major order."""
    if start <= 0 and end >= tensor.numel():
        yield tensor
        return
    if tensor.dim() == 1:
        yield tensor[max(start, 0) : end]
        return
    inner = tensor.numel() // len(tensor)
    first, last = max(start, 0), min(end, tensor.numel())
    row, at = divmod(first, inner)
    if at:
        yield from _pieces(tensor[row], at, min(at + last - first, inner))
        row += 1
    whole = last // inner
    if row < whole:
        yield tensor[row:whole]
    if row <= whole and last % inner:
        yield from _pieces(tensor[whole], 0, last % inner)
