"""The figures of a run: each rank's steps by phase, the slowest steps, the marks and the failures.

The sessions of a rank are treated as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .breakdown import Breakdown
from .divergence.replicas import ReplicaComparison
from .failures import SessionFailure
from .mark_series import MarkSeries
from .memory_series import MemoryReport
from .metrics import LossMetric, losses
from .rank_report import RankReport

PREFIX = "drops."
"""The prefix of the session attributes that count drops by reason."""
_MOST = 1000


@dataclass(slots=True)
class Drop:
    """The drops of one session for one reason."""

    session: str
    rank: int | None
    reason: str
    """A key of `health()["drops"]`."""
    count: int


def drops_in(
    records: Mapping[str, dict[str, Any]], ranks: Mapping[str, Sequence[int]]
) -> list[Drop]:
    """Return the drops in the records of sessions, at most 1,000; `ranks` are those of each."""
    drops = []
    for session, record in records.items():
        attributes = record.get("attrs")
        for name, value in attributes.items() if isinstance(attributes, dict) else ():
            if name.startswith(PREFIX) and type(value) is int and value > 0:
                rank = ranks[session][0] if ranks[session] else None
                drops.append(Drop(session, rank, name.removeprefix(PREFIX)[:100], value))
    return drops[:_MOST]


def dropped_in(attributes: object) -> int:
    """Return the number of dropped marks in a session's attributes."""
    if not isinstance(attributes, Mapping):
        return 0
    return sum(
        value
        for name, value in attributes.items()
        if name.startswith(f"{PREFIX}marks_") and type(value) is int and value > 0
    )


@dataclass(slots=True)
class SlowStep:
    """One of the slowest steps."""

    span_id: str | None
    rank: int | None
    epoch: str | None
    """The index of the step's epoch; None if it has no epoch, or if the epoch was not recorded."""
    index: str | None
    start_ns: int | None
    duration_ns: int
    phases: dict[str, int]
    """The time of each phase, ns."""


@dataclass(slots=True)
class GpuTime:
    """The total device time of a rank's scopes with one name.

    Scopes without a measured device time are not counted.
    """

    rank: int | None
    name: str
    count: int
    gpu_ns: int
    wall_ns: int
    """The host time of the same scopes, ns."""


@dataclass(slots=True)
class RunReport:
    """The figures of a run, or of all runs of a spool."""

    spans: int
    ranks: list[RankReport]
    slowest_steps: list[SlowStep]
    marks: list[MarkSeries] = field(default_factory=list)
    """The first 1,000 series, by name and rank."""
    marks_left_out: int = 0
    """The number of series that `marks` does not contain."""
    gpu: list[GpuTime] = field(default_factory=list)
    """By rank, the longest first; at most 1,000."""
    failures: list[SessionFailure] = field(default_factory=list)
    """Sessions that failed or were killed; the first to fail comes first."""
    drops: list[Drop] = field(default_factory=list)
    """The records that the recording processes dropped."""
    memory: MemoryReport = field(default_factory=MemoryReport)
    summarised_steps: int = 0
    """The number of steps that an export budget sent as summaries (docs/scaling.md)."""
    replicas: ReplicaComparison | None = None
    """The comparison of ranks by their weights; None if no ranks have equal weights."""
    together: Breakdown | None = None
    """The steps of all ranks, if they were computed: `to_json` does not contain them."""

    @property
    def metrics(self) -> list[LossMetric]:
        """The losses among the marks."""
        return losses(self.marks)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object; times in ns."""
        return {
            "spans": self.spans,
            "summarised_steps": self.summarised_steps,
            "failures": [each.to_json() for each in self.failures],
            "replicas": self.replicas.to_json() if self.replicas is not None else None,
            "drops": [asdict(each) for each in self.drops],
            "ranks": [each.to_json() for each in self.ranks],
            "slowest_steps": [asdict(each) for each in self.slowest_steps],
            "metrics": [asdict(each) for each in self.metrics],
            "marks": [asdict(each) for each in self.marks],
            "marks_left_out": self.marks_left_out,
            "gpu": [asdict(each) for each in self.gpu],
            "memory": self.memory.to_json(),
        }
