"""Cases beyond added time: failures, restarts, values, memory, and ranks with fewer units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .building import Change
from .case import Case, Death, Memory
from .causes import Cause
from .drawing import jitter
from .plan import PAUSED, START_UP, Plan, Times, simulate
from .truth import MARGIN, Expected, is_near_threshold, severity

_GIB = 2**30
_FAILED = "ValueError: shapes cannot be multiplied"
_SIGTERM = "killed: the process was ended by SIGTERM"
_INCOMPLETE = "incomplete: the process ended without closing this scope"
_OOM = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def _first(case: Case, expected: Expected) -> bool:
    """Expect a finding as the first one; return False if a planted cause may be as severe.

    Of two findings that are equally severe, the more expensive is first.
    """
    planted = [severity(e.kinds[0], (e.weight or 0) * MARGIN[1]) for e in case.expected]
    if any(each <= expected.severity for each in planted):
        return False
    case.expected.insert(0, expected)
    return True


# Failures.


def dies(kind: str, error: str) -> Change:
    """One rank dies in a unit; the others wait for it, until the launcher ends them."""

    def change(chance: np.random.Generator, case: Case) -> bool:
        plan, times = case.plan, case.times
        rank = int(chance.integers(plan.ranks))
        unit = int(chance.integers(plan.units // 3, plan.units))
        at = _inside(chance, times, rank, unit)
        case.deaths = {rank: Death(at, error, kind == "OUT_OF_MEMORY")}
        times.last = np.minimum(times.last, at)
        if plan.ranks > 1:
            later = at + int(chance.uniform(0.1, 3) * plan.unit_ns)
            _others_wait(case, rank, unit, later)
        return _first(case, Expected((kind,), ranks=(rank,) if plan.ranks > 1 else None))

    return change


def _inside(chance: np.random.Generator, times: Times, rank: int, unit: int) -> int:
    """Return a time inside the forward of a unit."""
    start, end = times.start["forward"][rank, unit], times.end["forward"][rank, unit]
    return int(start + chance.uniform(0.1, 0.9) * (end - start))


def _others_wait(case: Case, rank: int, unit: int, until: int) -> None:
    """Let the other ranks wait in the backward of a unit until they are ended."""
    times = case.times
    for other in range(case.plan.ranks):
        if other == rank:
            continue
        begun = int(times.start["backward"][other, unit])
        cut = max(until, begun + 1)
        for name, starts in times.start.items():
            is_later = starts[other] >= begun
            is_later[unit] &= name != "backward"
            times.end[name][other][is_later] += cut
            starts[other][is_later] += cut
        times.end["backward"][other, unit] += cut
        times.unit_end[other][times.unit_end[other] > begun] += cut
        times.unit_start[other][times.unit_start[other] > begun] += cut
        case.deaths[other] = Death(cut, _SIGTERM)
        times.last[other] = cut


def fails(chance: np.random.Generator, case: Case) -> bool:
    """A rank fails with an exception."""
    return dies("FAILED", _FAILED)(chance, case)


def is_killed(chance: np.random.Generator, case: Case) -> bool:
    """A rank is killed."""
    return dies("KILLED", _INCOMPLETE)(chance, case)


def runs_out_of_memory(chance: np.random.Generator, case: Case) -> bool:
    """A rank fails for lack of device memory."""
    return dies("OUT_OF_MEMORY", _OOM)(chance, case)


def stalled(chance: np.random.Generator, case: Case) -> bool:
    """The last unit of all ranks takes 15 to 80 times the usual time."""
    plan = case.plan
    name = str(chance.choice(["forward", "backward", "data_load"]))
    added = np.zeros((plan.ranks, plan.units))
    added[:, -1] = chance.uniform(15, 80) * plan.unit_ns
    case.plan = plan.with_added([(name, added)])
    case.times = simulate(case.plan)
    cost = float(added.sum()) / case.times.total
    case.expected = [Expected(("STALLED",), cost)]
    return True


def is_missing(chance: np.random.Generator, case: Case) -> bool:
    """The job should have more ranks than have recorded anything."""
    missing = int(chance.integers(1, 3))
    case.world_size = case.plan.ranks + missing
    ranks = tuple(range(case.plan.ranks, case.world_size))
    return _first(case, Expected(("RANK_MISSING",), ranks=ranks))


def is_interrupted(chance: np.random.Generator, case: Case) -> bool:
    """The user ends the program inside a unit, which is not a failure."""
    unit = int(chance.integers(case.plan.units // 2, case.plan.units))
    at = _inside(chance, case.times, 0, unit)
    case.deaths = {0: Death(at, "")}
    case.times.last = np.minimum(case.times.last, at)
    return True


# Restarts.


def restarted(chance: np.random.Generator, plan: Plan) -> Plan | None:
    """All processes end; later ones repeat some of the units."""
    if plan.units < 12:
        return None
    end = int(chance.integers(plan.units // 3, plan.units * 2 // 3 + 1))
    lost = int(chance.integers(0, max(1, end // 4) + 1))
    again = np.concatenate([np.arange(end), np.arange(end - lost, plan.units)])
    numbers, lives = again, (np.arange(len(again)) >= end).astype(int)
    noise = jitter(chance, plan.noise, (plan.ranks, len(again)))
    ns = {name: times[:, again] * (noise if name == "forward" else 1)
          for name, times in plan.ns.items()}  # fmt: skip
    after = {name: times[:, again] for name, times in plan.after.items()}
    start_up = np.zeros((plan.ranks, len(again)))
    start_up[:, end] = plan.start_up
    ns[START_UP] = start_up
    ns[PAUSED] = (start_up > 0) * chance.uniform(0.2, 1) * plan.unit_ns
    return replace(
        plan, units=len(again), ns=ns, after=after, epochs=plan.epochs[again], numbers=numbers,
        lives=lives, counts=np.full(plan.ranks, len(again)),
    )  # fmt: skip


def pause(chance: np.random.Generator, plan: Plan) -> Cause:
    """The time between the processes of a restarted run."""
    del chance
    pattern = np.zeros((plan.ranks, plan.units))
    pattern[:, int(np.flatnonzero(plan.lives)[0])] = 1 / plan.ranks
    return Cause(("RESTARTED",), [(PAUSED, pattern)], _restart_cost)


def _restart_cost(plan: Plan, times: Times) -> float:
    own = times.own
    lost = (plan.lives == 0) & (plan.numbers >= plan.numbers[plan.lives > 0].min())
    starts = np.diff(times.unit_end, axis=1, prepend=times.unit_end[:, :1])
    return float(own[PAUSED].sum() + own[START_UP].sum() + starts[:, lost].sum())


def preempted(chance: np.random.Generator, case: Case) -> bool:
    """The first processes of a restarted run are killed."""
    del chance
    case.first_death = _INCOMPLETE
    return True


# Ranks with fewer units.


def uneven(chance: np.random.Generator, case: Case) -> bool:
    """Some ranks have fewer units, and wait for the others at the end."""
    plan = case.plan
    price = float(np.exp(chance.uniform(np.log(0.03), np.log(0.5))))
    count = int(chance.integers(1, plan.ranks))
    fewer = price * plan.ranks / count
    if not 1.5 / plan.units < fewer < 0.85:
        return False
    ranks = np.sort(chance.choice(plan.ranks, count, replace=False))
    plan.counts[ranks] = plan.units - max(1, round(fewer * plan.units))
    times = case.times = simulate(plan)
    lasts = times.last
    cost = float((lasts.max() - lasts[ranks]).sum())
    ended = float((lasts.max() - lasts).sum())
    # `ended` is not part of the time that severities refer to, but it is this kind's cost.
    weight = cost / (times.total - ended)
    if is_near_threshold("UNEVEN", cost / times.total) or is_near_threshold("UNEVEN", weight):
        return False
    if weight >= 0.05 > cost / times.total:
        return False
    if weight >= 0.05:
        found = Expected(("UNEVEN",), cost / times.total, weight, None, tuple(map(int, ranks)))
        case.expected = [found]
    return True


# Values.


def losses(chance: np.random.Generator, plan: Plan) -> np.ndarray:
    """Return a loss that falls, with noise, for each rank and unit."""
    place = np.arange(plan.units) / plan.units
    start, end = chance.uniform(1, 8), chance.uniform(0.1, 0.8)
    fall = end + (start - end) * np.exp(-place * chance.uniform(1, 6))
    return fall * jitter(chance, chance.uniform(0.01, 0.15), (plan.ranks, plan.units))


def healthy_values(chance: np.random.Generator, case: Case) -> bool:
    """A loss and a norm of gradients that are healthy."""
    plan = case.plan
    case.values["loss"] = losses(chance, plan)
    norm = chance.uniform(0.5, 3) * jitter(
        chance, chance.uniform(0.05, 0.3), (plan.ranks, plan.units)
    )
    case.values["grad_norm"] = norm
    return True


def not_finite(chance: np.random.Generator, case: Case) -> bool:
    """The loss is not finite from some unit on, or only in one unit."""
    healthy_values(chance, case)
    plan = case.plan
    unit = int(chance.integers(plan.units // 4, plan.units - 1))
    last = unit if chance.random() < 0.3 else plan.units - 1
    value = float(chance.choice([np.nan, np.inf, -np.inf]))
    case.values["loss"][:, unit : last + 1] = value
    return _first(case, Expected(("NON_FINITE",), units=((unit, last),)))


def diverging(chance: np.random.Generator, case: Case) -> bool:
    """The loss rises over the last half of the run."""
    healthy_values(chance, case)
    plan = case.plan
    place = np.arange(plan.units) / plan.units
    loss = case.values["loss"]
    most = chance.uniform(4, 50) * loss[:, : plan.units // 10 + 1].max()
    case.values["loss"] = loss + most * np.maximum(0, (place - chance.uniform(0.3, 0.6)) / 0.5) ** 2
    last = np.median(case.values["loss"][:, -plan.units // 10 :])
    if last < 3.5 * np.median(loss[:, : plan.units // 10 + 1]):
        return False
    return _first(case, Expected(("DIVERGING",)))


def exploding(chance: np.random.Generator, case: Case) -> bool:
    """The norm of the gradients is many times the usual one in a unit."""
    healthy_values(chance, case)
    unit = int(chance.integers(case.plan.units // 3, case.plan.units - 1))
    case.values["grad_norm"][:, unit] *= chance.uniform(300, 1e5)
    return _first(case, Expected(("EXPLODING_GRADIENT",), units=((unit, unit),)))


def has_ddp_times(chance: np.random.Generator, case: Case) -> bool:
    """The own times of DistributedDataParallel are recorded."""
    del chance
    case.has_ddp_times = True
    return True


# Memory.


def memory(*, device: bool, is_healthy: bool = False) -> Change:
    """The memory grows, or only varies."""

    def change(chance: np.random.Generator, case: Case) -> bool:
        plan = case.plan
        capacity = int(chance.choice([16, 24, 40, 80]) * _GIB)
        place = np.arange(plan.units) / plan.units
        used = (
            chance.uniform(0.2, 0.5)
            * capacity
            * (1 + 0.01 * chance.random((plan.ranks, plan.units)))
        )
        if not is_healthy:
            used = used + place * chance.uniform(0.1, 0.3) * capacity
            case.expected = [Expected(("CREEP_CONFIRMED", "CREEP_EARLY"))]
        case.memory = Memory(used, capacity, device)
        return True

    return change


def is_nearly_full(chance: np.random.Generator, case: Case) -> bool:
    """The memory of a device is almost used up."""
    plan = case.plan
    capacity = int(chance.choice([16, 24, 40, 80]) * _GIB)
    share = chance.uniform(0.955, 0.985)
    used = share * capacity * (1 - 0.003 * chance.random((plan.ranks, plan.units)))
    case.memory = Memory(used, capacity, True)
    return _first(case, Expected(("HIGH_PRESSURE",)))


def differs_between_ranks(chance: np.random.Generator, case: Case) -> bool:
    """One rank uses clearly more device memory than the others."""
    plan = case.plan
    capacity = int(chance.choice([16, 24, 40, 80]) * _GIB)
    rank = int(chance.integers(plan.ranks))
    used = chance.uniform(0.33, 0.45) * capacity * np.ones((plan.ranks, plan.units))
    used[rank] *= chance.uniform(1.4, 1.9)
    used *= 1 - 0.003 * chance.random(used.shape)
    case.memory = Memory(used, capacity, True)
    return _first(case, Expected(("IMBALANCE",), ranks=(rank,)))


# Healthy habits of programs that look like causes.


def rollouts(chance: np.random.Generator, plan: Plan) -> Plan:
    """An own scope takes much of each unit: it is work."""
    share = chance.uniform(0.1, 0.6)
    shape = plan.ranks, plan.units
    plan.ns["rollout"] = share * plan.unit_ns * jitter(chance, plan.noise, shape)
    return plan


def heavy_forward(chance: np.random.Generator, plan: Plan) -> Plan:
    """The forward takes several times as long as the backward."""
    plan.ns["forward"] *= chance.uniform(2, 5)
    return plan


def late_rank(chance: np.random.Generator, plan: Plan) -> Plan:
    """A rank starts later than the others, which wait for it in their first unit."""
    rank = int(chance.integers(plan.ranks))
    plan.late[rank] += chance.uniform(0.005, 0.02) * plan.unit_ns * plan.units
    return plan


def clocks_differ(chance: np.random.Generator, plan: Plan) -> Plan:
    """The clocks of the ranks differ by many units."""
    most = 0.01 * plan.unit_ns * plan.units
    plan.skew = np.rint(chance.uniform(-most, most, plan.ranks))
    return plan


def one_unit_fewer(chance: np.random.Generator, plan: Plan) -> Plan | None:
    """A rank has one unit fewer than the others."""
    plan.counts[int(chance.integers(plan.ranks))] -= 1
    return plan if plan.units >= 60 else None


# Records that are missing.


def has_drops(chance: np.random.Generator, case: Case) -> bool:
    """The recording processes dropped records."""
    case.session_attributes = {"drops.scopes_buffer_full": int(chance.integers(100, 5000))}
    return _first(case, Expected(("INCOMPLETE",)))


def with_overhead(name: str) -> Change:
    """The time of a segment is recorded as the overhead of tracing."""

    def change(chance: np.random.Generator, case: Case) -> bool:
        del chance
        case.overhead = name
        return True

    return change
