"""The work of ranks that wait for each other, compared unit by unit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ..figures.ledger import Ledger
from .cycles import WORK, Cycles, deviation_of

_WAITING_PHASES: Final = ("backward", "communication")
"""The accounts in which ranks wait. Their rest is not what the others wait for."""
_ACCOUNTS: Final = (*(name for name in WORK if name not in _WAITING_PHASES), "other_scopes")
_KINDS: Final = {
    "input": "INPUT_STRAGGLER", "transfer": "H2D_STRAGGLER",
    "forward": "COMPUTE_STRAGGLER", "loss": "COMPUTE_STRAGGLER",
    "optimizer": "COMPUTE_STRAGGLER",
    "unattributed": "WAIT_STRAGGLER", "between_units": "WAIT_STRAGGLER",
}  # fmt: skip
_TWO_THIRDS: Final = 2 / 3
_WIDTH: Final = 0.97
"""The distance of the 5th and the 25th percentile of a normal distribution, in deviations."""
_MOST_LANES: Final = 64
_DRAWS: Final = 4


@dataclass
class RankWork:
    """The work of all aligned lanes by unit, ns."""

    cycles: Cycles
    matrix: np.ndarray
    """Lanes by units."""
    median_ns: float
    """The median work of a unit over the lanes."""

    @cached_property
    def _usual(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The medians and the means of accounts in the steady units, over the others' ones."""
        steady, lanes = self.cycles.is_steady, range(len(self.cycles.aligned.lanes))
        medians, means = {}, {}
        for account in _ACCOUNTS:
            times = [self.cycles.of_lane(place, account)[steady] for place in lanes]
            middle = np.array([float(np.median(each)) for each in times])
            mean = np.array([float(each.mean()) for each in times])
            medians[account] = middle - lower_median_of_others(middle)
            means[account] = mean - lower_median_of_others(mean)
        return medians, means

    def saved(self, typical: np.ndarray) -> np.ndarray:
        """Return the time that each unit would save if the lanes had other work, ns.

        The ranks also differ in the work of the phase in which they wait. Only its spread is known,
        from the rank that waits least, so the mean over some draws is returned.
        """
        if not self._spread_ns:
            return self.matrix.max(axis=0) - typical.max(axis=0)
        draws, saved = np.random.default_rng(0), np.zeros(self.matrix.shape[1])
        for _ in range(_DRAWS):
            noise = draws.normal(0, self._spread_ns, self.matrix.shape)
            saved += (self.matrix + noise).max(axis=0) - (typical + noise).max(axis=0)
        return np.maximum(saved / _DRAWS, 0)

    @cached_property
    def _spread_ns(self) -> float:
        """The deviation of the work in the waiting phases, ns."""
        cycles = self.cycles
        waiting = [cycles.waiting_of(place) for place in range(len(cycles.aligned.lanes))]
        return deviation_of(np.min(np.stack(waiting), axis=0)[cycles.is_steady])

    def excess_of(self, place: int, excess_ns: float) -> dict[str, float]:
        """Return the usual excess of a lane over the others' lower median, by account.

        `excess_ns` is the usual excess of all accounts together. Medians do not have the excess of
        single units; means are needed for work that only some units have.
        """
        medians, means = (
            {name: float(each[place]) for name, each in excess.items() if each[place] > 0}
            for excess in self._usual
        )
        return medians if 2 * sum(medians.values()) >= excess_ns else means

    def excess_in(self, units: np.ndarray) -> list[dict[str, float]]:
        """Return for each lane its excess in some units (a mask: lanes by units), by account."""
        excess: list[dict[str, float]] = [{} for _ in self.cycles.aligned.lanes]
        some = units.any(axis=0)
        for account in _ACCOUNTS:
            rows = [self.cycles.of_lane(place, account)[some] for place in range(len(excess))]
            times = np.stack(rows)
            if not times.any():
                continue
            over = np.maximum(times - lower_median_of_others(times), 0)
            totals = np.where(units[:, some], over, 0).sum(axis=1)
            for place in np.flatnonzero(totals).tolist():
                excess[place][account] = float(totals[place])
        return excess


def lower_median_of_others(values: np.ndarray) -> np.ndarray:
    """Return for each row the lower median of the other rows; column by column."""
    count = len(values)
    middle = (count - 2) // 2
    ordered = np.partition(values, (middle, middle + 1), axis=0)
    lower: np.ndarray = np.where(values <= ordered[middle], ordered[middle + 1], ordered[middle])
    return lower


def rank_work(cycles: Cycles) -> RankWork:
    """Return the work of the lanes of some cycles."""
    rows = [cycles.work_of(place, _ACCOUNTS) for place in range(len(cycles.aligned.lanes))]
    matrix = np.stack(rows)
    return RankWork(cycles, matrix, float(np.median(np.median(matrix, axis=0))))


def cause_of(excess: dict[str, float]) -> tuple[str, str | None]:
    """Return the kind of a straggler, and the account with the most of its excess."""
    total = sum(excess.values())
    by_kind: dict[str, float] = {}
    for account, ns in excess.items():
        kind = _KINDS.get(account, "STRAGGLER")
        by_kind[kind] = by_kind.get(kind, 0) + ns
    if not total:
        return "STRAGGLER", None
    kind = max(by_kind, key=lambda each: by_kind[each])
    account = max(excess, key=lambda each: excess[each])
    if by_kind[kind] < _TWO_THIRDS * total:
        return "STRAGGLER", account if 2 * excess[account] >= total else None
    of_kind = {each: ns for each, ns in excess.items() if _KINDS.get(each, "STRAGGLER") == kind}
    return kind, max(of_kind, key=lambda each: of_kind[each])


def noise_of(ledger: Ledger, work: RankWork) -> float:
    """Return the usual deviation of a rank's time up to its waiting phase, ns.

    It is estimated from the lower quarter, which has no slow units even if a rank is slow in half
    of them.
    """
    cycles = work.cycles
    lanes = cycles.aligned.lanes
    widths = []
    for place in range(0, len(lanes), -(-len(lanes) // _MOST_LANES)):
        own = cycles.aligned.of(place, ledger.lanes[lanes[place]].own)
        times = own[cycles.is_steady & (own >= 0)].astype(np.float64)
        if not len(times):
            times = work.matrix[place][cycles.is_steady]
        low, high = np.percentile(times, (5, 25))
        widths.append(float(high - low))
    return float(np.median(widths)) / _WIDTH
