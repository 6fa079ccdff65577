"""The figures of a run's units, of their parts, and of the scopes of a run without units."""

# ruff: noqa: PLC0415 - numpy is imported in functions, so that commands start faster

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ...core.analysis.breakdown import Breakdown, PhaseFigures
    from ...core.analysis.run_report import RunReport
    from ...core.records.rows import IndexedSpan
    from ...core.run.figures.ledger import Ledger
    from ...core.run.figures.trainings import TrainingFigures

REQUEST: Final = "request"
"""The name of a unit of a service; its rate is the sum over all ranks."""
_MOST_SCOPES: Final = 1000


@dataclass(slots=True)
class UnitFigures:
    """The units of all ranks."""

    name: str
    """The recorded name of a unit: `step`, `request`, or a scope's name."""
    count: int
    """The number of distinct units of the run, however many ranks repeat each of them."""
    ranks: list[tuple[int | None, int]]
    """Each rank with the number of its units."""
    per_s: float | None
    """The number of units of a rank per second, without start-up and pauses; None without a ledger.

    For requests, it is the sum over all ranks."""
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int
    errors: int = 0
    """The number of units that ended with an error."""
    tokens: int | None = None
    """The sum of the tokens of requests; None if they are not recorded."""
    trainings: Sequence[TrainingFigures] = ()
    """The trainings of the processes; none if there is only one."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        ranks = [{"rank": rank, "count": count} for rank, count in self.ranks]
        return {**asdict(self), "ranks": ranks}


@dataclass(slots=True)
class PhaseRow:
    """The durations of a part of the units, over all ranks."""

    name: str
    """The recorded name; `unattributed` for the time in units that no scope covers."""
    times: int
    total_ns: int
    share: float
    """The share of the units' time, 0 to 1."""
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


@dataclass(slots=True)
class ScopeRow:
    """The durations of the scopes with one name."""

    name: str
    count: int
    total_ns: int
    p50_ns: int
    p95_ns: int
    ranks: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


def unit_figures(
    figures: RunReport,
    ledger: Ledger | None,
    name: str = "step",
    *,
    errors: int = 0,
    tokens: int | None = None,
    trainings: Sequence[TrainingFigures] = (),
) -> UnitFigures | None:
    """Return the figures of a run's units; None if it has none.

    `name` is the name of a unit.
    """
    together = figures.together
    if together is None or not together.steps.times:
        return None
    ranks = [(each.rank, each.steps.steps.times) for each in figures.ranks]
    ranks = [each for each in ranks if each[1]]
    spread = together.steps.spread()
    return UnitFigures(
        name=name,
        count=_distinct(ledger) or max(count for _, count in ranks),
        ranks=ranks,
        per_s=_per_second(ledger, is_sum=name == REQUEST),
        p50_ns=spread["p50"],
        p95_ns=spread["p95"],
        p99_ns=spread["p99"],
        max_ns=spread["max"],
        errors=errors,
        tokens=tokens,
        trainings=trainings,
    )


def _distinct(ledger: Ledger | None) -> int:
    """Return the number of distinct units of all lanes; 0 without a ledger."""
    import numpy as np

    numbers = [] if ledger is None else [lane.number for lane in ledger.lanes if len(lane.number)]
    if ledger is None or not numbers:
        return 0
    if any(lane.size > 1 for lane in ledger.lanes):  # an entry is the sum of several units
        return max(int(lane.number.max()) + lane.size for lane in ledger.lanes if len(lane.number))
    return len(np.unique(np.concatenate(numbers)))


def _per_second(ledger: Ledger | None, *, is_sum: bool) -> float | None:
    """Return the sum of the lanes' speeds, or the lower median of them."""
    lanes = () if ledger is None else ledger.lanes
    speeds = sorted(speed for lane in lanes if (speed := lane.units_per_second) is not None)
    if not speeds:
        return None
    return sum(speeds) if is_sum else speeds[(len(speeds) - 1) // 2]


def phase_rows(together: Breakdown | None) -> list[PhaseRow]:
    """Return the parts of the units of all ranks, in the order of their first occurrence.

    The time that no scope covers is left out if the parts overlap so much that it is negative.
    """
    if together is None or not together.steps.times:
        return []
    rows = [*together.phases]
    if together.unattributed.total_ns >= 0:
        rows.append(together.unattributed)
    return [_phase(each, together) for each in rows if each.times]


def _phase(phase: PhaseFigures, together: Breakdown) -> PhaseRow:
    spread = phase.spread()
    return PhaseRow(
        phase.name, phase.times, phase.total_ns, together.share(phase),
        *(max(spread[name], 0) for name in ("p50", "p95", "p99", "max")),
    )  # fmt: skip


def scope_rows(scopes: Iterable[tuple[int, IndexedSpan]]) -> list[ScopeRow]:
    """Return the scopes that ended by name, the one with the largest total first."""
    from ...core.records.rows import shown

    durations: dict[str, list[int]] = {}
    ranks: dict[str, set[int]] = {}
    for _, span in scopes:
        if span.start_ns is None or span.end_ns is None:
            continue
        name = shown(span.name) or "?"
        durations.setdefault(name, []).append(span.end_ns - span.start_ns)
        if span.rank is not None:
            ranks.setdefault(name, set()).add(span.rank)
    rows = []
    for name, times in durations.items():
        times.sort()
        p50, p95 = (times[-(-percent * len(times) // 100) - 1] for percent in (50, 95))
        rows.append(ScopeRow(name, len(times), sum(times), p50, p95, sorted(ranks.get(name, ()))))
    return sorted(rows, key=lambda each: (-each.total_ns, each.name))[:_MOST_SCOPES]
