"""The mean times of the aligned steps by rank.

A step is aligned if every rank with steps has one with the same epoch and number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from .window import Clock, RankSteps, StepMeans

MAX_SCOPES: Final = 100
"""The most scopes of a rank with a row of their own; the others are summed up."""
OTHER_SCOPES: Final = "other scopes"
WAIT: Final = "wait"
"""The component of collectives."""
SCOPE: Final = "scope"
"""The component of scopes that are neither compute nor wait."""
TIMED: Final = ("h2d", "forward", "loss", "backward", "optimizer_step")
"""The phases that have a device time in a recording with one."""

RankSums: TypeAlias = tuple[int | None, int, tuple[Any, ...]]
"""The rank, whether its steps are slow, their number, and their totals, ns."""
ScopeTimes: TypeAlias = tuple[int | None, int, str, float, float]
"""The rank, whether its steps are slow, the name, and the host's and the device's total, ns."""
StepGaps: TypeAlias = dict[int | None, dict[int, float]]
"""The total times after the steps of each rank, by whether these are slow, ns."""


def rank_steps(
    sums: Iterable[RankSums],
    scopes: Iterable[ScopeTimes],
    gaps: StepGaps,
    clock: Clock,
    *,
    has_slow: bool,
) -> list[RankSteps]:
    """Return the mean times of each rank from its sums, in their order."""
    others = _by_rank(scopes, clock)
    parts: dict[int | None, dict[int, tuple[Any, ...]]] = {}
    for rank, is_slow, totals in sums:
        parts.setdefault(rank, {})[is_slow] = totals
    ranks = []
    for rank, of_rank in parts.items():
        more = others.get(rank, {}), gaps.get(rank, {})
        typical = None
        if has_slow and 0 in of_rank:
            typical = _means({0: of_rank[0]}, *more)
        ranks.append(RankSteps(rank, _means(of_rank, *more), typical))
    return ranks


def _by_rank(
    rows: Iterable[ScopeTimes], clock: Clock
) -> dict[int | None, dict[int, dict[str, float]]]:
    """Return the total times of scopes that are neither compute nor wait."""
    scopes: dict[int | None, dict[int, dict[str, float]]] = {}
    for rank, is_slow, name, ns, device_ns in rows:
        times = scopes.setdefault(rank, {}).setdefault(is_slow, {})
        key = name if len(times) < MAX_SCOPES or name in times else OTHER_SCOPES
        times[key] = times.get(key, 0.0) + (ns if clock == "host" else device_ns)
    return scopes


def _means(
    parts: dict[int, tuple[Any, ...]],
    scopes: dict[int, dict[str, float]],
    gaps: dict[int, float],
) -> StepMeans:
    """Return the means of the sums in `parts`, which are the slow steps' and the others'."""
    count, *totals = (sum(column) for column in zip(*parts.values(), strict=True))
    others: dict[str, float] = {}
    for is_slow in parts:
        for name, ns in scopes.get(is_slow, {}).items():
            others[name] = others.get(name, 0.0) + ns / count
    step, idle, h2d, forward, backward, optimizer = (total / count for total in totals)
    outside = sum(gaps.get(is_slow, 0.0) for is_slow in parts) / count
    return StepMeans(step, idle, h2d, forward, backward, optimizer, others, outside)
