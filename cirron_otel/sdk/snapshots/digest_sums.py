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
from .stream_order import StreamOrder


class Sizes(NamedTuple):
    """The numbers of rows that are multiplied at a time on a kind of device."""

    staged: tuple[int, ...]
    """Those of the staging area: the largest, or a smaller one if that is enough."""
    direct: int
    """The least rows of a tensor that is multiplied where it is."""


ON_HOST = Sizes((16, 64, 256, 1024), 64)
"""In host memory. A staging area of 1,024 rows has 4 MB."""
ON_DEVICE = Sizes((64, 512, 4096), 4096)
"""On a device, where a multiplication of few rows takes as long as a copy of all of them."""
FEW = 16
"""Up to so many rows on the host, words are multiplied on one thread: torch starts no others for
them, which may have to wait for a core."""
_GROUP = 16_384
"""Rows whose results are added at a time: 1 MB of results, and 4 MB of intermediate ones."""
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


class _Portion(NamedTuple):
    """Rows that are multiplied together."""

    rows: int
    segments: list[_Segment]
    is_direct: bool
    """Whether the rows are multiplied where they are: there is one segment."""


class _Placed(NamedTuple):
    """Consecutive rows of one tensor among the rows of all portions."""

    at: int
    owner: int
    first: int
    """The number of the first row in its tensor."""
    rows: int


class _Plan:
    """The portions of parts of given sizes."""

    def __init__(self, keys: Sequence[tuple[int, ...]], device: Any, sizes: Sizes) -> None:
        """`keys` contains the keys of the parts of each tensor."""
        self.portions: list[_Portion] = []
        self.rows = 0
        """The rows of all portions."""
        self._sizes, self._placed = sizes, list[_Placed]()
        staged: list[_Stretch] = []
        part = 0
        for owner, each in enumerate(keys):
            row = 0
            for key in each:
                stretch = _Stretch(part, 0, abs(key), owner, row)
                if key > 0:
                    stretch = self._place_directly(stretch)
                staged += [stretch] if stretch.start < stretch.end else []
                row += -(-abs(key) // ROW)
                part += 1
        self._place(staged)
        self._make_tables(device, len(keys))

    def _add(self, portion: _Portion) -> None:
        self.portions.append(portion)
        self.rows += portion.rows

    def _place_directly(self, stretch: _Stretch) -> _Stretch:
        """Make portions of rows of a contiguous part; return the rest of it."""
        part, start, end, owner, row = stretch
        most, least = self._sizes.staged[-1], self._sizes.direct
        while (rows := min((end - start) // ROW, most)) >= least:
            segment = _Segment(part, start, start + rows * ROW, 0)
            self._placed.append(_Placed(self.rows, owner, row, rows))
            self._add(_Portion(rows, [segment], is_direct=True))
            start, row = segment.end, row + rows
        return _Stretch(part, start, end, owner, row)

    def _place(self, staged: list[_Stretch]) -> None:
        """Fill portions with stretches, which may be divided between rows."""
        most = self._sizes.staged[-1]
        segments: list[_Segment] = []
        used = 0
        for part, begin, last, owner, first in staged:
            start, row = begin, first
            while start < last:
                if used == most:
                    self._add(_Portion(most, segments, is_direct=False))
                    segments, used = [], 0
                rows = min(-(-(last - start) // ROW), most - used)
                end = min(start + rows * ROW, last)
                segments.append(_Segment(part, start, end, used))
                self._placed.append(_Placed(self.rows + used, owner, row, rows))
                used += rows
                row += rows
                start = end
        if segments:
            rows = next(size for size in self._sizes.staged if size >= used)
            self._add(_Portion(rows, segments, is_direct=False))

    def _make_tables(self, device: Any, tensors: int) -> None:
        """Create, for each row of all portions, the numbers of its tensor and of its weight."""
        torch = sys.modules["torch"]
        owners = torch.full((self.rows,), tensors, dtype=torch.int32, device="cpu")
        numbers = torch.zeros(self.rows, dtype=torch.int32, device="cpu")
        self.most_rows = 1
        for at, owner, first, rows in self._placed:
            owners[at : at + rows] = owner
            torch.arange(first, first + rows, out=numbers[at : at + rows], device="cpu")
            self.most_rows = max(self.most_rows, first + rows)
        self._placed.clear()
        self.owners, self.numbers = to_device(owners, device), to_device(numbers, device)

    def groups(self) -> Iterator[tuple[int, int, list[_Portion]]]:
        """Yield portions whose results are added at a time: their first row, and their rows."""
        first = rows = 0
        portions: list[_Portion] = []
        for portion in self.portions:
            if portions and rows + portion.rows > _GROUP:
                yield first, rows, portions
                first, rows, portions = first + rows, 0, []
            portions.append(portion)
            rows += portion.rows
        if portions:
            yield first, rows, portions


class Summing:
    """Sums up tensors on one device."""

    def __init__(self, device: Any, by: Matrix | Words | None = None) -> None:
        """`by` multiplies the rows; None: the fastest multiplier of the device."""
        self._device = device
        self._sizes = ON_HOST if device.type == "cpu" else ON_DEVICE
        self._by = by or multiplier(device)
        self._few = Words(device) if by is None and device.type == "cpu" else self._by
        self._plans: OrderedDict[Any, _Plan] = OrderedDict()
        self._row_weights = row_weights(1, device)
        self._order = StreamOrder(device)
        self._order.created()

    def sums(self, tensors: Sequence[Sequence[Part]]) -> Any:
        """Return the two sums of each tensor, given by its parts: int64, one row each.

        The result is on the device, which may not have computed it yet.
        """
        torch = sys.modules["torch"]
        self._order.wait()
        plan = self._plan(tuple([tuple([part.key for part in parts]) for parts in tensors]))
        totals = torch.zeros((len(tensors) + 1, 2), dtype=torch.int64, device=self._device)
        parts = [part for each in tensors for part in each]
        stage = self._stage(plan)
        by = self._few if plan.rows <= FEW else self._by
        for first, rows, portions in plan.groups():
            shape = (rows, by.width)
            results = torch.empty(shape, dtype=by.dtype, device=self._device)
            at = 0
            for portion in portions:
                end = at + portion.rows
                by.multiply(self._rows_of(parts, portion, stage), results[at:end])
                at = end
            numbers, owners = plan.numbers[first : first + rows], plan.owners[first : first + rows]
            weights = self._row_weights.index_select(0, numbers)
            totals.index_add_(0, owners, by.halves(results).mul_(weights))
        self._order.use([plan.numbers, plan.owners, self._row_weights])
        return totals[:-1]

    def _stage(self, plan: _Plan) -> Any:
        """Return an area for the largest portion that is gathered; None if none is."""
        torch = sys.modules["torch"]
        rows = max((each.rows for each in plan.portions if not each.is_direct), default=0)
        if not rows:
            return None
        return torch.empty((rows, ROW), dtype=torch.int8, device=self._device)

    def _rows_of(self, parts: list[Part], portion: _Portion, stage: Any) -> Any:
        """Return the rows of a portion as a matrix of bytes."""
        if portion.is_direct:
            segment = portion.segments[0]
            return parts[segment.part].flat[segment.start : segment.end].view(-1, ROW)
        return self._gathered(parts, portion.segments, stage[: portion.rows])

    def _plan(self, keys: Any) -> _Plan:
        plan = self._plans.get(keys)
        if plan is None:
            plan = self._plans[keys] = _Plan(keys, self._device, self._sizes)
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
            if plan.most_rows > len(self._row_weights):
                self._row_weights = row_weights(2 * plan.most_rows, self._device)
            self._order.created()
        self._plans.move_to_end(keys)
        return plan

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
            if not (len(into) | source.storage_offset() | source.data_ptr()) & 3:
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
