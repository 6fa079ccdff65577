"""The input of the rules: plain values about a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from ...analysis.divergence.replicas import ReplicaComparison
from ...analysis.failures import SessionFailure
from ...analysis.summary import SessionSummary
from ...records.memory_devices import CPU
from ..figures.ledger import Ledger
from ..figures.places import PlacesByAccount
from ..figures.timed_marks import TimedValues
from ..stall import Stall
from ..utilization import Utilization
from .words import hosts_of, listed, ranks_text

_MOST_HOSTS: Final = 3
State = Literal["running", "ended", "interrupted", "incomplete"]


@dataclass(frozen=True, slots=True)
class ValueSeries:
    """The numbers of a mark in one rank, in order of their time."""

    name: str
    rank: int | None
    numbers: np.ndarray
    """The values as float64; NaN and infinities are included."""
    times: np.ndarray
    """The time of each value, Unix ns; the smallest int64 for an unknown time."""
    is_eval: bool = False


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a device, or of the process, in one rank. Sizes are in bytes."""

    rank: int | None
    device: str
    """`cpu` for the process."""
    peak_bytes: int
    capacity_bytes: int | None = None
    """The size of the device, or the limit for the processes of the host."""
    times: np.ndarray | None = None
    """The time of each sample, Unix ns, in order; None without samples."""
    sizes: np.ndarray | None = None
    """The size in each sample."""
    used_bytes: int | None = None
    """The last use of all processes that the limit of the host applies to."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An out-of-memory error that the run recorded, whether it ended the process or not."""

    rank: int | None
    time_ns: int | None
    device: str | None = None
    requested_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The values of a run that the rules need."""

    ledger: Ledger | None = None
    """None for a run without units."""
    unit: str = "step"
    """The name of a unit: `step`, or `request`."""
    state: State = "ended"
    failures: Sequence[SessionFailure] = ()
    """In the order of `Run.failures`: the first one is the cause of the others."""
    sessions: Sequence[SessionSummary] = ()
    series: Sequence[ValueSeries] = ()
    memory: Sequence[MemoryUse] = ()
    out_of_memory: Sequence[OutOfMemory] = ()
    cpu: Sequence[Utilization] = ()
    gpu: Sequence[Utilization] = ()
    temperature: Sequence[Utilization] = ()
    stalls: Sequence[Stall] = ()
    """The ranks of a running job that have finished no unit for some time."""
    dropped_records: int = 0
    """The number of records that the recording processes dropped."""
    missing_files: int = 0
    """The number of batches, or of messages of another source, that could not be read."""
    summarised: int = 0
    """The number of units that an export budget sent as summaries."""
    replicas: ReplicaComparison | None = None
    world_size: int | None = None
    """The number of ranks that the job has; None if it is unknown."""

    places: PlacesByAccount = field(default_factory=dict)
    """The lines at which the program was in samples, by account."""
    cpu_waits: Mapping[int | None, TimedValues] = field(default_factory=dict)
    """By rank: for how long it waited for a CPU since the reading ahead of each one, ns."""
    settings: Mapping[str, Mapping[Any, Sequence[int | None]]] = field(default_factory=dict)
    """The configuration of the training: for each attribute its values, with their ranks."""

    def setting(self, name: str) -> Any:
        """Return an attribute of the configuration; None if it is unknown, or ranks differ."""
        values = self.settings.get(name, {})
        return next(iter(values)) if len(values) == 1 else None

    @property
    def hosts(self) -> dict[int | None, str]:
        """The host of each rank of the ledger that has a known one."""
        lanes = [] if self.ledger is None else self.ledger.lanes
        return {each.rank: each.host for each in lanes if each.host is not None}

    def who(self, ranks: Sequence[int | None], *, begins: bool = True) -> str:
        """Return ranks as the subject of a sentence, with their hosts if the run has several."""
        hosts = self.hosts
        of_ranks = hosts_of(ranks, hosts)
        text = ranks_text(ranks, begins=begins)
        if not 0 < len(of_ranks) <= _MOST_HOSTS or len({*hosts.values()}) < 2:
            return text
        return f"{text} on {listed(of_ranks)}"

    @property
    def lacks_device_times(self) -> bool:
        """Whether the run used a device, and no unit has its time on the device."""
        has_device = any(each.device != CPU for each in self.memory) or bool(self.gpu)
        lanes = [] if self.ledger is None else self.ledger.lanes
        return has_device and bool(lanes) and all(each.device is None for each in lanes)
