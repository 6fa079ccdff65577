"""A report over many runs: the figures of each group of runs with equal values of some keys.

Each run is read once. Memory holds the figures of the groups and of one run; the durations of all
steps are in a temporary database on disk.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, NamedTuple

from ..run.run_figures import RunFigures, run_figures
from ..state_database import TEMPORARY, open_database
from .breakdown import STEP, PhaseFigures
from .index import disk_errors
from .run_catalogue import CataloguedRun, merged_value
from .run_keys import OF_RECORDS, Values, value_of_run
from .run_time import ROWS, Row
from .runs import Run
from .verdicts.thresholds import thresholds_of

_SCHEMA: Final = "CREATE TABLE duration (place INTEGER, ns INTEGER)"
_INDEXES: Final = """
CREATE INDEX duration_ns ON duration (ns);
CREATE INDEX duration_of_group ON duration (place, ns);
"""


class _Queries(NamedTuple):
    times: str
    every: str
    nth: str
    """The query of the duration at a place in ascending order."""


_OF_ALL: Final = _Queries(
    "SELECT count(*) FROM duration",
    "SELECT ns FROM duration",
    "SELECT ns FROM duration ORDER BY ns LIMIT 1 OFFSET ?",
)
_OF_GROUP: Final = _Queries(
    "SELECT count(*) FROM duration WHERE place = ?",
    "SELECT ns FROM duration WHERE place = ?",
    "SELECT ns FROM duration WHERE place = ? ORDER BY ns LIMIT 1 OFFSET ?",
)


class NamedRun(NamedTuple):
    """A run of a group, as it is listed."""

    id: str
    name: str
    start_ns: int | None

    @classmethod
    def of(cls, run: Run) -> NamedRun:
        """Return the entry of a run."""
        return cls(run.id, run.name, run.start_ns)


@dataclass(slots=True)
class RunGroup:
    """The figures of the runs that have the same values."""

    key: dict[str, Any]
    """The value of each key: None if the run has none, a list if its sessions have several."""
    runs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    """The number of runs of each status."""
    out_of_memory: int = 0
    """The number of runs that ended because memory was exhausted."""
    duration_ns: int = 0
    """The sum of the runs' durations, ns."""
    rank_ns: int = 0
    gpu_ns: int | None = None
    time: dict[Row, int] = field(default_factory=lambda: dict.fromkeys(ROWS, 0))
    phase_ns: Counter[str] = field(default_factory=Counter)
    unattributed_ns: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    """The number of runs with each kind of verdict."""
    primary_verdicts: Counter[str] = field(default_factory=Counter)
    oldest: NamedRun | None = None
    newest: NamedRun | None = None
    steps: PhaseFigures = field(default_factory=lambda: PhaseFigures(STEP))
    """The steps of all ranks; complete once the report is."""

    def add(self, run: Run, figures: RunFigures) -> None:
        """Add a run; runs are added in order of their start."""
        self.runs += 1
        self.statuses[run.status] += 1
        self.out_of_memory += run.cause is not None
        self.duration_ns += run.duration_ns or 0
        self.rank_ns += figures.rank_ns
        if figures.gpu_ns is not None:
            self.gpu_ns = (self.gpu_ns or 0) + figures.gpu_ns
        for row in ROWS:
            self.time[row] += figures.time[row]
        self.phase_ns.update(figures.phase_ns)
        self.unattributed_ns += figures.unattributed_ns
        self.verdicts.update(figures.verdicts)
        self.primary_verdicts.update(figures.verdicts[:1])
        self.oldest = self.oldest or NamedRun.of(run)
        self.newest = NamedRun.of(run)

    def share(self, ns: int) -> float:
        """Return a share of the time of the steps."""
        return ns / max(self.steps.total_ns, 1)

    def to_json(self) -> dict[str, Any]:
        """Return the group as a JSON object; times in ns."""
        total_ns = max(sum(self.time.values()), 1)
        return {
            "key": self.key,
            "runs": self.runs,
            "statuses": dict(self.statuses.most_common()),
            "out_of_memory": self.out_of_memory,
            "duration_ns": self.duration_ns,
            "rank_ns": self.rank_ns,
            "gpu_ns": self.gpu_ns,
            "steps": self.steps.to_json(),
            "phases": [
                {"name": name, "total_ns": ns, "share": self.share(ns)}
                for name, ns in self.phase_ns.most_common()
            ],
            "unattributed": {
                "total_ns": self.unattributed_ns,
                "share": self.share(self.unattributed_ns),
            },
            "time": [
                {"name": row, "ns": ns, "share": ns / total_ns} for row, ns in self.time.items()
            ],
            "verdicts": dict(self.verdicts.most_common()),
            "primary_verdicts": dict(self.primary_verdicts.most_common()),
            "oldest": None if self.oldest is None else self.oldest._asdict(),
            "newest": None if self.newest is None else self.newest._asdict(),
        }


@dataclass(slots=True)
class GroupedRuns:
    """The groups of many runs, the one with the longest duration first, and all runs together."""

    groups: list[RunGroup]
    """Groups of runs that lack a key come last."""
    total: RunGroup


def group_runs(runs: Iterable[CataloguedRun], keys: Sequence[str]) -> GroupedRuns:
    """Read each run, and return the figures of the runs with equal values of `keys`.

    Raises the errors of reading the batches, and TargetError if there is no disk space.
    """
    limits = thresholds_of("run")
    groups: dict[str, RunGroup] = {}
    places: dict[str, int] = {}
    total = RunGroup({})
    with _StepDurations() as durations:
        for each in runs:
            missing = [key for key in keys if key in OF_RECORDS and not each.values[key]]
            figures = run_figures(each, missing, limits)
            values: dict[str, Values] = {**each.values, **figures.values}
            for name in keys:
                of_run = value_of_run(name, each.run)
                values[name] = values[name] if of_run is None else of_run
            key = {name: merged_value(values[name]) for name in keys}
            identity = json.dumps(key)
            group = groups.setdefault(identity, RunGroup(key))
            group.add(each.run, figures)
            total.add(each.run, figures)
            durations.add(places.setdefault(identity, len(places)), figures.step_ns)
        durations.ready()
        for identity, group in groups.items():
            group.steps = durations.figures(places[identity])
        total.steps = durations.figures(None)
    return GroupedRuns(sorted(groups.values(), key=_order), total)


def _order(group: RunGroup) -> tuple[bool, int, str]:
    is_missing = any(value is None for value in group.key.values())
    return is_missing, -group.duration_ns, json.dumps(group.key)


class _StepDurations:
    """The durations of steps in a temporary database; a context manager that removes it."""

    def __init__(self) -> None:
        self._connection = open_database("", *TEMPORARY)
        self._connection.executescript(_SCHEMA)
        self._connection.execute("BEGIN")

    def __enter__(self) -> _StepDurations:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()

    def add(self, place: int, durations: Iterable[int]) -> None:
        """Add steps of the group at `place`."""
        with disk_errors():
            rows = ((place, ns) for ns in durations)
            self._connection.executemany("INSERT INTO duration VALUES (?, ?)", rows)

    def ready(self) -> None:
        """Make the durations searchable."""
        with disk_errors():
            self._connection.execute("COMMIT")
            self._connection.executescript(_INDEXES)

    def figures(self, place: int | None) -> PhaseFigures:
        """Return the figures of the steps of a group; None for all groups."""
        queries, values = (_OF_ALL, ()) if place is None else (_OF_GROUP, (place,))
        with disk_errors():
            times = self._one(queries.times, *values)
            total_ns = sum(ns for (ns,) in self._rows(queries.every, *values))
            return PhaseFigures.of(
                STEP, times, total_ns, lambda place: self._one(queries.nth, *values, place)
            )

    def _rows(self, query: str, *values: int) -> Iterator[tuple[int]]:
        return self._connection.execute(query, values)

    def _one(self, query: str, *values: int) -> int:
        return next(self._rows(query, *values))[0]
