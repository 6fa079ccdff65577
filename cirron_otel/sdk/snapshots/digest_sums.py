"""Sum up the words of many tensors on one device, without waiting for it (docs/digests.md)."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from .arrival import Arrival, ResultMemory
from .digest_plan import (
    ALIGNED,
    ALIGNMENT,
    ON_DEVICE,
    ON_HOST,
    STRIDED,
    NumberPlaces,
    PlanKey,
    Portion,
    RowPlan,
    RowSegment,
    Sizes,
    kinds,
)
from .digest_weights import ROW, Matrix, Words, multiplier, row_weights
from .stream_order import StreamOrder
from .tensors import NoBytesError

FEW = 16
"""Up to so many rows on the host, words are multiplied on one thread: torch starts no others for
them, which may have to wait for a core."""
_HALVES_BYTES = 16
_MOST_PLANS = 32


def readable(torch: Any, tensor: Any, size: int, item_size: int) -> tuple[int, Any]:
    """Return the access to a dense tensor of `size` bytes, and a view for `Summing.sums`.

    The view has integers of the greatest width that its size and its place in memory allow. A
    tensor whose elements are not in row-major order is returned unchanged. Raises NoBytesError if
    its memory has been released.
    """
    if not size:
        return STRIDED, tensor
    stored = tensor.untyped_storage().nbytes()
    is_contiguous = tensor.is_contiguous()
    if not stored or (is_contiguous and stored < size):
        raise NoBytesError(f"its memory of {size} bytes has been released: {stored} bytes are left")
    if not is_contiguous:
        return STRIDED, tensor
    if size == item_size:  # the stride of a single element may be any
        flat = tensor.as_strided((1,), (1,))
    else:
        flat = tensor if tensor.dim() == 1 else tensor.view(-1)
    address = tensor.data_ptr()
    at = size | address
    if item_size < 4:
        at |= tensor.storage_offset() * item_size
    if not at & 3:
        return (4 if address & ALIGNMENT - 1 else 4 | ALIGNED), flat.view(torch.int32)
    return (1, flat.view(torch.int8)) if at & 1 else (2, flat.view(torch.int16))


class Summing:
    """Sums up tensors on one device."""

    def __init__(
        self, device: Any, by: Matrix | Words | None = None, sizes: Sizes | None = None
    ) -> None:
        """`by` multiplies the rows; None: the fastest multiplier of the device."""
        torch = sys.modules["torch"]
        self._device = device
        self._sizes = sizes or (ON_HOST if device.type == "cpu" else ON_DEVICE)
        self._by = by or multiplier(device)
        self._few = Words(device) if by is None and device.type == "cpu" else self._by
        self._plans: OrderedDict[Any, RowPlan] = OrderedDict()
        self._row_weights = row_weights(1, device)
        self._zeros = torch.zeros(ROW, dtype=torch.int8, device=device)
        self._one = torch.ones(1, dtype=torch.int32, device=device)
        self._memory = ResultMemory()
        self._order = StreamOrder(device)
        self._order.created()

    def sums(self, keys: Sequence[PlanKey], sources: list[Any]) -> PendingSums:
        """Sum up tensors with these keys; `sources` contains their parts, as `readable` views."""
        torch = sys.modules["torch"]
        self._order.wait()
        plan = self._plan(tuple(keys))
        size = _HALVES_BYTES * (len(keys) + 1)
        found = torch.zeros(size + sum(plan.number_bytes), dtype=torch.int8, device=self._device)
        halves, *numbers = found.split_with_sizes([size, *plan.number_bytes])
        totals = halves.view(torch.int64).view(-1, 2)
        stage = _Stage(torch, plan.staged_rows, self._device)
        into = iter(numbers)
        by = self._few if plan.rows <= FEW else self._by
        for portions, counts, owners, row_numbers in plan.groups:
            shape = (sum(counts), by.width)
            results = torch.empty(shape, dtype=by.dtype, device=self._device)
            for portion, out in zip(portions, results.split_with_sizes(counts), strict=True):
                rows = stage.rows(sources, portion)
                by.multiply(rows, out)
                if portion.number_bytes is not None:
                    torch.index_select(rows.view(-1), 0, portion.number_bytes, out=next(into))
            weights = self._row_weights.index_select(0, row_numbers)
            totals.index_add_(0, owners, by.halves(results).mul_(weights))
        results = PendingSums(len(keys), plan.numbers, Arrival(found, self._memory, self._one))
        self._order.use([plan.table, self._row_weights, self._zeros, self._one])
        return results

    def _plan(self, keys: tuple[PlanKey, ...]) -> RowPlan:
        plan = self._plans.get(keys)
        if plan is None:
            plan = RowPlan(keys, self._device, self._sizes, self._zeros)
            if plan.most_rows > len(self._row_weights):
                self._row_weights = row_weights(2 * plan.most_rows, self._device)
            self._order.created()
            # Last: without the weights of all its rows, a plan would read past their end.
            self._plans[keys] = plan
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(keys)
        return plan


class PendingSums:
    """The sums and the numbers of tensors, which may still be on their way from the device."""

    __slots__ = ("_tensors", "arrival", "numbers")

    def __init__(self, tensors: int, numbers: list[NumberPlaces], arrival: Arrival) -> None:
        self._tensors = tensors
        self.numbers = numbers
        """The places of each tensor's numbers."""
        self.arrival = arrival

    def halves(self) -> list[list[int]]:
        """Return the two sums of each tensor, as signed integers, after the arrival."""
        halves = self.arrival.values[: _HALVES_BYTES * self._tensors]
        values: list[list[int]] = halves.view(sys.modules["torch"].int64).view(-1, 2).tolist()
        return values

    def bits(self) -> list[bytes]:
        """Return the bytes of each tensor's numbers, after the arrival."""
        torch = sys.modules["torch"]
        data = self.arrival.values[_HALVES_BYTES * (self._tensors + 1) :].view(torch.uint8)
        bits = bytes(data.tolist())
        return [
            b"".join([bits[start : start + size] for start in starts])
            for size, starts in self.numbers
        ]


class _Stage:
    """An area on the device in which the rows of portions are gathered, one after the other."""

    def __init__(self, torch: Any, rows: int, device: Any) -> None:
        self._torch = torch
        self._bytes = torch.empty(rows * ROW, dtype=torch.int8, device=device)
        self._rows = self._bytes.view(rows, ROW)
        self._views: dict[int, Any] = {}

    def rows(self, sources: list[Any], portion: Portion) -> Any:
        """Return the rows of a portion as a matrix of bytes; they may replace those before."""
        torch = self._torch
        if portion.direct is not None:
            part, start, end, _ = portion.direct
            return sources[part].view(torch.int8)[start:end].view(-1, ROW)
        for width, first, end, pieces in portion.stretches:
            tensors = []
            for part, bounds, zeros in pieces:
                source = sources[part]
                tensors.append(source if bounds is None else source[bounds])
                if zeros is not None:
                    tensors.append(zeros)
            torch.cat(tensors, out=self._as_integers(width)[first:end])
        for each in portion.strided:
            at = each.row * ROW
            end = at + each.end - each.start
            _copy_strided(sources[each.part], self._bytes[at:end], each)
            if end % ROW:
                self._bytes[end : end + -end % ROW].zero_()
        return self._rows if portion.rows == len(self._rows) else self._rows[: portion.rows]

    def _as_integers(self, width: int) -> Any:
        view = self._views.get(width)
        if view is None:
            view = self._views[width] = self._bytes.view(kinds(self._torch)[width])
        return view


def _copy_strided(tensor: Any, into: Any, segment: RowSegment) -> None:
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
