"""The plan of a simulated run, and the exact times that follow from it.

A plan has the own time of each segment of each unit of each rank. The ranks may wait for each other
at the end of some segments. All times are ns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

PAUSED: Final = "~paused"
START_UP: Final = "~start_up"
BETWEEN: Final = "~between"
AHEAD: Final = (PAUSED, START_UP, BETWEEN)
"""The segments ahead of the start of a unit. A segment whose name begins with ~ has no scope."""
COMPUTE: Final = ("forward", "loss", "backward", "optimizer_step")


@dataclass(slots=True)
class Device:
    """The device of each rank: it runs the phases of `COMPUTE`, which the host only launches."""

    launch: float
    """The time of the host in a phase, as a fraction of the device's."""
    wait: str
    """The place in which the host waits for the device: `end`, `optimizer_step` or `between`."""


@dataclass(slots=True)
class Plan:
    """A planned run: `ranks` × `units`; a unit that is repeated counts each time."""

    ranks: int
    units: int
    unit_ns: float
    """The usual time of a unit."""
    order: tuple[str, ...]
    """The segments of a unit, from its start to its end."""
    ns: dict[str, np.ndarray]
    """By segment: the own time of each rank and unit."""
    after: dict[str, np.ndarray]
    """By scope: the time of those that follow a unit, of each rank and unit; 0 for none."""
    synchronised: tuple[str, ...]
    """The segments at whose end all ranks meet."""
    epochs: np.ndarray
    """The number of the epoch of each unit."""
    numbers: np.ndarray
    """The number of each unit over the run."""
    lives: np.ndarray
    """The number of the process that runs each unit, from 0."""
    start_up: np.ndarray
    """By rank: the time from the start of the process to its first unit."""
    shut_down: np.ndarray
    late: np.ndarray
    """By rank: the time from the start of the first rank to its own."""
    skew: np.ndarray
    """By rank: the difference of the clock of its host."""
    counts: np.ndarray
    """By rank: the number of its units."""
    training: np.ndarray | None = None
    """The number of the training of each unit; None if there is one."""
    device: Device | None = None
    noise: float = 0.0
    warm_up_ns: float = 0.0
    """The time of all ranks that the first units take longer."""

    def segment(self, name: str) -> np.ndarray:
        """Return the times of a segment or of a scope after units."""
        return self.ns[name] if name in self.ns else self.after[name]

    def with_added(self, added: Iterable[tuple[str, np.ndarray]]) -> Plan:
        """Return the plan with more time in some segments, which may be new."""
        ns, after, order = dict(self.ns), dict(self.after), self.order
        for name, times in added:
            if name in ns:
                ns[name] = ns[name] + times
            elif name in after or name not in order:
                after[name] = after.get(name, 0) + times
            else:
                ns[name] = times
        return replace(self, ns=ns, after=after)


@dataclass(slots=True)
class Times:
    """The exact times of a run, by rank and unit, int64 ns from the start of the first rank."""

    start: dict[str, np.ndarray]
    end: dict[str, np.ndarray]
    """By segment: its start and end, of each rank and unit."""
    unit_start: np.ndarray
    unit_end: np.ndarray
    own: dict[str, np.ndarray]
    """By segment: its own time, without waiting for other ranks."""
    first: np.ndarray
    last: np.ndarray
    """By rank: the start of its first process and the end of its last one."""
    device: dict[str, np.ndarray] = field(default_factory=dict)
    """By phase: the time on the device."""
    cut: dict[int, int] = field(default_factory=dict)
    """By rank: the time at which its process died, if it did."""

    @property
    def extent(self) -> int:
        """The time from the first start to the last end of any rank."""
        return int(self.last.max() - self.first.min())

    @property
    def total(self) -> int:
        """The number of ranks times the extent."""
        return len(self.first) * self.extent


def simulate(plan: Plan) -> Times:
    """Return the times of a plan. With an equal plan, the times are equal."""
    names = (*AHEAD, *plan.order, *plan.after)
    own = np.stack([_whole(plan, name) for name in names], axis=2)
    is_done = np.arange(plan.units) < plan.counts[:, None]
    own *= is_done[:, :, None]
    begun = np.rint(plan.late + plan.start_up).astype(np.int64)
    spent = own.copy()
    if plan.synchronised and plan.ranks > 1:
        _add_waiting(spent, names, plan, is_done, begun)
    flat = spent.reshape(plan.ranks, -1)
    ends = (np.cumsum(flat, axis=1) + begun[:, None]).reshape(own.shape)
    starts = ends - spent
    unit_start = starts[:, :, len(AHEAD)]
    unit_end = ends[:, :, len(AHEAD) + len(plan.order) - 1]
    last_place = (np.arange(plan.ranks), plan.counts - 1)
    last = ends[:, :, -1][last_place] + np.rint(plan.shut_down).astype(np.int64)
    times = Times(
        {name: starts[:, :, place] for place, name in enumerate(names)},
        {name: ends[:, :, place] for place, name in enumerate(names)},
        unit_start, unit_end,
        {name: own[:, :, place] for place, name in enumerate(names)},
        np.rint(plan.late).astype(np.int64), last,
    )  # fmt: skip
    return times if plan.device is None else _on_device(plan, times)


def _whole(plan: Plan, name: str) -> np.ndarray:
    found = plan.ns.get(name)
    if found is None:
        found = plan.after.get(name)
    if found is None:
        return np.zeros((plan.ranks, plan.units), np.int64)
    return np.rint(found).astype(np.int64)


def _add_waiting(
    spent: np.ndarray, names: tuple[str, ...], plan: Plan, is_done: np.ndarray, begun: np.ndarray
) -> None:
    """Add to the segments at whose end ranks meet the time until the last rank arrives."""
    ranks, units, width = spent.shape
    columns = [names.index(name) for name in plan.synchronised]
    places = np.sort((np.arange(units)[:, None] * width + np.array(columns)).ravel())
    flat = spent.reshape(ranks, -1)
    upto = np.cumsum(flat, axis=1)[:, places]
    own = np.diff(upto, axis=1, prepend=-begun[:, None])
    takes_part = is_done[:, places // width]
    longest = np.where(takes_part, own, -1).max(axis=0)
    flat[:, places] += np.where(takes_part, longest - own, 0)


def _on_device(plan: Plan, times: Times) -> Times:
    """Return the host's times of a run whose phases of `COMPUTE` run on a device."""
    device = plan.device
    assert device is not None
    for name in COMPUTE:
        times.device[name] = times.end[name] - times.start[name]
    begin, done = times.start[COMPUTE[0]], times.end[COMPUTE[-1]]
    place = begin.copy()
    for name in COMPUTE:
        length = np.rint(times.own[name] * device.launch).astype(np.int64)
        times.start[name] = place
        place = place + length
        times.end[name] = place
    if device.wait == "optimizer_step":
        times.end[COMPUTE[-1]] = done
    elif device.wait == "between":
        is_last = place + (times.unit_end - done)
        times.unit_end = np.minimum(times.unit_end, is_last)
        for name in plan.order[plan.order.index(COMPUTE[-1]) + 1 :]:
            times.start[name] = times.start[name] - (done - place)
            times.end[name] = times.end[name] - (done - place)
    return times
