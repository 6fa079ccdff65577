"""The series of marks: a fold over blocks of the relation `mark`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from ...analysis.mark_series import MAX_SERIES, MarkSeries, Point, points_of
from ...records.rows import number_of, shown
from ..load.columns import Columns
from ..relations import ABSENT, DOUBLE, INTEGER, NOTHING, Block, Texts

NON_FINITE: Final = ("nan", "inf", "-inf")
"""The texts of values that are not finite."""


class SeriesFold:
    """The series of a run, one for each name and rank, and whether it is of evaluations."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._kept = Columns("series")

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        is_listed = block["is_listed"] == 1
        self._kept.append(np.stack([block[name][is_listed] for name in self._kept.names], axis=1))

    @cached_property
    def _sorted(self) -> tuple[list[tuple[str, np.ndarray]], int]:
        """The first 1,000 series with the places of their marks, and how many more there are."""
        names, ranks = (sorted(self._distinct(name)) for name in ("name", "rank"))
        # The order is that of UTF-8; a mark without a name has the name `?`.
        texts = [self._texts.text(token) or "?" for token in names]
        listed = sorted(set(texts), key=_utf8)
        place_of = {text: place for place, text in enumerate(listed)}
        place = np.array([place_of[text] for text in texts], np.int64)
        codes = [np.zeros(0, np.int64)]
        for block in self._kept.blocks():
            of_name = place[np.searchsorted(names, block["name"])] * len(ranks)
            code = (of_name + np.searchsorted(ranks, block["rank"])) * 2 + block["is_eval"]
            codes.append(code)
        code = np.concatenate(codes)
        order = np.argsort(code, kind="stable")
        code = code[order]
        starts = np.flatnonzero(np.r_[len(code) > 0, code[1:] != code[:-1]]).tolist()
        ends = [*starts[1:], len(order)]
        found = [
            (listed[int(code[first]) // (2 * len(ranks))], order[first:end])
            for first, end in list(zip(starts, ends, strict=False))[:MAX_SERIES]
        ]
        return found, max(len(starts) - MAX_SERIES, 0)

    def _distinct(self, name: str) -> set[int]:
        return {each for block in self._kept.blocks() for each in np.unique(block[name]).tolist()}

    def _series_of_marks(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the first 1,000 series with the columns of their marks in order."""
        table = self._kept.table()
        for name, places in self._sorted[0]:
            rows = table[places].T
            self._kept.release()
            yield name, rows[:, np.lexsort((rows[4], rows[3]))]

    def result(self) -> tuple[list[MarkSeries], int]:
        """Return the first 1,000 series in order of name and rank, and how many more there are."""
        left_out = self._sorted[1]
        return [self._series(name, rows) for name, rows in self._series_of_marks()], left_out

    def points(
        self, wanted: Callable[[str, int | None, bool], MarkSeries | None], limit: int
    ) -> Iterator[tuple[MarkSeries, list[Point]]]:
        """Yield the points of the wanted series in the order of `result`; at most `limit` each.

        `wanted` takes a name, a rank, and whether the marks are of evaluations. It returns the
        series, or None to skip it.
        """
        for name, rows in self._series_of_marks():
            rank = int(rows[0, 0])
            series = wanted(name, None if rank == ABSENT else rank, bool(rows[2, 0]))
            if series is not None:
                yield series, list(points_of(self._records(rows), series.count, limit))

    def values(self) -> Iterator[tuple[str, int | None, bool, np.ndarray, np.ndarray]]:
        """Yield the first 1,000 series: name, rank, whether it is of evaluations, values, times.

        Values are float64, with NaN and infinities; other texts are left out. An unknown time is
        `ABSENT`.
        """
        for name, rows in self._series_of_marks():
            kinds, values = rows[6:8]
            numbers = np.full(len(kinds), np.nan)
            is_number = (kinds == DOUBLE) | (kinds == INTEGER)
            numbers[kinds == DOUBLE] = values[kinds == DOUBLE].copy().view(np.float64)
            numbers[kinds == INTEGER] = values[kinds == INTEGER]
            for place in np.flatnonzero(~is_number & (kinds != NOTHING)).tolist():
                text = value_of(self._texts, int(kinds[place]), int(values[place])) or ""
                number = number_of(text)
                is_number[place] = number is not None or text in NON_FINITE
                numbers[place] = float(text) if text in NON_FINITE else number or 0.0
            rank = int(rows[0, 0])
            yield (
                name,
                None if rank == ABSENT else rank,
                bool(rows[2, 0]),
                numbers[is_number],
                rows[3][is_number],
            )

    def _records(self, rows: np.ndarray) -> Iterator[tuple[float | None, int | None]]:
        for number, ts_ns in zip(self._numbers(rows), rows[3].tolist(), strict=True):
            yield number, None if ts_ns == ABSENT else ts_ns

    def _numbers(self, rows: np.ndarray) -> Sequence[float | None]:
        """Return the values of marks; None for one that is not a finite number."""
        kinds, values = rows[6:8]
        if (kinds == DOUBLE).all():
            numbers = values.copy().view(np.float64)
            if np.isfinite(numbers).all():
                found: list[float | None] = numbers.tolist()
                return found
        pairs = zip(kinds.tolist(), values.tolist(), strict=True)
        return [number_of(value_of(self._texts, kind, value)) for kind, value in pairs]

    def _series(self, name: str, rows: np.ndarray) -> MarkSeries:
        rank = int(rows[0, 0])
        series = MarkSeries(name, None if rank == ABSENT else rank, is_eval=bool(rows[2, 0]))
        ends = rows[6:8, [0, -1]].T.tolist()
        series.first, series.last = (value_of(self._texts, kind, value) for kind, value in ends)
        texts = {token: self._texts.text(token) for token in np.unique(rows[5]).tolist()}
        epochs = list(map(texts.__getitem__, rows[5].tolist()))
        series.add_numbers(self._numbers(rows), epochs)
        return series


def value_of(texts: Texts, kind: int, value: int) -> str | None:
    """Return the value of a mark as text."""
    if kind == NOTHING:
        return None
    if kind == INTEGER:
        return shown(value)
    if kind == DOUBLE:
        return shown(float(np.int64(value).view(np.float64)))
    return texts.text(value)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
