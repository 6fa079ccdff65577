"""The work of ranks that wait for each other, compared unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ..figures.ledger import Ledger, Places
from ..figures.medians import median_of, medians_of, percentiles_of
from .cycles import WORK, Cycles, deviation_of

_BACKWARD: Final = "backward"
_WAITING_PHASES: Final = (_BACKWARD, "communication")
"""The accounts in which ranks wait. Their rest is not what the others wait for, except for the
usual own work in `backward` if that is known."""
_ACCOUNTS: Final = (*(name for name in WORK if name not in _WAITING_PHASES), "other_scopes")
_KINDS: Final = {
    "input": "INPUT_STRAGGLER", "transfer": "H2D_STRAGGLER",
    "forward": "COMPUTE_STRAGGLER", "loss": "COMPUTE_STRAGGLER",
    _BACKWARD: "COMPUTE_STRAGGLER", "optimizer": "COMPUTE_STRAGGLER",
    "unattributed": "WAIT_STRAGGLER", "between_units": "WAIT_STRAGGLER",
}  # fmt: skip
_TWO_THIRDS: Final = 2 / 3
_WIDTH: Final = 0.97
"""The distance of the 5th and the 25th percentile of a normal distribution, in deviations."""
_MOST_LANES: Final = 64
_USUAL: Final = 4
_ROUNDS: Final = 100
_STEADY: Final = 1e-6
"""The change of a round, in deviations, after which the work in the waiting phases is known."""
_REDRAWN: Final = 8
_FAR: Final = -6.0
_FEWEST_DRAWS, _MOST_DRAWS, _UNITS = 4, 64, 4096
"""The number of draws: so many that the units times the draws are about `_UNITS`."""
_DRAWN: Final = 10_000_000
"""The maximum number of times that are drawn for many ranks, unless `_FEWEST_DRAWS` needs more.

Ten thousand ranks then have a quarter of the draws, and their sum differs by less than 1 %."""
_CELLS: Final = 100_000
"""The maximum number of times in a table of some lanes, unless one lane has more."""
_MOST_TRAININGS: Final = 100
"""The maximum number of trainings for which that work is estimated one by one
(docs/findings.md)."""
_SAMPLED: Final = 20_000
"""The number of times from which the work in the waiting phases is estimated."""


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
        medians, means = {}, {}
        for account in _accounts_of(self.cycles):
            middle, mean = self._middle_and_mean(account)
            medians[account] = middle - lower_median_of_others(middle)
            means[account] = mean - lower_median_of_others(mean)
        return medians, means

    def saved(self, *typical: np.ndarray, wider: float = 1.0) -> list[np.ndarray]:
        """Return the time that each unit would save if the lanes had other work, ns.

        Each argument is such other work. The lanes also differ in the work of the phase in which
        they wait. It is unknown, except that the last lane has not waited, so the mean over some
        draws is returned. `wider` is a factor of its spread.
        """
        saved = np.zeros((len(typical), self.matrix.shape[1]))
        draws = np.random.default_rng(0)
        for some, (mean, spread) in zip(self._groups, self._phases, strict=True):
            other = [each[:, some] for each in typical]
            saved[:, some] = self._saved(some, other, mean, spread * wider, draws)
        return list(saved)

    def _saved(
        self, some: Places, typical: Sequence[np.ndarray], mean: float, spread: float,
        draws: np.random.Generator,
    ) -> Sequence[np.ndarray]:  # fmt: skip
        """Return the saved time of some units, with the mean and the deviation of their waiting."""
        matrix, waiting = self.matrix[:, some], self._waiting[:, some]
        if not spread:
            return [matrix.max(axis=0) - each.max(axis=0) for each in typical]
        units = matrix.shape[1]
        saved = np.zeros((len(typical), units))
        up_to, step = np.empty_like(waiting), max(_CELLS // len(waiting), 1)
        for first in range(0, units, step):
            chunk = slice(first, first + step)
            np.cumsum(_last(waiting[:, chunk], mean, spread), axis=0, out=up_to[:, chunk])
        columns, limits = np.arange(units), waiting.reshape(-1)
        differs = np.any([(each != matrix).any(axis=1) for each in typical], axis=0)
        rows = np.flatnonzero(differs)
        of_all = self.matrix  # the sum over all trainings has as many draws as one training has
        count = min(_UNITS // of_all.shape[1], _MOST_DRAWS, _DRAWN // of_all.size)
        count = max(count, _FEWEST_DRAWS)
        for _ in range(count):
            phase = draws.normal(mean, spread, waiting.shape)
            values = phase.reshape(-1)
            places = np.flatnonzero(values > limits)
            for _ in range(_REDRAWN):
                values[places] = redrawn = draws.normal(mean, spread, len(places))
                places = places[redrawn > limits[places]]
            values[places] = limits[places]
            last = _places_above(up_to, draws.random(columns.shape))
            phase[last, columns] = waiting[last, columns]
            ends = matrix + phase
            latest = ends.max(axis=0)
            for number, each in enumerate(typical):
                ends[rows] = each[rows] + phase[rows]
                saved[number] += latest - ends.max(axis=0)
        return list(np.maximum(saved / count, 0))

    @cached_property
    def _waiting(self) -> np.ndarray:
        """The time in the waiting phases, lanes by units, ns."""
        cycles = self.cycles
        return np.stack([cycles.waiting_of(place) for place in range(len(self.matrix))])

    @cached_property
    def _groups(self) -> list[Places]:
        """The units of each training, or, of many trainings, all units together."""
        trainings = self.cycles.trainings
        return trainings if len(trainings) <= _MOST_TRAININGS else [slice(None)]

    @cached_property
    def _phases(self) -> list[tuple[float, float]]:
        """For each group: the mean and the deviation of the work in the waiting phases, ns."""
        steady = self.cycles.is_steady
        return [_phase(self._waiting[:, some][:, steady[some]]) for some in self._groups]

    def _middle_and_mean(self, account: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the median and the mean of an account in the steady units of each lane."""
        cycles = self.cycles
        middle, mean = np.zeros((2, len(cycles.aligned.lanes)))
        if not cycles.has(account):
            return middle, mean
        steady = np.flatnonzero(cycles.is_steady)
        step = max(_CELLS // max(len(steady), 1), 1)
        for first in range(0, len(middle), step):
            places = range(first, min(first + step, len(middle)))
            times = np.array([_left(cycles, place, account) for place in places])
            times = np.take(times, steady, axis=1).astype(np.float64)
            middle[first : first + step] = medians_of(times, axis=1)
            mean[first : first + step] = times.mean(axis=1)
        return middle, mean

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
        for account in filter(self.cycles.has, _accounts_of(self.cycles)):
            rows = [_left(self.cycles, place, account)[some] for place in range(len(excess))]
            times = np.stack(rows).astype(np.float64)
            if not times.any():
                continue
            over = np.maximum(times - lower_median_of_others(times), 0)
            totals = np.where(units[:, some], over, 0).sum(axis=1)
            for place in np.flatnonzero(totals).tolist():
                excess[place][account] = float(totals[place])
        return excess


def _phase(waiting: np.ndarray) -> tuple[float, float]:
    """Return the mean and the deviation of the work in the waiting phases, ns.

    They are the most likely ones: in each unit, the last lane has not waited, and the others have.
    Units in which no lane has a usual time are left out.
    """
    if not waiting.size:
        return 0.0, 0.0
    least = waiting.min(axis=0)
    mean, spread = median_of(least), deviation_of(least)
    waiting = waiting[:, abs(least - mean) <= _USUAL * spread]
    waiting = waiting[:, :: -(-waiting.size // _SAMPLED) or 1]
    for _ in range(_ROUNDS if spread else 0):
        distance = (waiting - mean) / spread
        ratio = _density_ratio(distance)
        is_last = _likely(ratio)
        below = mean - spread * ratio
        square = spread**2 * np.maximum(1 - ratio * (distance + ratio), 0) + below**2
        before = mean, spread
        mean = float((below + is_last * (waiting - below)).mean())
        square += is_last * (waiting**2 - square)
        spread = max(float(square.mean()) - mean**2, 1.0) ** 0.5
        if max(abs(mean - before[0]), abs(spread - before[1])) <= _STEADY * spread:
            break
    return mean, spread


def _accounts_of(cycles: Cycles) -> tuple[str, ...]:
    """Return the accounts with work that other ranks wait for."""
    lanes = (cycles.lane(place) for place in range(len(cycles.aligned.lanes)))
    is_known = all(lane.usual_backward is not None for lane in lanes)
    return (*_ACCOUNTS, _BACKWARD) if is_known else _ACCOUNTS


def errors_of_backward(cycles: Cycles) -> np.ndarray:
    """Return the standard error of each lane's usual work in backward passes, ns; 0 if unknown.

    Of few measured units it is itself uncertain, so that it is at least the usual one.
    """
    lanes = [cycles.lane(place) for place in range(len(cycles.aligned.lanes))]
    errors = [0.0 if each.usual_backward is None else each.usual_backward.error * each.size
              for each in lanes]  # fmt: skip
    found: np.ndarray = np.maximum(errors, median_of(errors))
    return found


def _left(cycles: Cycles, place: int, account: str) -> np.ndarray:
    """Return the unclaimed time of an account in a lane; of backward, its usual own work."""
    times, lane = cycles.left_in_lane(place, account), cycles.lane(place)
    if account != _BACKWARD or lane.usual_backward is None:
        return times
    own: np.ndarray = np.minimum(times, round(lane.usual_backward.ns * lane.size))
    return own


def _density_ratio(distance: np.ndarray) -> np.ndarray:
    """Return the density of the normal distribution divided by its integral up to a place.

    The integral is by formula 26.2.16 of Abramowitz and Stegun.
    """
    size = np.abs(np.maximum(distance, _FAR))
    part = 1 / (1 + 0.33267 * size)
    tail = part * (0.4361836 + part * (-0.1201676 + part * 0.9372980))
    density = np.exp(-(size**2) / 2) / (2 * np.pi) ** 0.5
    ratio: np.ndarray = np.where(distance < 0, 1 / tail, density / (1 - density * tail))
    return ratio


def _last(waiting: np.ndarray, mean: float, spread: float) -> np.ndarray:
    """Return the probability that each lane is the last one to end the waiting phase of a unit."""
    return _likely(_density_ratio((waiting - mean) / spread))


def _likely(ratio: np.ndarray) -> np.ndarray:
    likely: np.ndarray = ratio / np.maximum(ratio.sum(axis=0), np.finfo(float).tiny)
    return likely


def _places_above(up_to: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each value the first row of its column that is not below it, or the last row.

    The columns of `up_to` are in order.
    """
    last, columns = len(up_to) - 1, np.arange(len(values))
    found, step = np.zeros(len(values), np.int64), 1 << last.bit_length()
    while step := step >> 1:
        after = found + step
        is_below = up_to[np.minimum(after, last) - 1, columns] < values
        found = np.where(is_below & (after <= last), after, found)
    return found


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
    if _BACKWARD in _accounts_of(cycles) and cycles.has(_BACKWARD):
        for place in range(len(matrix)):
            matrix[place] += _left(cycles, place, _BACKWARD)
    return RankWork(cycles, matrix, median_of(medians_of(matrix, axis=0)))


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
        low, high = percentiles_of(times, (5, 25))
        widths.append(float(high - low))
    return median_of(widths) / _WIDTH
