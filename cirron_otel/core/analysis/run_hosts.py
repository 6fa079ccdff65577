"""The hosts of many runs: which one is the slowest of a run, and how often."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..nouns import count
from ..run.figures.ledger import Ledger

SLOWER: Final = 0.03
"""A host is the slowest of a run if its excess over the others is at least this share."""
_OTHERS: Final = ("waiting_for_ranks", "lost", "stalled", "warm_up")
"""Accounts that are not the work of a rank, or not that of usual units."""


@dataclass(slots=True)
class HostFigures:
    """The figures of one host in the runs that have several hosts."""

    host: str
    runs: int = 0
    slowest: int = 0
    """The number of runs in which it is the slowest host."""
    excess: float | None = None
    """The median of its excess over the median of the other hosts in these runs, as a share."""

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return asdict(self)


class HostCounts:
    """Counts the slowest host of each run."""

    def __init__(self) -> None:
        self.runs = 0
        """The number of runs with several hosts."""
        self._present: dict[str, int] = {}
        self._excesses: dict[str, list[float]] = {}

    def add(self, ledger: Ledger | None) -> None:
        """Add a run. One that has a single host, or no units, does not count."""
        times = host_times(ledger)
        if len(times) < 2:
            return
        self.runs += 1
        for host in times:
            self._present[host] = self._present.get(host, 0) + 1
        slowest = max(times, key=lambda host: (times[host], host))
        usual = statistics.median(ns for host, ns in times.items() if host != slowest)
        if usual > 0 and times[slowest] >= (1 + SLOWER) * usual:
            self._excesses.setdefault(slowest, []).append(times[slowest] / usual - 1)

    def result(self) -> list[HostFigures]:
        """Return the hosts, the one that is the slowest most often first."""
        found = []
        for host, runs in self._present.items():
            excesses = self._excesses.get(host, [])
            excess = statistics.median(excesses) if excesses else None
            found.append(HostFigures(host, runs, len(excesses), excess))
        return sorted(found, key=lambda each: (-each.slowest, -(each.excess or 0), each.host))


def host_times(ledger: Ledger | None) -> dict[str, float]:
    """Return the time of a unit by host, ns, without the time of waiting for other ranks.

    It is the mean of the host's ranks.
    """
    of_host: dict[str, list[float]] = {}
    for lane in () if ledger is None else ledger.lanes:
        units = len(lane.ns) * lane.size
        if lane.host is not None and units:
            ns = sum(int(e.sum()) for name, e in lane.accounts.items() if name not in _OTHERS)
            of_host.setdefault(lane.host, []).append(ns / units)
    return {host: statistics.fmean(times) for host, times in of_host.items()}


def headline(hosts: Iterable[HostFigures], runs: int) -> str:
    """Return the answer in one sentence: whether it is always the same host."""
    listed = list(hosts)
    if not runs:
        return "No run has several hosts."
    first = listed[0]
    if not first.slowest:
        least = f"{100 * SLOWER:.0f} %"
        return f"No host is slower than the others by {least} in any of {count(runs, 'run')}."
    others = any(each.slowest for each in listed[1:])
    same = ""
    if first.runs > 1:
        word = "in most cases" if 2 * first.slowest > first.runs else "not"
        word = "always" if first.slowest == first.runs and not others else word
        same = f": it is {word} the same host"
    return (
        f"{first.host} is the slowest host in {first.slowest:,} of the {first.runs:,} runs that use"
        f" it, by {100 * (first.excess or 0):.0f} %{same}."
    )
