"""A run: the figures of a recording, each computed on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from ...semconv import CONFIGURATION, SESSION
from ..analysis.breakdown import STEP, Breakdown
from ..analysis.divergence.recorded_steps import read_steps
from ..analysis.divergence.replicas import ReplicaComparison, compare_replicas
from ..analysis.divergence.tensors import RunDigests
from ..analysis.failures import SessionFailure
from ..analysis.mark_series import MarkSeries, Point, points_of
from ..analysis.memory_series import DeviceMemory, MemoryReport
from ..analysis.rank_report import RankReport
from ..analysis.run_report import Drop, GpuTime, SlowStep, dropped_in, drops_in
from ..analysis.run_traces import records_at
from ..analysis.summary import SessionSummary, with_processes
from ..records.rows import shown
from ..spool.journal import open_scopes
from ..spool.owner import owner_of
from ..spool.reader import SpoolReader
from .accounts import BY_RULE, AccountNames
from .figures.breakdowns import UnitTimes, unit_times
from .figures.device_times import device_times, peaks
from .figures.failures import Failures
from .figures.host_memory import HostMemory, host_memory
from .figures.ledger import Ledger
from .figures.memory import MemoryFold, MemorySample
from .figures.places import PlacesByAccount
from .figures.readings import ReadingsFold
from .figures.slowest import SlowUnit
from .figures.timed_marks import TimedValues
from .figures.trainings import TrainingFigures, trainings_of
from .files import RunFiles
from .folds import MarkFolds, UnitFolds
from .recording import Recording
from .relations import ABSENT, Block, listed

_MOST_SESSIONS: Final = 1000
_AT_ONCE: Final = 100


class Run:
    """The figures of a run."""

    def __init__(
        self,
        recording: Recording,
        files: RunFiles,
        slowest: int = 10,
        accounts: AccountNames = BY_RULE,
    ) -> None:
        """`slowest` is the number of units that the property of that name lists.

        `accounts` has the accounts of scopes by their names.
        """
        self.recording, self._accounts = recording, accounts
        self._files, self._most_slowest = files, slowest

    @cached_property
    def spans(self) -> int:
        """The number of spans."""
        return sum(each.spans for each in self.recording.sums.ranks.values())

    @cached_property
    def sessions(self) -> list[SessionSummary]:
        """The sessions in order of their start; those without an id come last."""
        sessions = self.recording.sessions()
        if self._files.paths is not None:
            # A process without a batch may belong to a run other than the one being read.
            owners = {owner_of(name or "") or "" for name in self.recording.files()}
            sessions = with_processes(
                sessions, self._files.paths, adds=self._files.is_complete, added_owners=owners
            )
        return sessions

    @cached_property
    def _units(self) -> UnitFolds:
        """The folds over all units, in one pass."""
        folds = UnitFolds(
            self.recording, self._failures, self._most_slowest, self.epoch_of, self._accounts
        )
        for units, parts in self._unit_blocks():
            folds.add(units, parts)
        folds.together = folds.ranks.finish()
        return folds

    def _unit_blocks(self) -> Iterator[tuple[Block, Block]]:
        for units, parts in self.recording.unit_blocks():
            yield units, listed(parts, self.recording.texts)

    @cached_property
    def _failures(self) -> Failures:
        return Failures(self.recording, self.sessions)

    @cached_property
    def _marks(self) -> MarkFolds:
        """The folds over all marks, in one pass."""
        folds = MarkFolds(self.recording.texts, self._failures)
        for block in self.recording.mark_blocks():
            folds.add(block)
        return folds

    @cached_property
    def breakdowns(self) -> dict[int | None, Breakdown]:
        """The units of each rank that has some, by phase, without their durations."""
        return self._units.ranks.breakdowns

    @cached_property
    def ledger(self) -> Ledger | None:
        """The time of all ranks by account; None without units."""
        units = self._units
        if len(self.recording.sums.ranks) < 2:
            return units.ledger.finish()
        return units.ledger.finish(self._marks.ddp.result())

    @cached_property
    def places(self) -> PlacesByAccount:
        """The lines at which the program was in samples, by account."""
        if self.ledger is None:
            return {}
        return self._marks.places.result(self.ledger, self._accounts)

    @cached_property
    def readings(self) -> ReadingsFold:
        """The readings of the sampler: CPUs, devices and temperatures."""
        return self._marks.readings

    @cached_property
    def cpu_waits(self) -> Mapping[int | None, TimedValues]:
        """The times for which each rank waited for a CPU, ns: since the mark ahead of each one."""
        return self._marks.cpu_waits.result()

    @cached_property
    def trainings(self) -> list[TrainingFigures]:
        """The trainings in the order of their numbers; none if there is only one."""
        return trainings_of(self.ledger, self._marks.names)

    @cached_property
    def together(self) -> Breakdown:
        """The units of all ranks, by phase, without their durations."""
        return self._units.together

    def unit_times(self) -> Iterable[UnitTimes]:
        """Return each rank with the starts and the durations of its units, ns, in order."""
        kept = self._units.ranks.times
        return unit_times(self.recording.unit_blocks()) if kept is None else kept

    def unit_points(self, rank: int | None, limit: int) -> list[Point]:
        """Return the durations of a rank's units, ns, in the order of their start.

        They are at most `limit` points.
        """
        for of_rank, start, ns in self.unit_times():
            if of_rank == rank:
                rows = zip(ns.tolist(), start.tolist(), strict=True)
                return list(points_of(rows, len(ns), limit))
        return []

    def mark_points(
        self, wanted: Callable[[str, int | None, bool], MarkSeries | None], limit: int
    ) -> Iterator[tuple[MarkSeries, list[Point]]]:
        """Yield the points of the wanted series in the order of `marks`; at most `limit` each.

        `wanted` takes a name, a rank, and whether the marks are of evaluations. It returns the
        series, or None to skip it.
        """
        return self._marks.series.points(wanted, limit)

    def mark_values(self) -> Iterator[tuple[str, int | None, bool, np.ndarray, np.ndarray]]:
        """Yield the first 1,000 series of marks: name, rank, is_eval, values (float64), times.

        Unlike `mark_points`, they have all values, and those that are not finite.
        """
        return self._marks.series.values()

    @cached_property
    def ranks(self) -> list[RankReport]:
        """The report of each rank, in order; spans without a rank come first."""
        reports = []
        sums = sorted(self.recording.sums.ranks.items(), key=lambda each: _order(each[0]))
        nothing = Breakdown.empty()
        for rank, each in sums:
            steps = self.breakdowns.get(rank, nothing)
            speed = self._speeds.get(rank)
            reports.append(
                RankReport(
                    rank, each.spans, each.first_ns, each.last_ns, steps, speed, each.recompute_ns
                )
            )
        return reports

    @cached_property
    def _speeds(self) -> dict[int | None, float]:
        """The number of units per second of each rank; that of a rank's threads together."""
        speeds: dict[int | None, float] = {}
        for lane in [] if self.ledger is None else self.ledger.lanes:
            if (speed := lane.units_per_second) is not None:
                speeds[lane.rank] = speeds.get(lane.rank, 0.0) + speed
        return speeds

    @cached_property
    def slowest(self) -> list[SlowStep]:
        """The slowest units of all ranks, the slowest first."""
        return [self._slow(each) for each in self._units.slowest.result()]

    def _slow(self, unit: SlowUnit) -> SlowStep:
        row, texts = unit.row, self.recording.texts
        return SlowStep(
            texts.id_of(row["id_high"], row["id_low"]),
            None if row["rank"] == ABSENT else row["rank"],
            self.recording.tree.epoch_of(texts.text(row["parent"]), {}),
            texts.text(row["idx"]),
            row["start_ns"],
            unit.ns,
            unit.parts,
        )

    @cached_property
    def summarised(self) -> int:
        """The number of units that an export budget sent as summaries."""
        inside = (each.span for each in self.recording.noted)
        others = (span for _, span in self.recording.tree.scopes)
        return self._units.summarised + sum(
            each.name == STEP and each.is_summary and each.id is not None
            for each in chain(inside, others)
        )

    @cached_property
    def marks(self) -> tuple[list[MarkSeries], int]:
        """The first 1,000 series of marks, by name and rank, and how many more there are."""
        return self._marks.series.result()

    @cached_property
    def gpu(self) -> list[GpuTime]:
        """The device time of each rank's scopes by name, the longest first; at most 1,000."""
        return device_times(self.recording.sums)

    @cached_property
    def _samples(self) -> list[MemorySample]:
        return [MemorySample(*each) for each in self.recording.samples()]

    @cached_property
    def memory(self) -> MemoryReport:
        """The memory of the run."""
        fold = MemoryFold()
        fold.add(self._samples)
        return fold.result(peaks(self.recording.sums))

    def memory_points(self, most: int, limit: int) -> Iterator[tuple[DeviceMemory, list[Point]]]:
        """Yield the samples of the first `most` devices over time, as at most `limit` points."""
        for device in self.memory.devices[:most]:
            samples = sorted(
                (each for each in self._samples if each.is_of(device)), key=lambda each: each.time
            )
            records = ((each.memory.allocated, each.mark.ts_ns) for each in samples)
            yield device, list(points_of(records, device.samples, limit))

    def host_memory(self, limit: int) -> Iterator[HostMemory]:
        """Yield the memory of each process with units over time, as at most `limit` points.

        Without units, yield the memory of all processes.
        """
        return host_memory(self._samples, limit, {pid for _, pid in self.recording.extents})

    @cached_property
    def settings(self) -> dict[str, dict[Any, list[int | None]]]:
        """The configuration of the training: for each attribute its values, with their ranks."""
        found: dict[str, dict[Any, list[int | None]]] = {}
        ranks = sorted(self.recording.sums.ranks.items(), key=lambda each: _order(each[0]))
        for rank, sums in ranks:
            for name in sorted(sums.details.keys() & CONFIGURATION):
                found.setdefault(name, {}).setdefault(sums.details[name], []).append(rank)
        return dict(sorted(found.items()))

    @cached_property
    def failures(self) -> list[SessionFailure]:
        """The sessions that failed or were killed, in the order of their end; at most 100."""
        _ = self._units, self._marks  # fill the folds
        return self._failures.result(self._files.batches)

    @property
    def failed_units(self) -> int:
        """The number of units that ended with an error."""
        _ = self._units  # fills the fold
        return len(self._failures.units.failed)

    @cached_property
    def drops(self) -> list[Drop]:
        """The records that the recording processes dropped; at most 1,000."""
        batches = self._files.batches
        if batches is None or not self._files.may_have_drops:
            return []
        ranks = {each.id: each.ranks for each in self.sessions if each.id is not None}
        places = []
        for id_ in list(ranks)[:_MOST_SESSIONS]:
            found = self.recording.tree.numbered(id_)
            place = None if found is None else self.recording.place_of(found[0])
            if place is not None:
                places.append((id_, *place))
        return drops_in(records_at(batches, places), ranks)

    @cached_property
    def unit_tokens(self) -> int | None:
        """The sum of the tokens of requests; None if there are none."""
        return self.recording.unit_tokens()

    @property
    def unreadable_batches(self) -> int:
        """The number of batches that could not be read."""
        return self._files.unreadable

    @cached_property
    def dropped_marks(self) -> int:
        """The number of marks that the recording processes dropped."""
        batches = self._files.batches
        if batches is None or not self._files.may_have_drops:
            return 0
        count, places = 0, self._session_places()
        while some := list(islice(places, _AT_ONCE)):
            records = records_at(batches, some).values()
            count += sum(dropped_in(each.get("attrs")) for each in records)
        return count

    def _session_places(self) -> Iterator[tuple[str, str, int]]:
        scopes = chain(self.recording.tree.scopes, (each[:2] for each in self.recording.noted))
        seen: set[str] = set()
        for number, span in scopes:
            place = self.recording.place_of(number) if span.name == SESSION else None
            if place is not None and span.id is not None and span.id not in seen:
                seen.add(span.id)
                yield span.id, *place

    @cached_property
    def device_ns(self) -> int | None:
        """The device time of the units; None if none is measured."""
        return self._units.device_ns

    @cached_property
    def replicas(self) -> ReplicaComparison | None:
        """The comparison of ranks by their weights; None if no ranks have equal weights."""
        return None if self.digests is None else compare_replicas(self.digests)

    @cached_property
    def digests(self) -> RunDigests | None:
        """The digests of the run; None if no step has one."""
        reader = self._files.batches
        owners = self._marks.owners.result()
        if not len(owners) or not isinstance(reader, SpoolReader):
            return None
        steps, layouts = read_steps(self.recording, owners, reader, self.epoch_of)
        return RunDigests(reader, list(self.recording.files()), layouts, steps)

    @cached_property
    def has_units(self) -> bool:
        """Whether the run has units."""
        return bool(self.breakdowns)

    def epoch_of(self, scope: str | None) -> str | None:
        """Return the number of the epoch that a scope is, or is in, even if it has not ended."""
        return self.recording.tree.epoch_of(scope, self._open_scopes)

    @cached_property
    def _open_scopes(self) -> Mapping[str, tuple[str | None, ...]]:
        """The parent, the name and the index of each scope that is open.

        Those are the epochs of a process that runs, or was killed: only ended scopes are in
        batches.
        """
        paths = self._files.paths
        if paths is None:
            return {}
        owners = {owner for name in self.recording.files() if (owner := owner_of(name or ""))}
        found: dict[str, tuple[str | None, ...]] = {}
        for owner in owners:
            for each in open_scopes(paths, owner):
                id_, parent = each.get("id"), each.get("parent_id")
                if isinstance(id_, str):
                    parent = parent if isinstance(parent, str) else None
                    name, number = shown(each.get("name")), shown(each.get("index"))
                    found.setdefault(id_, (parent, name, number))
        return found


def _order(rank: int | None) -> tuple[bool, int]:
    return rank is not None, rank or 0
