"""The window of the verdicts, with the sums that an engine computes over its steps.

The figures are those of `WindowSums`. The engine adds up the phases; the steps of the window are
compared with each other in the order of time, so that their times, without their phases, are read.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

import ibis

from ..analysis.breakdown import COLLECTIVES, COMPONENTS
from ..analysis.index import SpoolIndex, id_of, key_of
from ..analysis.sessions import Sessions
from ..analysis.verdicts.aligned_steps import (
    SCOPE,
    TIMED,
    RankSums,
    ScopeTimes,
    StepGaps,
    rank_steps,
)
from ..analysis.verdicts.thresholds import Thresholds
from ..analysis.verdicts.window import Clock, OutsideSteps, RankSteps, StepNumber
from .engine import SqlEngine, Table
from .expressions import as_number, ascending, descending, has_name, larger, union_of
from .steps import StepRelations

_EPOCH_LEVELS: Final = 65
_REMEMBERED_LEVELS: Final = (4, 8, 16, 32)
"""The levels whose scopes are kept. A scope that a later level has again contains itself."""
_MEMBER: Final = "SELECT session FROM span LEFT JOIN member USING (no) WHERE span.id = ? LIMIT 1"
_DEVICE_SUMS: Final = ("h2d", "forward", "backward", "optimizer")


class EngineSteps:
    """The window of the aligned steps of a run, like `WindowSums`."""

    def __init__(
        self, engine: SqlEngine, relations: StepRelations, index: SpoolIndex, limits: Thresholds
    ) -> None:
        """Find the window. `index` has the scopes that are open."""
        self._engine, self._relations = engine, relations
        lap = laps_of(engine, relations, index)
        aligned = engine.store(_aligned(engine, lap, round(limits["window.steps"])))
        keys = aligned.select("position", "epoch", "idx", "ns").order_by("position")
        self._keys = list(engine.rows(keys))
        self.count = len(self._keys)
        limit = self._slow_limit(limits)
        window = lap.inner_join(aligned, _same_step(lap, aligned)).select(
            no=lap.no, rank=lap.rank, parent=lap.parent, pid=lap.pid, start_ns=lap.start_ns,
            ns=lap.ns, position=aligned.position, peak=lap.peak, is_summary=lap.is_summary,
            phases_are_sums=lap.phases_are_sums,
            is_slow=ibis.literal(0) if limit is None else as_number(aligned.ns > limit),
        )  # fmt: skip
        self.window = engine.store(window)
        phase, window = relations.phase, self.window
        part = phase.inner_join(window, phase.step == window.no)
        self._part = engine.store(part.select(
            no=window.no, rank=window.rank, is_slow=window.is_slow, wall=window.ns, name=phase.name,
            ns=phase.ns, gpu_ns=phase.gpu_ns,
        ))  # fmt: skip
        self.clock: Clock = self._clock()
        self._times: tuple[int | None, int | None] = None, None
        self._gaps: StepGaps = {}
        self._outside: list[OutsideSteps] = []
        self._peaks: defaultdict[int | None, list[tuple[int, int]]] = defaultdict(list)

    def _slow_limit(self, limits: Thresholds) -> int | None:
        """Return the duration above which a step is slow; None if slow steps are not few."""
        durations = [ns for *_, ns in self._keys]
        self.slow = 0
        if not durations:
            return None
        limit: int = math.floor(limits["few_steps.factor"] * statistics.median(durations))
        slow = sum(1 for ns in durations if ns > limit)
        if not slow or slow > limits["few_steps.share"] * len(durations):
            return None
        self.slow = slow
        return limit

    def _clock(self) -> Clock:
        part = self._part.filter(self._part.name.isin(TIMED))
        counts = part.aggregate(
            untimed=as_number(part.gpu_ns.isnull()).sum(), timed=part.gpu_ns.count()
        )
        [(untimed, timed)] = self._engine.rows(counts)
        return "device" if timed and not untimed else "host"

    def add_sessions(self, index: SpoolIndex, sessions: Sessions) -> None:
        """Read the steps of the window, with their sessions; `index` has their parents."""
        window = self.window
        rows = window.order_by([ascending(window.rank), window.start_ns, window.no]).select(
            "rank", "parent", "pid", "start_ns", "ns", "is_slow", "phases_are_sums"
        )
        laps = chain.from_iterable(zip(*some, strict=True) for some in self._engine.columns(rows))
        for rank, same in groupby(laps, key=itemgetter(0)):
            self._add_rank(_rank(rank), same, index, sessions)
        if self._gaps or self._outside or self.count:
            ends = window.aggregate(
                first=window.start_ns.min(), last=(window.start_ns + window.ns).max()
            )
            [self._times] = self._engine.rows(ends)
        peaks = window.filter(window.peak.notnull()).select("rank", "position", "peak")
        for rank, position, peak in self._engine.rows(peaks.order_by(ascending(peaks.rank))):
            self._peaks[_rank(rank)].append((position, peak))

    def _add_rank(
        self, rank: int | None, laps: Iterable[tuple[Any, ...]], index: SpoolIndex,
        sessions: Sessions,
    ) -> None:  # fmt: skip
        """Add the times of a rank's steps, in order of their start, and those until the next."""
        members: dict[str | None, tuple[Any, ...] | None] = {None: None}
        ends: dict[tuple[int | None, bool], tuple[int, int]] = {}
        gaps = self._gaps.setdefault(rank, {})
        times = total_ns = outside_ns = 0
        for _, parent, pid, start_ns, ns, is_slow, phases_are_sums in laps:
            if parent not in members:
                members[parent] = next(index.rows(_MEMBER, key_of(parent)), None)
            row = members[parent]
            session = sessions.of_top(key_of(parent), pid, start_ns) if row is None else row[0]
            if row is not None and session is None:
                continue  # its ancestors are its descendants
            times += 1
            total_ns += ns
            end_ns = start_ns + ns
            before = ends.get((session, False))
            if before is not None:
                outside_ns += max(start_ns - before[0], 0)
            ends[session, False] = end_ns, is_slow
            if not phases_are_sums:
                before = ends.get((session, True))
                if before is not None:
                    gap = max(start_ns - before[0], 0)
                    gaps[before[1]] = gaps.get(before[1], 0.0) + gap
                ends[session, True] = end_ns, is_slow
        if times > 1:
            self._outside.append(OutsideSteps(rank, total_ns + outside_ns, outside_ns))

    def ends(self) -> tuple[StepNumber | None, StepNumber | None]:
        """Return the first and the last step; None if no steps are aligned."""
        if not self._keys:
            return None, None
        first, last = (StepNumber(*self._keys[place][1:3]) for place in (0, -1))
        return first, last

    def times(self) -> tuple[int | None, int | None]:
        """Return the start of the first step and the end of the last one, Unix ns."""
        return self._times

    def present(self) -> set[int | None]:
        """Return the ranks with steps."""
        ranks = self._relations.step.select("rank").distinct()
        return {rank for (rank,) in self._engine.rows(ranks)}

    def summarised(self) -> int:
        """Return the number of summaries among the steps of the window."""
        return self._engine.count(self.window.filter(self.window.is_summary))

    def peaks(self, bands: Sequence[tuple[float, float]]) -> Iterator[tuple[Any, ...]]:
        """Yield the peaks of each rank with device memory: rank, number, maximum, and the mean of
        each band of the window.
        """
        for rank, peaks in self._peaks.items():
            values = [(position / self.count, peak) for position, peak in peaks]
            means: list[float | None] = []
            for low, high in bands:
                some = [peak for position, peak in values if low < position <= high]
                means.append(sum(some) / len(some) if some else None)
            yield rank, len(values), max(peak for _, peak in values), *means

    def outside(self) -> list[OutsideSteps]:
        """Return each rank's time between the steps of the window."""
        return self._outside

    def ranks(self) -> list[RankSteps]:
        """Return the mean times of each rank."""
        sums, scopes = self._sums(), self._scopes()
        return rank_steps(sums, scopes, self._gaps, self.clock, has_slow=self.slow > 0)

    def _sums(self) -> Iterator[RankSums]:
        window, part = self.window, self._part
        sums = part.group_by("no").agg(**{
            name: ibis.ifelse(_is_component(part.name, name), time, 0).sum().cast("int64")
            for name, time in self._component_times().items()
        })  # fmt: skip
        joined = window.left_join(sums, window.no == sums.no)
        of_step = joined.select(
            rank=window.rank, is_slow=window.is_slow, wall=window.ns,
            **{name: sums[name].fill_null(0) for name in self._component_times()},
        )  # fmt: skip
        busy = of_step.h2d + of_step.forward + of_step.backward + of_step.optimizer
        of_step = of_step.mutate(busy=busy)
        idle = of_step.input
        if self.clock == "device":
            idle = _smaller(idle, larger(of_step.wall - of_step.busy, ibis.literal(0)))
        of_step = of_step.mutate(idle=idle)
        rest = larger(of_step.wall - of_step.idle, of_step.busy + of_step[SCOPE])
        grouped = of_step.group_by("rank", "is_slow").agg(
            times=of_step.count(), rest=rest.sum().cast("int64"),
            idle=of_step.idle.sum().cast("int64"),
            **{name: of_step[name].sum().cast("int64") for name in _DEVICE_SUMS},
        )  # fmt: skip
        rows = grouped.order_by([ascending(grouped.rank), grouped.is_slow])
        for rank, is_slow, times, *totals in self._engine.rows(rows):
            yield _rank(rank), is_slow, (times, *map(float, totals))

    def _component_times(self) -> dict[str, Any]:
        """Return the time of a phase as it counts in the sum of each component."""
        part = self._part
        if self.clock == "host":
            return dict.fromkeys((*_DEVICE_SUMS, SCOPE, "input"), part.ns)
        times = dict.fromkeys(_DEVICE_SUMS, part.gpu_ns.fill_null(0))
        return times | {SCOPE: part.gpu_ns.coalesce(part.ns), "input": part.ns}

    def _scopes(self) -> Iterator[ScopeTimes]:
        part = self._part.filter(_is_component(self._part.name, SCOPE))
        grouped = part.group_by("rank", "is_slow", "name").agg(
            total=part.ns.sum().cast("int64"),
            device=part.gpu_ns.coalesce(part.ns).sum().cast("int64"),
        )
        order = [ibis.desc(grouped.total), ascending(grouped.rank), grouped.is_slow, grouped.name]
        for rank, is_slow, name, ns, device_ns in self._engine.rows(grouped.order_by(order)):
            yield _rank(rank), is_slow, name, float(ns), float(device_ns)


def _rank(rank: int | None) -> int | None:
    return None if rank == -1 else rank


def _smaller(one: Any, other: Any) -> Any:
    return ibis.ifelse(one < other, one, other)


def _is_component(name: Any, component: str) -> Any:
    if component == SCOPE:
        starts = ibis.or_(*(name.startswith(each) for each in COLLECTIVES))
        return ~(name.isin(sorted(COMPONENTS)) | starts)
    names = [each for each, of_name in COMPONENTS.items() if of_name == component]
    return name.isin(sorted(names))


def laps_of(engine: SqlEngine, relations: StepRelations, index: SpoolIndex) -> Table:
    """Return the steps with their epoch, and how often the step occurred before on its rank."""
    step = relations.step
    epochs = epochs_of(engine, relations, index)
    joined = step.left_join(epochs, step.parent == epochs.parent)
    lap = joined.select(*(step[name] for name in step.columns), epochs.epoch)
    keys = lap.group_by("epoch", "idx").agg(
        times=lap.count(), ranks=lap.rank.fill_null(-1).nunique()
    )
    turn = ibis.literal(0)
    if engine.count(keys.filter(keys.times > keys.ranks).limit(1)):
        turn = ibis.row_number().over(
            group_by=[lap.rank, lap.epoch, lap.idx], order_by=[lap.position]
        )
        return engine.store(lap.mutate(turn=turn))
    return lap.mutate(turn=turn)


def _aligned(engine: SqlEngine, lap: Table, most: int) -> Table:
    """Return the last steps that all ranks have, with their position, from 1."""
    ranks = engine.count(lap.select(rank=lap.rank.fill_null(-1)).distinct())
    keys = lap.group_by("epoch", "idx", "turn").agg(
        ranks=lap.count(), start_ns=lap.start_ns.max(), ns=lap.ns.max(), no=lap.no.min()
    )
    keys = keys.filter(keys.ranks == ranks)
    keys = keys.order_by([descending(keys.start_ns), ibis.desc(keys.no)]).limit(most)
    place = ibis.row_number().over(order_by=[keys.start_ns, keys.no])
    return keys.select("epoch", "idx", "turn", "ns", position=place + 1)


def _same_step(lap: Table, aligned: Table) -> list[Any]:
    return [
        lap.epoch.identical_to(aligned.epoch), lap.idx.identical_to(aligned.idx),
        lap.turn == aligned.turn,
    ]  # fmt: skip


def epochs_of(engine: SqlEngine, relations: StepRelations, index: SpoolIndex) -> Table:
    """Return the parents of steps with the number of the epoch that is, or contains, each."""
    around, step = relations.around, relations.step
    parents = step.filter(step.parent.notnull()).select("parent").distinct()
    above = engine.store(parents.mutate(id=parents.parent))
    found: list[Table] = []
    unrecorded: list[tuple[str, str]] = []
    remembered: Table | None = None
    for level in range(_EPOCH_LEVELS):
        if not engine.count(above):
            break
        if level in _REMEMBERED_LEVELS:
            remembered = above
        unrecorded += engine.rows(above.anti_join(around, above.id == around.id))
        joined = above.inner_join(around, above.id == around.id)
        higher = engine.store(
            joined.select(parent=above.parent, name=around.name, idx=around.idx, up=around.parent)
        )
        is_epoch = has_name(higher.name, "epoch")
        found.append(higher.filter(is_epoch).select("parent", epoch=higher.idx))
        rest = higher.filter(~is_epoch & higher.up.notnull())
        rest = rest.select("parent", id=rest.up)
        if remembered is not None:
            rest = rest.anti_join(remembered, ["parent", "id"])
        above = engine.store(rest)
    still_open = _open_epochs(index, unrecorded)
    if still_open:
        epochs = parents.filter(parents.parent.isin(sorted(still_open)))
        cases = [
            (
                epochs.parent.isin([each for each in still_open if still_open[each] == number]),
                number,
            )
            for number in sorted(set(still_open.values()))
        ]
        found.append(epochs.select("parent", epoch=ibis.cases(*cases)))
    if not found:
        found.append(above.select("parent", epoch=ibis.null("string")))
    return engine.store(union_of(found))


def _open_epochs(index: SpoolIndex, parents: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the number of the open epoch that contains each parent, if one does.

    `parents` has each with the first scope around it that is not recorded.
    """
    query = "SELECT id, parent, name, idx FROM open_scope"
    scopes = {id_of(key): (parent, name, idx) for key, parent, name, idx in index.rows(query)}
    epochs: dict[str, str] = {}
    for parent, id_ in parents:
        scope = scopes.get(id_)
        for _ in range(_EPOCH_LEVELS):
            if scope is None:
                break
            up, name, idx = scope
            if name == "epoch":
                if idx is not None:
                    epochs[parent] = idx
                break
            scope = None if up is None else scopes.get(id_of(up))
    return epochs
