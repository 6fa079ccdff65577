"""The document of the difference of two runs (docs/cli.md#diff-a-b)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ...semconv import JOB_ID, LOADER_BATCH_SIZE, PROCESS_PID, RANK, RUN_ID, SESSION_ID, WORLD_SIZE
from .formatting import of_ranks, printable

if TYPE_CHECKING:
    from ...core.analysis.breakdown import Breakdown, PhaseFigures
    from ...core.analysis.mark_series import MarkSeries
    from ...core.analysis.run_selection import ChosenRun
    from ...core.run.comparison import CostChange
    from ...core.run.costs import LedgerCosts
    from ...core.run.findings.finding import Finding
    from .document import Document

_OF_PROCESS: Final = frozenset({
    JOB_ID, PROCESS_PID, RANK, RUN_ID, SESSION_ID, WORLD_SIZE, "cirron.run.name",
    "cirron.local_rank", "service.instance.id",
})  # fmt: skip
"""The resource attributes that differ between any two runs, and those with a row of their own."""
_ONCE: Final = frozenset({"START_UP", "WARM_UP", "COMPILATION", "RESTARTED", "UNEVEN"})
"""The kinds of findings whose cost does not grow with the number of units."""
FETCH: Final = "data_load"
"""The name of the phase that fetches a batch."""
SCHEMA_VERSION: Final = 2
"""The version of the JSON document."""
UNIT_FIGURES: Final = ("count", "per_s", "p50_ns", "p95_ns", "p99_ns", "max_ns", "errors")


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the two runs of a comparison."""

    document: Document
    chosen: ChosenRun
    costs: LedgerCosts | None
    """None for a run without units."""
    dropped_marks: int
    """The number of marks that the recording processes dropped."""

    @property
    def title(self) -> str:
        """The name of the run, or of its source if it has none."""
        return self.document.run.name or self.document.source

    @property
    def unit(self) -> str:
        """The name of a unit, for a terminal."""
        return "step" if self.document.units is None else printable(self.document.units.name)

    @property
    def times(self) -> Breakdown | None:
        """The units of all ranks by phase."""
        return self.document.figures.together

    @property
    def units(self) -> int:
        """The number of units, the sum over all ranks."""
        return 0 if self.times is None else self.times.steps.times

    @property
    def unit_size(self) -> float | None:
        """The mean number of samples of a unit in a rank; None if it is unknown."""
        size = self.document.setting(LOADER_BATCH_SIZE)
        phases = [] if self.times is None else self.times.phases
        fetches = sum(each.times for each in phases if each.name == FETCH)
        if type(size) is not int or size <= 0 or not fetches:
            return None
        return size * fetches / self.units

    @property
    def of_ranks(self) -> str:
        """The number of ranks as text; "" without ranks."""
        return of_ranks(each.rank for each in self.document.figures.ranks)

    def to_json(self) -> dict[str, Any]:
        """Return the run as a JSON object, without what the comparison contains."""
        document, run = self.document, self.chosen.run
        return {
            "source": document.source,
            "run": None if run is None else {"id": run.id, "name": run.name},
            "ranks": [each.rank for each in document.figures.ranks],
            "steps": self.units,
            "status": document.status,
            "headline": document.headline,
            "skipped": [each.to_json() for each in document.skipped],
        }


class PhasePair(NamedTuple):
    """The durations of a phase in both runs; None for a run without it."""

    name: str
    a: PhaseFigures | None
    b: PhaseFigures | None

    @property
    def change(self) -> float | None:
        """The change of the median relative to A; None if a median is missing or A's is 0."""
        a, b = self.a, self.b
        if a is None or b is None or not a.times or not b.times or not a.median_ns:
            return None
        return (b.median_ns - a.median_ns) / abs(a.median_ns)

    def to_json(self) -> dict[str, Any]:
        """Return the pair as a JSON object."""
        return {
            "name": self.name, "a": _times(self.a), "b": _times(self.b), "change": self.change,
        }  # fmt: skip


def _times(phase: PhaseFigures | None) -> dict[str, int] | None:
    if phase is None or not phase.times:
        return None
    spread = phase.spread()
    return {
        "times": phase.times,
        "total_ns": phase.total_ns,
        "median_ns": phase.median_ns,
        "p95_ns": spread["p95"],
        "p99_ns": spread["p99"],
    }


class Setting(NamedTuple):
    """A part of the configuration that differs; None for a run that does not record it."""

    key: str
    a: Any
    b: Any


class FindingPair(NamedTuple):
    """A finding of A and the finding of B with the same id."""

    change: Literal["new", "gone", "changed", "same"]
    a: Finding | None
    b: Finding | None

    def to_json(self) -> dict[str, Any]:
        """Return the pair as a JSON object."""
        known = self.b or self.a
        return {
            "id": None if known is None else known.id,
            "kind": None if known is None else known.kind,
            "change": self.change,
            "a": None if self.a is None else self.a.to_json(),
            "b": None if self.b is None else self.b.to_json(),
        }


class MarkPair(NamedTuple):
    """A series of marks that both runs have."""

    a: MarkSeries
    b: MarkSeries

    def to_json(self) -> dict[str, Any]:
        """Return the last values as a JSON object."""
        a = self.a
        return {
            "name": a.name, "rank": a.rank, "is_eval": a.is_eval, "a": a.last, "b": self.b.last,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference of two runs, apart from their digests."""

    a: ComparedRun
    b: ComparedRun
    change: CostChange
    phases: Sequence[PhasePair]
    """In A's order; the unattributed time and the units come last."""
    configuration: Sequence[Setting]
    findings: Sequence[FindingPair]
    """Those of B by severity, then those that only A has."""
    marks: Sequence[MarkPair]

    @property
    def is_per_unit(self) -> bool:
        """Whether the runs have different numbers of units, so that only times per unit compare."""
        a, b = self.a.costs, self.b.costs
        return a is None or b is None or a.units_of_lane != b.units_of_lane

    @property
    def scale(self) -> float:
        """The factor from a time per unit to the time that texts show."""
        return 1 if self.is_per_unit or self.a.costs is None else self.a.costs.units_of_lane

    @property
    def unit_median(self) -> PhasePair:
        """The durations of the units."""
        return self.phases[-1]

    @property
    def marks_left_out(self) -> int:
        """The number of series of marks that are not compared, in the run with more of them."""
        return max(each.document.figures.marks_left_out for each in (self.a, self.b))

    def median_noise(self) -> float | None:
        """Return the change of the median unit that the noise of both runs explains."""
        a, b = self.a.costs, self.b.costs
        if a is None or b is None or a.median_noise is None or b.median_noise is None:
            return None
        return math.hypot(a.median_noise, b.median_noise) / a.median if a.median else None

    @property
    def unit_sizes(self) -> tuple[float, float] | None:
        """The samples of a unit in both runs: the batch size times the fetches of a unit.

        None unless both batch sizes are recorded, and the same in all ranks.
        """
        one, other = self.a.unit_size, self.b.unit_size
        return None if one is None or other is None else (one, other)

    @property
    def samples(self) -> dict[str, Any] | None:
        """The wall time for each sample of a rank, and its change; None if it is unknown."""
        a, b, sizes = self.a.costs, self.b.costs, self.unit_sizes
        if a is None or b is None or sizes is None:
            return None
        times = a.per_unit / sizes[0], b.per_unit / sizes[1]
        return {"a_ns": times[0], "b_ns": times[1], "change": relative(*times)}

    def is_slower_by(self, share: float) -> bool:
        """Return whether B is slower by a share of A's wall time.

        Times per unit are compared, or times per sample if units have different numbers of them.
        """
        sizes = self.unit_sizes
        return self.change.is_slower_by(share, 1.0 if sizes is None else sizes[0] / sizes[1])

    def to_json(self, headline: str, why: str) -> dict[str, Any]:
        """Return the comparison as a JSON object; times in ns."""
        change = self.change
        return {
            "schema_version": SCHEMA_VERSION,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "headline": headline,
            "why": why,
            "verdict": change.kind.lower(),
            "severity": change.severity,
            "change": change.change,
            "noise": change.noise,
            "cause": _cause(change),
            "median": {"change": self.unit_median.change, "noise": self.median_noise()},
            "samples": self.samples,
            "ledger": {
                "is_per_unit": self.is_per_unit,
                "a": _costs(self.a.costs),
                "b": _costs(self.b.costs),
            },
            "accounts": [each.to_json() for each in change.accounts],
            "units": self._units(),
            "phases": [each.to_json() for each in self.phases],
            "configuration": [each._asdict() for each in self.configuration],
            "findings": [each.to_json() for each in self.findings],
            "marks": [each.to_json() for each in self.marks],
            "marks_left_out": self.marks_left_out,
        }  # fmt: skip

    def _units(self) -> dict[str, Any]:
        sides = [each.document.units for each in (self.a, self.b)]
        a, b = [None if each is None else each.to_json() for each in sides]
        change = {} if a is None or b is None else {
            name.removesuffix("_ns"): relative(a[name], b[name]) for name in UNIT_FIGURES
        }  # fmt: skip
        return {"a": a, "b": b, "change": change}


def relative(a: float | None, b: float | None) -> float | None:
    """Return (b - a) / a; None if a value is missing or a is 0."""
    return None if a is None or b is None or not a else (b - a) / a


def _cause(change: CostChange) -> dict[str, Any] | None:
    cause = change.cause
    if cause is None:
        return None
    return {"account": cause.account, "per_unit_ns": cause.per_unit_ns, "share": cause.part}


def _costs(costs: LedgerCosts | None) -> dict[str, Any] | None:
    if costs is None:
        return None
    return {
        "ranks": costs.lanes, "units": costs.units, "wall_ns": round(costs.wall_ns / costs.lanes),
        "per_unit_ns": costs.per_unit, "noise_ns": costs.noise,
    }  # fmt: skip


def compare(a: ComparedRun, b: ComparedRun, moderate: float, material: float) -> Comparison:
    """Compare two runs; `moderate` and `material` are changes of the wall time per unit."""
    from ...core.run.comparison import compare_costs  # noqa: PLC0415 - imports numpy

    return Comparison(
        a,
        b,
        compare_costs(a.costs, b.costs, moderate, material),
        _phases(a, b),
        _settings(a.chosen, b.chosen),
        _findings(a, b, moderate),
        _marks(a.document.figures.marks, b.document.figures.marks),
    )


def _phases(a: ComparedRun, b: ComparedRun) -> list[PhasePair]:
    one, other = ([] if each.times is None else each.times.phases for each in (a, b))
    theirs = {each.name: each for each in other}
    pairs = [PhasePair(each.name, each, theirs.pop(each.name, None)) for each in one]
    pairs += [PhasePair(each.name, None, each) for each in theirs.values()]
    for name in ("unattributed", "steps"):
        sides = [None if each.times is None else getattr(each.times, name) for each in (a, b)]
        units = a.unit if a.unit == b.unit else f"{a.unit}, {b.unit}"
        pairs.append(PhasePair(name if name == "unattributed" else units, *sides))
    return pairs


def _settings(a: ChosenRun, b: ChosenRun) -> list[Setting]:
    """Return what the recordings know of the programs and the machines, if it differs."""
    one, other = _configuration(a), _configuration(b)
    keys = sorted({*one, *other})
    found = [Setting(key, one.get(key), other.get(key)) for key in keys]
    return [each for each in found if each.a != each.b]


def _configuration(chosen: ChosenRun) -> dict[str, Any]:
    run = chosen.run
    if run is None:
        return {}
    values: dict[str, Any] = {
        "script": run.script, "ranks": run.rank_count, "world_size": run.world_size,
    }  # fmt: skip
    values |= {key: value for key, value in run.resource.items() if key not in _OF_PROCESS}
    return {key: value for key, value in values.items() if value is not None}


def _findings(a: ComparedRun, b: ComparedRun, moderate: float) -> list[FindingPair]:
    """Return the findings by id, those with the same id in order."""
    earlier: dict[str, list[Finding]] = {}
    for each in a.document.findings:
        earlier.setdefault(each.id, []).append(each)
    pairs = []
    for each in b.document.findings:
        same = earlier.get(each.id)
        if not same:
            pairs.append(FindingPair("new", None, each))
            continue
        before = same.pop(0)
        is_other = before.severity != each.severity or _costs_more(before, each, a, b, moderate)
        pairs.append(FindingPair("changed" if is_other else "same", before, each))
    rest = (each for same in earlier.values() for each in same)
    return pairs + [FindingPair("gone", each, None) for each in rest]


def _costs_more(
    before: Finding, after: Finding, a: ComparedRun, b: ComparedRun, moderate: float
) -> bool:
    """Return whether the cost differs by `moderate` or more of A's wall time.

    The costs compared are those per unit, or those per rank of findings on a part that a run has
    once.
    """
    if a.costs is None or b.costs is None:
        return False
    is_once = after.kind in _ONCE
    base = a.costs.wall_ns / a.costs.lanes if is_once else a.costs.per_unit
    costs = [
        (finding.cost_ns or 0) / (run.lanes if is_once else run.units)
        for finding, run in ((before, a.costs), (after, b.costs))
    ]
    return abs(costs[1] - costs[0]) >= max(moderate * base, 1)


def _marks(a: Sequence[MarkSeries], b: Sequence[MarkSeries]) -> list[MarkPair]:
    """Return the series that both runs have."""
    theirs = {(each.name, each.rank, each.is_eval): each for each in b}
    pairs = ((each, theirs.get((each.name, each.rank, each.is_eval))) for each in a)
    return [MarkPair(each, other) for each, other in pairs if other is not None]
