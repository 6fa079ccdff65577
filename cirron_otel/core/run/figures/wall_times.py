"""The wall time of a rank by row, from its units and other intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np

from ....semconv import SESSION as SESSION_NAME
from ...analysis.breakdown import is_checkpoint
from ...analysis.run_time import ROWS, WORK, Row, WallTime
from ...records.rows import IndexedSpan

_CODES: Final[dict[Row, int]] = {
    row: code
    for code, row in enumerate((*WORK, "set_up", "pauses", "between_steps", "after_steps"))
}
SESSION: Final = len(WORK)
_PAUSE, _BETWEEN, _AFTER = (_CODES[row] for row in ("pauses", "between_steps", "after_steps"))
_EVAL: Final = "eval"

Interval: TypeAlias = tuple[int | None, int | None, int]
"""A start, an end and a kind: a place in `WORK`, or `SESSION`."""


class OtherIntervals:
    """The intervals of each rank that are not units, to which its units are added."""

    def __init__(self, spans: Iterable[IndexedSpan]) -> None:
        """Of `spans`, checkpoints, evaluations and sessions count."""
        self._others: dict[int | None, list[Interval]] = {}
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

    def wall_time(
        self,
        rank: int | None,
        start: np.ndarray,
        ns: np.ndarray,
        first_ns: int | None,
        last_ns: int | None,
        warm_up: int,
    ) -> WallTime:
        """Return the wall time of a rank from its first to its last time.

        `start` and `ns` are those of its units, in order. The first `warm_up` ones are warm-up.
        """
        steady_ns = first_ns
        if warm_up:
            steady_ns = int(start[warm_up]) if warm_up < len(start) else None
        limit = last_ns if steady_ns is None else steady_ns
        others = self._others.get(rank, ())
        return wall_time_of(np.stack([start, ns], axis=1), others, limit or 0, first_ns, last_ns)


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
