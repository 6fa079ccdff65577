"""Plans: the places of many tensors' rows in the portions that are multiplied (docs/digests.md).

Tensors are divided into rows. The rows of a large contiguous tensor are multiplied where they are;
the remaining rows of all tensors are gathered into a staging area, one portion after the other. A
plan depends only on the tensors' keys; it is reused while these stay the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, zip_longest
from typing import Any, Final, NamedTuple

from ...core.records.digest_marks import positions
from .digest_weights import ROW, to_device


class Sizes(NamedTuple):
    """The numbers of rows that are multiplied at a time on a kind of device."""

    staged: tuple[int, ...]
    """Those of the staging area: the largest, or a smaller one if that is enough."""
    direct: int
    """The minimum number of rows in a direct portion: rows of one tensor that are not copied."""
    most_direct: int
    """The maximum number of rows in a direct portion."""
    step: int
    """Their number is a multiple of this, which divides `most_direct`."""
    group: int
    """Rows whose results are added at a time. Each takes 64 bytes for results, and 160 bytes for
    intermediate ones."""


ON_HOST = Sizes(staged=(16, 64, 256, 1024), direct=64, most_direct=1024, step=1, group=16_384)
"""In host memory. A staging area of 1,024 rows has 4 MB."""
ON_DEVICE = Sizes(
    staged=(64, 512, 4096, 8192), direct=4096, most_direct=32_768, step=4096, group=32_768
)
"""On a device, where a multiplication of few rows takes as long as a copy of all of them, and where
each portion costs the thread several launches. A staging area of 8,192 rows has 32 MB."""

STRIDED: Final = 0
"""The access to a part whose elements are not in row-major order. That to another part is the width
of the integers as which it is copied: 1, 2 or 4 bytes."""
ALIGNED: Final = 8
"""Added to the access to a part whose address is a multiple of `ALIGNMENT`."""
ALIGNMENT: Final = 16
"""Portions are direct only if their address is a multiple of this."""
_BITS = 4


def part_key(size: int, access: int) -> int:
    """Return the key of a part of `size` bytes."""
    return size << _BITS | access


class PlanKey(NamedTuple):
    """Determines the places of a tensor's rows and numbers."""

    parts: tuple[int, ...]
    """The key of each part."""
    number_size: int
    """The bytes of each number that is read; 0 if none is."""
    number_part: int
    """The place of the part whose numbers are read."""


class NumberPlaces(NamedTuple):
    """The places of a tensor's numbers among the bytes of all numbers."""

    size: int
    """The bytes of a number."""
    starts: tuple[int, ...]
    """The first byte of each number; empty if none is read."""


class RowSegment(NamedTuple):
    """Consecutive rows of a part in one portion."""

    part: int
    """The number of the part among those of all tensors."""
    start: int
    end: int
    """The first byte in the part, and the byte after the last."""
    row: int
    """The first row in the portion."""


class Stretch(NamedTuple):
    """Segments that follow each other in the staging area, as integers of one width."""

    width: int
    start: int
    end: int
    """The first integer in the staging area, and the one after the last."""
    pieces: list[tuple[int, slice | None, Any]]
    """For each segment: its part, its integers (None: all), and the zeros that fill its row."""


class Portion(NamedTuple):
    """Rows that are multiplied together."""

    rows: int
    direct: RowSegment | None
    """The rows of a direct portion; None for a portion in the staging area."""
    stretches: list[Stretch]
    strided: list[RowSegment]
    """The segments of parts whose elements are not in row-major order."""
    number_bytes: Any
    """The places of the bytes of numbers in the portion, on the device; None if it has none."""


class PortionGroup(NamedTuple):
    """Portions whose results are added at a time."""

    portions: list[Portion]
    rows: list[int]
    """The rows of each portion."""
    owners: Any
    """For each row, the number of its tensor; one more than the last for rows without data."""
    row_numbers: Any
    """For each row, its number in its tensor."""


class RowPlan:
    """The portions of tensors with given keys."""

    def __init__(self, keys: Sequence[PlanKey], device: Any, sizes: Sizes, zeros: Any) -> None:
        """`zeros` is a row of zero bytes on the device."""
        torch = sys.modules["torch"]
        parts = list(_parts(keys))
        places = [*_direct_places(parts, sizes), *_staged_places(parts, sizes)]
        self.numbers, number_bytes = _numbers(keys, places)
        """The numbers of each tensor."""
        self.number_bytes = [len(each) for each in number_bytes if each]
        """The number of bytes of numbers in each portion that has some."""
        self.rows = sum(each.rows for each in places)
        """The rows of all portions."""
        self.staged_rows = max((each.rows for each in places if not each.is_direct), default=0)
        """The rows of the largest portion in the staging area."""
        self.most_rows = max((each.first + _rows(each.size) for each in parts), default=0)
        """The most rows of a tensor."""
        self.table = to_device(_table(len(keys), parts, places, number_bytes), device)
        """The owners and the numbers of all rows, and the places of the bytes of numbers."""
        owners, row_numbers, *numbers = self.table.split_with_sizes(
            [self.rows, self.rows, *map(len, number_bytes)]
        )
        views = {width: zeros.view(kind) for width, kind in kinds(torch).items()}
        portions = [
            Portion(
                each.rows,
                each.segments[0] if each.is_direct else None,
                [] if each.is_direct else _stretches(parts, each.segments, views),
                [segment for segment in each.segments if parts[segment.part].width == STRIDED],
                some if len(some) else None,
            )
            for each, some in zip(places, numbers, strict=True)
        ]
        self.groups = list(_groups(portions, owners, row_numbers, sizes.group))
        """The portions, in the order of their rows in the tables."""


class _Part(NamedTuple):
    """A part, as its key describes it."""

    number: int
    """Its number among the parts of all tensors."""
    owner: int
    """The number of its tensor."""
    first: int
    """The number of its first row in its tensor."""
    size: int
    width: int
    is_aligned: bool


class _Place(NamedTuple):
    """The segments of a portion."""

    rows: int
    is_direct: bool
    segments: list[RowSegment]


def _rows(size: int) -> int:
    return -(-size // ROW)


def kinds(torch: Any) -> dict[int, Any]:
    """Return the dtype of integers by their width in bytes."""
    return {1: torch.int8, 2: torch.int16, 4: torch.int32}


def _parts(keys: Sequence[PlanKey]) -> Iterator[_Part]:
    number = 0
    for owner, key in enumerate(keys):
        first = 0
        for each in key.parts:
            size, width = each >> _BITS, each & ALIGNED - 1
            yield _Part(number, owner, first, size, width, bool(each & ALIGNED))
            number += 1
            first += _rows(size)


def _direct_rows(part: _Part, sizes: Sizes) -> int:
    """Return how many of the first rows of a part are in direct portions."""
    if not part.is_aligned:
        return 0
    rows = part.size // ROW
    last = rows % sizes.most_direct
    rows -= last if last < sizes.direct else 0
    return rows - rows % sizes.step


def _direct_places(parts: list[_Part], sizes: Sizes) -> Iterator[_Place]:
    for part in parts:
        end = _direct_rows(part, sizes)
        for start in range(0, end, sizes.most_direct):
            rows = min(end - start, sizes.most_direct)
            segment = RowSegment(part.number, start * ROW, (start + rows) * ROW, 0)
            yield _Place(rows, True, [segment])


def _staged_places(parts: list[_Part], sizes: Sizes) -> Iterator[_Place]:
    """Fill portions with the other rows, those of the widest integers first.

    The rows of a part may be divided between portions.
    """
    most = sizes.staged[-1]
    segments: list[RowSegment] = []
    used = 0
    for part in sorted(parts, key=lambda each: -each.width):
        start = _direct_rows(part, sizes) * ROW
        while start < part.size:
            rows = min(_rows(part.size - start), most - used)
            end = min(start + rows * ROW, part.size)
            segments.append(RowSegment(part.number, start, end, used))
            start, used = end, used + rows
            if used == most:
                yield _Place(most, False, segments)
                segments, used = [], 0
    if segments:
        rows = next(each for each in sizes.staged if each >= used)
        yield _Place(rows, False, segments)


def _numbers(
    keys: Sequence[PlanKey], places: list[_Place]
) -> tuple[list[NumberPlaces], list[list[int]]]:
    """Return the numbers of each tensor, and the places of their bytes in each portion."""
    by_part: dict[int, list[tuple[int, RowSegment]]] = {}
    for portion, place in enumerate(places):
        for segment in place.segments:
            by_part.setdefault(segment.part, []).append((portion, segment))
    found: list[list[int]] = [[] for _ in places]
    numbers: list[list[tuple[int, int]]] = []
    part = 0
    for key in keys:
        numbers.append([])
        size = key.number_size
        count = (key.parts[key.number_part] >> _BITS) // size if key.parts and size else 0
        for position in positions(count):
            at = position * size
            portion, segment = next(
                each
                for each in by_part[part + key.number_part]
                if each[1].start <= at < each[1].end
            )
            numbers[-1].append((portion, len(found[portion])))
            start = segment.row * ROW + at - segment.start
            found[portion].extend(range(start, start + size))
        part += len(key.parts)
    before = [0, *accumulate(map(len, found))]
    return [
        NumberPlaces(key.number_size, tuple([before[portion] + at for portion, at in some]))
        for key, some in zip(keys, numbers, strict=True)
    ], found


def _table(
    tensors: int, parts: list[_Part], places: list[_Place], number_bytes: list[list[int]]
) -> Any:
    """Return the tables of a plan, in host memory."""
    torch = sys.modules["torch"]
    rows = sum(each.rows for each in places)
    flat = [byte for some in number_bytes for byte in some]
    table = torch.zeros(2 * rows + len(flat), dtype=torch.int32, device="cpu")
    owners, row_numbers, numbers = table.split_with_sizes([rows, rows, len(flat)])
    owners.fill_(tensors)
    at = 0
    for place in places:
        for part, start, end, row in place.segments:
            first, last = at + row, at + row + _rows(end - start)
            owners[first:last] = parts[part].owner
            begin = parts[part].first + start // ROW
            torch.arange(begin, begin + last - first, out=row_numbers[first:last], device="cpu")
        at += place.rows
    numbers.copy_(torch.tensor(flat, dtype=torch.int32, device="cpu"))
    return table


def _stretches(
    parts: list[_Part], segments: list[RowSegment], zeros: dict[int, Any]
) -> list[Stretch]:
    """Return the stretches of a portion; `zeros` contains a row of each kind of integers."""
    stretches: list[Stretch] = []
    for width, some in groupby(segments, lambda each: parts[each.part].width):
        if width == STRIDED:
            continue
        run = list(some)
        pieces: list[tuple[int, slice | None, Any]] = []
        for part, start, end, _ in run:
            is_whole = start == 0 and end == parts[part].size
            bounds = None if is_whole else slice(start // width, end // width)
            missing = (start - end) % ROW // width
            pieces.append((part, bounds, zeros[width][:missing] if missing else None))
        last = run[-1]
        rows = last.row + _rows(last.end - last.start)
        stretches.append(Stretch(width, run[0].row * ROW // width, rows * ROW // width, pieces))
    return stretches


def _groups(
    portions: list[Portion], owners: Any, row_numbers: Any, most: int
) -> Iterator[PortionGroup]:
    """Divide portions into groups of at most `most` rows, or of one portion."""
    first = last = 0
    some: list[Portion] = []
    for portion, following in zip_longest(portions, portions[1:]):
        some.append(portion)
        last += portion.rows
        if following is None or last - first + following.rows > most:
            rows = [each.rows for each in some]
            yield PortionGroup(some, rows, owners[first:last], row_numbers[first:last])
            first, some = last, []
