"""The state of an assessment: the claims so far, the thresholds, and how findings are priced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from ...durations import SECOND_NS
from ...nouns import plural
from ..figures.durations import to_ns
from ..figures.ledger import Lane, Ledger, Places, by_training
from .claims import Bid, Claims
from .cycles import PHASES_OF_WORK, WAITING, Cycles, aligned_groups, divided
from .facts import Facts
from .finding import Advice, Finding, Severity
from .thresholds import KINDS, Limits
from .words import known_ranks

_NOT_RUNNING: Final = ("start_up", "warm_up", "shut_down", "paused", "idle", "ended")
_LISTED: Final = 0.4
"""A cost is listed as a notice from this fraction of the threshold for a warning."""
_NAMES: Final = {
    "input": "data_load", "transfer": "h2d", "forward": "forward", "loss": "loss",
    "backward": "backward", "optimizer": "optimizer_step",
}  # fmt: skip
_WITHOUT_SCOPES: Final = ("unattributed", "between_units", "waiting_for_ranks", "busy")
PLACES: Final = {
    "unattributed": "the time that no phase covers",
    "between_units": "the time between {units}",
    "waiting_for_ranks": "waiting for other ranks",
    "busy": "the requests",
}
"""Descriptions of the accounts that have no recorded name."""


_TRAINING: Final = frozenset({"step", "batch"})


class Assessment:
    """The rules' view of a run with units."""

    def __init__(self, facts: Facts, ledger: Ledger, limits: Limits) -> None:
        """Start without findings."""
        self.facts, self.ledger, self.limits = facts, ledger, limits
        self.claims = Claims(ledger)
        self.total_ns = max(ledger.total_ns, 0)
        totals = ledger.totals
        self.running_ns = self.total_ns - sum(totals.get(name, 0) for name in _NOT_RUNNING)
        self.contended_ns = 0
        """The waits for a CPU. Severities are computed as if the run had no waits."""
        self.units = sum(len(each.ns) * each.size for each in ledger.lanes)
        """The number of units of all lanes."""
        self.found: set[str] = set()
        """The kinds that have claimed time so far."""
        self._has_phases = self.unit != "request" and any(
            name in lane.accounts for lane in ledger.lanes for name in PHASES_OF_WORK
        )
        self.has_straggler = False
        """Whether there is a finding on a slow rank, a notice included."""
        self._together = aligned_groups(ledger)
        self._groups = [part for each in self._together for part in divided(each, ledger.lanes)]
        self._parts: dict[str, dict[str, int]] = {}
        for lane in ledger.lanes:
            for (account, name), ns in lane.parts.items():
                of_account = self._parts.setdefault(account, {})
                of_account[name] = of_account.get(name, 0) + ns

    @property
    def unit(self) -> str:
        """The name of a unit."""
        return self.facts.unit

    @property
    def is_training(self) -> bool:
        """Whether the units are those of a training: named so, or with phases."""
        return self.unit in _TRAINING or self._has_phases

    @property
    def is_short(self) -> bool:
        """Whether the run is so short that its start does not matter."""
        extent_ns = self.ledger.last_ns - self.ledger.first_ns
        return extent_ns < self.limits["short_run.seconds"] * SECOND_NS

    @property
    def unit_ns(self) -> float:
        """The mean time for each unit, without start, pauses and end, ns."""
        return self.running_ns / max(self.units, 1)

    def cycles(self) -> list[Cycles]:
        """Return the cycles of each training with the claims so far.

        Their medians, deviations and courses are those of the training.
        """
        return [Cycles(each, self.claims) for each in self._groups]

    def cycles_of_ranks(self) -> Cycles:
        """Return the cycles of all trainings of the ranks that wait for each other."""
        return Cycles(self._together[0], self.claims)

    def lane_of(self, rank: int | None) -> Lane | None:
        """Return the first lane with units of a rank; the only lane of a run is that of any."""
        lanes = (each for each in self.ledger.lanes if len(each.ns))
        is_only = len(self.ledger.lanes) == 1
        return next((each for each in lanes if each.rank == rank or is_only), None)

    def trainings_at(self, rank: int | None, times: np.ndarray) -> list[Places]:
        """Return the places of some times (Unix ns) in each training of a rank."""
        lane = self.lane_of(rank)
        if lane is None or lane.training is None:
            return [slice(None)]
        units = np.searchsorted(lane.start, times, side="right") - 1
        return by_training(lane.training[np.maximum(units, 0)])

    def parts(self, account: str) -> dict[str, int]:
        """Return the recorded names of an account with their total times, the longest first."""
        parts = self._parts.get(account, {})
        return dict(sorted(parts.items(), key=lambda each: (-each[1], each[0])))

    def name_of(self, account: str | None) -> str | None:
        """Return the recorded name with the most time in an account; None if it has none."""
        if account is None or account in _WITHOUT_SCOPES:
            return None
        return next(iter(self.parts(account)), _NAMES.get(account))

    def place_of(self, account: str | None) -> str:
        """Return the account as a phrase: its recorded name if it has one."""
        if account is None:
            return "several phases"
        name = self.name_of(account)
        return name or PLACES.get(account, account).format(units=plural(self.unit))

    def ranks_of(self, lanes: Iterable[int]) -> list[int | None]:
        """Return the ranks of lanes, in order; empty for lanes without ranks."""
        return known_ranks(self.ledger.lanes[lane].rank for lane in lanes)

    def ranks_if_some(self, lanes: Iterable[int]) -> list[int | None]:
        """Return the ranks of lanes, in order; empty for all lanes."""
        some = {*lanes}
        return self.ranks_of(some) if len(some) < len(self.ledger.lanes) else []

    def share(self, ns: float) -> float | None:
        """Return a time as a fraction of the ledger's total."""
        return min(ns / self.total_ns, 1.0) if self.total_ns else None

    def running_share(self, ns: float) -> float | None:
        """Return a time as a fraction of the total without start-up, pauses and the like."""
        return min(ns / self.running_ns, 1.0) if self.running_ns > 0 else None

    def severity(self, kind: str, ns: float, *, of_total: bool = False) -> Severity | None:
        """Return the severity of a cost; None if it is too small to be listed."""
        name = KINDS[kind]
        base = (self.total_ns if of_total else self.running_ns) - self.contended_ns
        value = ns / base if base > 0 else 0.0
        if value < _LISTED * self.limits[f"{name}.warning"] or ns <= 0:
            return None
        severity = self.limits.severity(name, value)
        is_small = ns < self.limits["warning.share"] * self.total_ns
        return "notice" if severity == "warning" and is_small else severity

    def price(
        self,
        kind: str,
        bid: Bid,
        describe: Callable[[Finding], None],
        *,
        low_ns: float | None = None,
        of_total: bool = False,
        at_most: Severity | None = None,
    ) -> Finding | None:
        """Return the finding of a bid, and claim the bid if the finding is a warning or more.

        `describe` sets the sentence, the place, the evidence and the advice. `low_ns` is the lower
        bound of an estimate, and then decides about the severity; `at_most` limits it.
        """
        cost = bid.total_ns if low_ns is None else low_ns
        severity = self.severity(kind, cost, of_total=of_total)
        if severity is None:
            return None
        each_s = bid.total_ns / SECOND_NS / len(self.ledger.lanes)
        if severity == "critical" and self.limits.is_brief(KINDS[kind], each_s):
            severity = "warning"
        if at_most == "notice" or (at_most == "warning" and severity == "critical"):
            severity = at_most
        finding = Finding(kind, severity, bid.total_ns, self.share(bid.total_ns), "")
        finding.running_share = finding.share if of_total else self.running_share(bid.total_ns)
        if low_ns is not None:
            finding.share_low = self.share(low_ns)
        describe(finding)
        if severity != "notice":
            bid.commit()
            self.found.add(kind)
        return finding


def extent_of(assessment: Assessment | None) -> str:
    """Return the extent in which units are compared: `run`, or `training` if there are several."""
    is_divided = assessment is not None and len(assessment.ledger.trainings) > 1
    return "training" if is_divided else "run"


def advise(finding: Finding, *texts: str, part: float | None = 1.0) -> None:
    """Set the advice of a finding; `part` is the fraction of the cost that the first one saves.

    The gain of further advice is unknown.
    """
    cost, gain = finding.cost_ns, None
    if cost is not None and part is not None:
        gain = min(round(cost * part), cost)  # a product of 2 ** 53 and more is rounded
    finding.advice = [
        Advice(text, gain if place == 0 else None) for place, text in enumerate(texts)
    ]


def locate(finding: Finding, **evidence: Any) -> None:
    """Add evidence to a finding."""
    finding.evidence.update(evidence)


def add_waiting(assessment: Assessment, bid: Bid, account: str) -> None:
    """Add to a bid the time that other ranks wait for an account of the slowest rank.

    The wait is in the same unit or in the next one: an account at the end of a unit delays the
    next one.
    """
    for cycles in assessment.cycles():
        aligned = cycles.aligned
        if len(aligned.lanes) < 2:
            continue
        most = np.zeros(len(aligned.numbers))
        for place in range(len(aligned.lanes)):
            np.maximum(most, cycles.of_lane(place, account), out=most)
        if most.any():
            for place in range(len(aligned.lanes)):
                add_wait(assessment, bid, cycles, place, most - cycles.of_lane(place, account))


def add_wait(
    assessment: Assessment, bid: Bid, cycles: Cycles, place: int, amounts: np.ndarray
) -> None:
    """Add to a bid the waiting of a lane in each unit, or else in the next, up to some amounts."""
    aligned = cycles.aligned
    if not assessment.claims.has(aligned.lanes[place], WAITING):
        return
    rest = to_ns(np.maximum(amounts, 0))
    rest -= aligned.add(bid, place, WAITING, rest)
    if len(rest) > 1 and rest[:-1].any():
        later = np.zeros(len(rest), np.int64)
        later[1:] = rest[:-1]
        aligned.add(bid, place, WAITING, later)
