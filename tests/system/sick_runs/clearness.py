"""Whether a planted cause is large enough for the definition of its kind."""

from __future__ import annotations

import numpy as np

from .building import Planted
from .causes import Cause
from .plan import AHEAD, PAUSED, START_UP, Plan

_SPIKE = 2.8
_FIRST_BATCH = 3.2


def _usual(planted: Planted, cause: Cause) -> float:
    """Return the usual time of a unit with the gap ahead of it, as it was without the cause.

    It is that of the units of the training with the cause.
    """
    plan, times = planted.plan, planted.times
    counted = [name for name in times.own if name in plan.order or name in AHEAD]
    of_units = sum(times.own[each] for each in counted if each not in (PAUSED, START_UP))
    return float(np.median(np.asarray(of_units)[:, _places(plan, cause)]))


def _places(plan: Plan, cause: Cause) -> np.ndarray:
    """Return the places of the units of the training with the cause."""
    if plan.training is None:
        return np.arange(plan.units)
    first = np.flatnonzero(_excess(cause).any(axis=0))[0]
    return np.flatnonzero(plan.training == plan.training[first])


def _excess(cause: Cause) -> np.ndarray:
    """Return the time that the cause adds, by rank and unit."""
    found: np.ndarray = sum((times for _, times in cause.added()), np.zeros(1))
    return found


def are_spikes(planted: Planted, cause: Cause) -> bool:
    """Whether each slow unit takes more than three times the usual time."""
    excess = _excess(cause).mean(axis=0)
    return bool(excess[excess > 0].min() > _SPIKE * _usual(planted, cause))


def are_slow_batches(planted: Planted, cause: Cause) -> bool:
    """Whether there are two epochs, and their first fetches exceed three times a unit.

    The fetch must be more than half of what the unit takes longer, even in a slow first unit.
    """
    excess = _excess(cause).mean(axis=0)
    firsts = np.flatnonzero(excess)
    if len(firsts) < 2 or excess[firsts].min() < _FIRST_BATCH * _usual(planted, cause):
        return False
    others = planted.times.own["forward"].mean(axis=0)
    return bool((excess[firsts] > 1.5 * (others[firsts] - np.median(others))).all())


def is_interval(planted: Planted, cause: Cause) -> bool:
    """Whether the slow units exceed the others by half, and take no more than six times as long."""
    excess = _excess(cause).mean(axis=0)
    slow, usual = excess[excess > 0], _usual(planted, cause)
    return len(slow) >= 10 and bool(
        np.quantile(slow, 0.1) > (0.45 + planted.plan.noise) * usual and slow.max() < 6 * usual
    )


def is_growing(planted: Planted, cause: Cause) -> bool:
    """Whether the last fifth takes clearly longer than the first."""
    excess = _excess(cause).mean(axis=0)
    excess = excess[_places(planted.plan, cause)]
    return bool(np.median(excess[-len(excess) // 5 :]) > 0.3 * _usual(planted, cause))


def are_slow_units(planted: Planted, cause: Cause) -> bool:
    """Whether a rank that is slow in some units differs by more than the usual deviations."""
    excess = _excess(cause)
    slow = excess[excess > 0]
    least = max(0.1, 4 * planted.plan.noise) * planted.plan.unit_ns
    return bool(np.quantile(slow, 0.1) > least)
