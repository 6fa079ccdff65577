"""The wall time of each rank by row: a fold over blocks of units, after the other intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from ....semconv import SESSION as SESSION_NAME
from ...analysis.breakdown import is_checkpoint
from ...analysis.run_time import ROWS, WORK, Row, WallTime
from ...records.rows import IndexedSpan
from ..relations import ABSENT, Block

_CODES: Final[dict[Row, int]] = {
    row: code
    for code, row in enumerate((*WORK, "set_up", "pauses", "between_steps", "after_steps"))
}
SESSION: Final = len(WORK)
_PAUSE, _BETWEEN, _AFTER = (_CODES[row] for row in ("pauses", "between_steps", "after_steps"))
_EVAL: Final = "eval"

Interval: TypeAlias = tuple[int | None, int | None, int]
"""A start, an end and a kind: a place in `WORK`, or `SESSION`."""


@dataclass(slots=True)
class WallTimeFold:
    """The starts and the durations of the units of each rank, and its other intervals."""

    _units: dict[int, list[np.ndarray]] = field(default_factory=dict)
    _others: dict[int | None, list[Interval]] = field(default_factory=dict)

    def add_scopes(self, spans: Iterable[IndexedSpan]) -> None:
        """Add scopes: checkpoints, evaluations and sessions count."""
        for span in spans:
            name = span.name
            if is_checkpoint(name):
                kind = _CODES["checkpoints"]
            elif name == _EVAL:
                kind = _CODES["evaluation"]
            elif name == SESSION_NAME:
                kind = SESSION
            else:
                continue
            interval = span.start_ns, span.end_ns, kind
            self._others.setdefault(span.rank, []).append(interval)

    def add(self, units: Block) -> None:
        """Add units. Those of a rank are added in the order of their start."""
        for rank in np.unique(units["rank"]).tolist():
            is_own = units["rank"] == rank
            times = np.stack([units["start_ns"][is_own], units["ns"][is_own]], axis=1)
            self._units.setdefault(rank, []).append(times)

    def units_of(self, rank: int | None) -> np.ndarray:
        """Return the start and the duration of each unit of a rank, in order, ns: shape (n, 2)."""
        kept = self._units.get(ABSENT if rank is None else rank, [])
        return np.concatenate([np.zeros((0, 2), np.int64), *kept])

    def of_rank(
        self, rank: int | None, first_ns: int | None, last_ns: int | None, warm_up: int
    ) -> WallTime:
        """Return the wall time of a rank from its first to its last time.

        Its first `warm_up` units count as warm-up.
        """
        times = self.units_of(rank)
        steady_ns = first_ns
        if warm_up:
            steady_ns = int(times[warm_up, 0]) if warm_up < len(times) else None
        limit = last_ns if steady_ns is None else steady_ns
        others = self._others.get(rank, ())
        return wall_time_of(times, others, limit or 0, first_ns, last_ns)


def wall_time_of(
    units: np.ndarray,
    others: Iterable[Interval],
    steady_ns: int,
    first_ns: int | None,
    last_ns: int | None,
) -> WallTime:
    """Return the wall time of a rank by row, from its units (start, duration) and other intervals.

    The units before `steady_ns` are warm-up.
    """
    if first_ns is None or last_ns is None or first_ns >= last_ns:
        return WallTime(dict.fromkeys(ROWS, 0))
    table = _intervals(units, others, steady_ns, first_ns, last_ns)
    times, places = np.unique(
        np.r_[table[:, 0], table[:, 1], first_ns, last_ns], return_inverse=True
    )
    opens, closes, count = places[: len(table)], places[len(table) :], len(times)
    kind = np.full(count - 1, _PAUSE)
    for number in reversed(range(_PAUSE)):
        own = np.flatnonzero(table[:, 2] == number)
        changes = np.bincount(opens[own], minlength=count)
        changes -= np.bincount(closes[own], minlength=count)
        kind[np.cumsum(changes)[:-1] > 0] = number
    gaps, others_at = np.flatnonzero(kind == SESSION), np.flatnonzero(kind != SESSION)
    is_work = np.r_[False, kind[others_at] < SESSION, False]
    following = np.searchsorted(others_at, gaps)
    has_worked, works = is_work[following], is_work[following + 1]
    kind[gaps] = np.where(has_worked, np.where(works, _BETWEEN, _AFTER), SESSION)
    lengths = np.diff(times.view(np.uint64))  # all times may be 64 bits apart
    return WallTime({row: int(lengths[kind == _CODES[row]].sum()) for row in ROWS})


def _intervals(
    units: np.ndarray, others: Iterable[Interval], steady_ns: int, first_ns: int, last_ns: int
) -> np.ndarray:
    """Return the start, the end and the kind of each interval within a time: shape (n, 3)."""
    known = sorted(each for each in others if each[0] is not None and each[1] is not None)
    ends = units[:, 0] + units[:, 1]
    session = next((each for each in known if each[2] == SESSION), None)
    until = last_ns
    if session is not None:
        # Its span was not recorded, or starts later than other scopes.
        start, end, _ = session
        is_before = (units[:, 0] < start) | ((units[:, 0] == start) & (ends <= end))
        before = [begin for begin, *_ in known[: known.index(session)]]
        until = max([first_ns, *units[is_before, 0][-1:].tolist(), *before])
    kinds = np.where(units[:, 0] < steady_ns, _CODES["warm_up"], _CODES["steps"])
    table = np.concatenate([
        np.stack([units[:, 0], ends, kinds], axis=1),
        np.array([*known, (first_ns, until, SESSION)], np.int64),
    ])  # fmt: skip
    table[:, :2] = table[:, :2].clip(first_ns, last_ns)
    return table[table[:, 1] > table[:, 0]]
