"""A report over many runs: the figures of each group of runs with equal values of some keys.

Each run is read once. Above 100,000 durations of a group, only counts of ranges are kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..records.verbatim import record_at, span_records
from ..run.accounts import ACCOUNTS
from ..run.figures.durations import Durations, figures_of
from ..run.findings.conclude import findings_of, status_of
from ..run.opening import open_run
from ..run.run import Run as OpenedRun
from .breakdown import STEP, PhaseFigures
from .run_catalogue import CataloguedRun, merged_value
from .run_hosts import HostCounts
from .run_keys import (
    FINDING,
    FRAMEWORK,
    MODEL,
    MOST_CHARACTERS,
    OF_RECORDS,
    Values,
    value_of_run,
)
from .runs import Run

_ATTRIBUTES: Final = {MODEL: "module", FRAMEWORK: "framework"}
"""The attribute of the first forward pass, and that of the first session."""


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
    """The sum of the ranks' times from their first start to their last end, without pauses, ns."""
    gpu_ns: int | None = None
    time: Counter[str] = field(default_factory=Counter)
    """The time of all ranks by account of the ledger, ns."""
    phase_ns: Counter[str] = field(default_factory=Counter)
    unattributed_ns: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    """The number of runs with each kind of finding, without notices."""
    first_findings: Counter[str] = field(default_factory=Counter)
    """The number of runs by the kind of their first finding."""
    conclusions: Counter[str] = field(default_factory=Counter)
    """The number of runs with each status of the conclusion."""
    oldest: NamedRun | None = None
    newest: NamedRun | None = None
    steps: PhaseFigures = field(default_factory=lambda: PhaseFigures(STEP))
    """The steps of all ranks; complete once the report is."""
    _step_ns: Durations = field(default_factory=Durations)

    def add(self, listed: Run, run: OpenedRun, status: str, kinds: Sequence[str]) -> None:
        """Add a run, with the status of its conclusion and its kinds of findings.

        Runs are added in order of their start.
        """
        self.runs += 1
        self.statuses[listed.status] += 1
        self.out_of_memory += listed.cause is not None
        self.duration_ns += listed.duration_ns or 0
        if run.device_ns is not None:
            self.gpu_ns = (self.gpu_ns or 0) + run.device_ns
        lanes = [] if run.ledger is None else run.ledger.lanes
        paused = {each.rank: each.outside.get("paused", 0) for each in lanes}
        for lane in lanes:
            self.time.update(lane.totals)
        has_ranks = any(each.rank is not None for each in run.ranks)
        for _, _, durations in run.unit_times():
            self._step_ns.add(durations)
        for each in run.ranks:
            for phase in each.steps.phases:
                self.phase_ns[phase.name] += phase.total_ns
            self.unattributed_ns += each.steps.unattributed.total_ns
            # If there are ranks, spans without a rank are those of the job's own process.
            if each.rank is not None or not has_ranks:
                self.rank_ns += max(each.run_ns or 0, 0) - paused.get(each.rank, 0)
        self.conclusions[status] += 1
        self.findings.update(kinds)
        self.first_findings.update(kinds[:1])
        self.oldest = self.oldest or NamedRun.of(listed)
        self.newest = NamedRun.of(listed)

    def finish(self) -> None:
        """Compute the figures of the steps."""
        (self.steps,) = figures_of([(STEP, self._step_ns)])

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
                {"name": account, "ns": self.time[account], "share": self.time[account] / total_ns}
                for account in ACCOUNTS
                if self.time[account]
            ],
            "conclusions": dict(self.conclusions.most_common()),
            "findings": dict(self.findings.most_common()),
            "first_findings": dict(self.first_findings.most_common()),
            "oldest": None if self.oldest is None else self.oldest._asdict(),
            "newest": None if self.newest is None else self.newest._asdict(),
        }


@dataclass(slots=True)
class GroupedRuns:
    """The groups of many runs, the one with the longest duration first, and all runs together."""

    groups: list[RunGroup]
    """Groups of runs that lack a key come last."""
    total: RunGroup
    hosts: HostCounts
    """The hosts of all runs."""


def group_runs(
    runs: Iterable[CataloguedRun],
    keys: Sequence[str],
    on_run: Callable[[Run, OpenedRun], None] | None = None,
) -> GroupedRuns:
    """Read each run, and return the figures of the runs with equal values of `keys`.

    `on_run` is called with each run while it is open.
    Raises the errors of reading the batches, and TargetError if there is no disk space.
    """
    groups: dict[str, RunGroup] = {}
    total, hosts = RunGroup({}), HostCounts()
    for each in runs:
        with open_run(each, each.reader) as run:
            hosts.add(run.ledger)
            if on_run is not None:
                on_run(each.run, run)
            findings = findings_of(run, world_size=each.run.world_size)
            status = status_of(findings)
            kinds = list(dict.fromkeys(f.kind for f in findings if f.severity != "notice"))
            key = {name: merged_value(_values(name, each, run, kinds)) for name in keys}
            for group in (groups.setdefault(json.dumps(key), RunGroup(key)), total):
                group.add(each.run, run, status, kinds)
    for group in (*groups.values(), total):
        group.finish()
    return GroupedRuns(sorted(groups.values(), key=_order), total, hosts)


def _values(key: str, catalogued: CataloguedRun, run: OpenedRun, kinds: Sequence[str]) -> Values:
    """Return the values of a key in a run, or else in its resource, or else in its records."""
    of_run = value_of_run(key, catalogued.run)
    if of_run is not None:
        return of_run
    if catalogued.values[key] or key not in OF_RECORDS:
        return catalogued.values[key]
    if key == FINDING:
        return tuple(kinds[:1])
    number = run.recording.first_forward() if key == MODEL else _first_session(run)
    place = None if number is None else run.recording.place_of(number)
    batch = None if place is None else catalogued.read(place.file, check=False)
    if place is None or batch is None:
        return ()
    record = record_at(span_records(batch.data), place.position)
    attributes = None if record is None else record.get("attrs")
    value = attributes.get(_ATTRIBUTES[key]) if isinstance(attributes, dict) else None
    return (value[:MOST_CHARACTERS],) if isinstance(value, str) and value else ()


def _first_session(run: OpenedRun) -> int | None:
    """Return the number of the span of the session that began first."""
    for session in run.sessions:
        found = run.recording.tree.numbered(session.id)
        if session.id is not None:
            return None if found is None else found[0]
    return None


def _order(group: RunGroup) -> tuple[bool, int, str]:
    is_missing = any(value is None for value in group.key.values())
    return is_missing, -group.duration_ns, json.dumps(group.key)
