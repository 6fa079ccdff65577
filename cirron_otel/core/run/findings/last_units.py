"""The facts about the last units of each rank, for a job that is still running."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ..figures.ledger import Lane, Ledger
from ..figures.ledger_moves import fit_parts
from ..relations import ABSENT
from .facts import Facts, ValueSeries

_OF_UNITS = ("start", "ns", "number", "epoch", "waiting", "own", "forwarded", "is_lost")


def of_last_units(
    facts: Facts,
    count: int,
    running: Collection[int | None],
    dropped: Mapping[int | None, int],
) -> Facts:
    """Return the facts about the last `count` units of each running rank.

    All ranks are cut at the same time, so some have more units. The time ahead of the window, in
    which the start of the run may be, is in no account, and times of ranks whose window begins
    later or ends earlier are `idle`. `dropped` is the number of units of each rank that are not in
    the facts because they are older; the units are numbered from there.
    """
    ledger = facts.ledger
    if ledger is not None and ledger.lanes:
        ledger = _last_units(ledger, count, running, dropped)
    first_ns = ABSENT if ledger is None else ledger.first_ns
    return replace(
        facts, ledger=ledger, series=[_since(each, first_ns) for each in facts.series],
        world_size=None, replicas=None,
    )  # fmt: skip


def _since(series: ValueSeries, first_ns: int) -> ValueSeries:
    is_in = (series.times >= first_ns) | (series.times == ABSENT)
    return replace(series, numbers=series.numbers[is_in], times=series.times[is_in])


def _last_units(
    ledger: Ledger,
    count: int,
    running: Collection[int | None],
    dropped: Mapping[int | None, int],
) -> Ledger:
    lanes = [each for each in ledger.lanes if len(each.ns)]
    starts = [
        int(each.start[-min(-(-count // each.size), len(each.start))])
        for each in lanes
        if each.rank in running
    ] or [int(each.start[max(len(each.start) - count, 0)]) for each in lanes]
    if not starts:
        return ledger
    since_ns = min(starts)
    counted = next((each for each in lanes if each.rank in running), lanes[0])
    ahead = max(dropped.get(counted.rank, 0) - int(counted.number[0]), 0)
    kept = [lane for each in lanes if (lane := _cut(each, since_ns, ahead)) is not None]
    ends = [int(each.start[-1] + each.ns[-1]) for each in kept]
    begins = [end - _covered(each) for end, each in zip(ends, kept, strict=True)]
    first_ns, last_ns = min(begins), max(ends)
    # The times of a damaged recording may need more time than there is from the first to the last.
    last_ns = max(last_ns, first_ns + max(map(_covered, kept)))
    for each in kept:
        if rest := last_ns - first_ns - _covered(each):
            each.outside["idle"] = each.outside.get("idle", 0) + rest
        fit_parts(each)
    return Ledger(first_ns, last_ns, kept, ledger.epochs)


def _covered(lane: Lane) -> int:
    return sum(lane.totals.values())


def _cut(lane: Lane, since_ns: int, ahead: int) -> Lane | None:
    """Return the units of a lane from a time on; None without any."""
    place = int(np.searchsorted(lane.start, since_ns))
    if place >= len(lane.start):
        return None
    columns = {
        name: column[place:] if len(column := getattr(lane, name)) else column
        for name in _OF_UNITS
    }  # fmt: skip
    restarts = [(at - place, dict(times)) for at, times in lane.restarts if at > place]
    outside: dict[str, int] = {}
    for _, times in restarts:
        for account, ns in times.items():
            outside[account] = outside.get(account, 0) + ns
    columns["number"] = columns["number"] + ahead
    return replace(
        lane, **columns, restarts=restarts, outside=outside, parts=dict(lane.parts),
        accounts={name: times[place:] for name, times in lane.accounts.items()},
        lacking={name: times[place:] for name, times in lane.lacking.items()},
        counts={name: numbers[place:] for name, numbers in lane.counts.items()},
        device=None if lane.device is None else lane.device[place:],
        training=None if lane.training is None else lane.training[place:],
    )  # fmt: skip
