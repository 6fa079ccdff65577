"""The wall time of a rank, from its first start to its last end, divided into rows.

Each moment belongs to exactly one row. A `RankReport` contains these rows, the rank's spans and its
steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .breakdown import Breakdown

Row = Literal[
    "set_up", "warm_up", "steps", "evaluation", "checkpoints", "between_steps", "after_steps",
    "pauses",
]  # fmt: skip
ROWS: tuple[Row, ...] = (
    "set_up", "warm_up", "steps", "evaluation", "checkpoints", "between_steps", "after_steps",
    "pauses",
)  # fmt: skip
"""The rows in the order of display."""

WORK: tuple[Row, ...] = ("checkpoints", "evaluation", "warm_up", "steps")
"""In order of precedence: a moment that several of these rows cover belongs to the first one."""
SESSION = len(WORK)


@dataclass(slots=True)
class WallTime:
    """The wall time of a rank by row; the rows add up to the total."""

    rows: dict[Row, int]
    """The time of each row, ns."""

    @property
    def total_ns(self) -> int:
        """The total, ns."""
        return sum(self.rows.values())

    def share(self, row: Row) -> float:
        """Return the share of a row, 0 to 1."""
        return self.rows[row] / max(self.total_ns, 1)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows with their shares."""
        return [{"name": row, "ns": self.rows[row], "share": self.share(row)} for row in ROWS]


def wall_time_of(
    intervals: Iterable[tuple[Any, ...]], first_ns: int | None, last_ns: int | None
) -> WallTime:
    """Return the wall time of a rank by row from intervals in order of start: (start, end, kind).

    The kinds are positions in `WORK`, and `SESSION`. An interval may be several that do not
    overlap, between which nothing begins or ends; a fourth member is then the time between them.
    """
    if first_ns is None or last_ns is None:
        return WallTime(dict.fromkeys(ROWS, 0))
    sweep = _Sweep(first_ns, last_ns)
    sweep.run(intervals)
    return WallTime(sweep.rows)


class _Sweep:
    """A sweep over time that keeps the latest end of each kind of interval."""

    def __init__(self, first_ns: int, last_ns: int) -> None:
        self.rows: dict[Row, int] = dict.fromkeys(ROWS, 0)
        self._at, self._last = first_ns, last_ns
        self._until = [first_ns] * (SESSION + 1)
        self._gap = 0
        """The time in the session since its last work, ns."""
        self._has_worked = False

    def run(self, intervals: Iterable[tuple[Any, ...]]) -> None:
        """Process intervals in order of their start."""
        has_sessions = False
        for start, end, kind, *apart in intervals:
            if start is None or end is None:
                continue
            if kind != SESSION and not has_sessions:
                # The session's own span was not recorded, or starts later.
                self._until[SESSION] = max(self._until[SESSION], start)
            has_sessions = has_sessions or kind == SESSION
            self._advance(min(start, self._last))
            if apart and apart[0]:
                self._pass(start, end, kind, apart[0], in_session=not has_sessions)
            else:
                self._until[kind] = max(self._until[kind], end)
        if not has_sessions:
            self._until[SESSION] = self._last
        self._advance(self._last)
        self._leave()

    def _pass(self, start: int, end: int, kind: int, apart: int, *, in_session: bool) -> None:
        """Advance to the end of several intervals of one kind, with the time between them."""
        self._until[kind] = max(self._until[kind], end)
        if end > self._last or any(until > start for until in self._until[:kind]):
            return  # others cover all of them: nothing else ends between them
        self.rows["between_steps" if self._has_worked else "set_up"] += self._gap
        self._gap, self._has_worked = 0, True
        self.rows[WORK[kind]] += end - start - apart
        is_between = in_session or self._until[SESSION] > start
        self.rows["between_steps" if is_between else "pauses"] += apart
        self._at = end

    def _advance(self, to: int) -> None:
        while self._at < to:
            kind = next((k for k, until in enumerate(self._until) if until > self._at), None)
            end = to if kind is None else min(to, self._until[kind])
            took = end - self._at
            self._at = end
            if kind is None:
                self._leave()
                self.rows["pauses"] += took
            elif kind == SESSION:
                self._gap += took
            else:
                self.rows["between_steps" if self._has_worked else "set_up"] += self._gap
                self._gap, self._has_worked = 0, True
                self.rows[WORK[kind]] += took

    def _leave(self) -> None:
        """Assign the time since the last work to a row, at the end of a session."""
        self.rows["after_steps" if self._has_worked else "set_up"] += self._gap
        self._gap, self._has_worked = 0, False


@dataclass(slots=True)
class RankReport:
    """The spans, steps and wall time of one rank."""

    rank: int | None
    """None for spans without a rank."""
    spans: int
    first_ns: int | None
    last_ns: int | None
    """The earliest start and the latest end of its spans, Unix ns."""
    steps: Breakdown
    time: WallTime
    """The time from `first_ns` to `last_ns`, divided into rows."""
    recompute_ns: int = 0
    """The time in backward passes in which activation checkpointing recomputes activations, ns."""

    @property
    def run_ns(self) -> int | None:
        """The time from the first start to the last end, including pauses between sessions, ns."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return self.last_ns - self.first_ns

    @property
    def steps_per_second(self) -> float | None:
        """The number of steps after the warm-up, divided by the time in and between steps."""
        rows = self.time.rows
        ns = rows["steps"] + rows["between_steps"]
        steps = self.steps.steady.times
        return steps * 1e9 / ns if ns and steps else None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object, which includes the keys of the breakdown."""
        return {
            "rank": self.rank,
            "spans": self.spans,
            "first_ns": self.first_ns,
            "last_ns": self.last_ns,
            "run_ns": self.run_ns,
            "time": self.time.to_json(),
            "steps_per_second": self.steps_per_second,
            **self.steps.to_json(),
        }
