"""The difference of two runs: their wall time per unit, by account.

Two runs of a program also differ because the speed of the machine differs, which no block of a run
shows. It changes most accounts in one direction. A difference of this kind has a minimum noise,
which is larger for shorter runs (`_speed_noise`). All times are ns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from .accounts import ACCOUNTS
from .costs import UNCOUNTED, LedgerCosts

_SURE: Final = 2
"""Runs are the same if this many times the noise cannot hide a moderate difference."""
_SPEED_NOISE: Final = 0.12
"""The change that the speed of the machine explains in runs of `_SHORT_NS` or less."""
_SHORT_NS: Final = 2_000_000_000
_LARGEST: Final = 2
"""The number of accounts that change most, which are not among the others."""
_OTHERS: Final = 0.5
"""The speed of the machine may explain a change if the other accounts together change by at least
this part of it, relative to their time."""
_LEAST_PART: Final = 0.05
"""The minimum part of the difference that an account explains to be named."""

Kind = Literal["SLOWER", "FASTER", "SAME", "INCONCLUSIVE"]
Severity = Literal["info", "warn", "crit"]


@dataclass(frozen=True, slots=True)
class AccountChange:
    """The difference of an account between two runs."""

    account: str
    a_ns: int
    b_ns: int
    """The time of a rank in the account, the mean of all ranks."""
    a_per_unit_ns: float
    b_per_unit_ns: float
    noise_ns: float | None
    """The difference per unit that the noise of both runs explains; None if it is not measured."""
    part: float | None
    """The part of the difference of the wall time per unit, 1 for all of it.

    It is negative for an account that changes in the other direction. None if the account is not
    part of the wall time, or if there is no difference.
    """
    is_named: bool
    """Whether the account explains the difference: it exceeds the noise and is large enough."""

    @property
    def per_unit_ns(self) -> float:
        """The difference per unit."""
        return self.b_per_unit_ns - self.a_per_unit_ns

    @property
    def is_counted(self) -> bool:
        """Whether the account is part of the wall time."""
        return self.account not in UNCOUNTED

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        values = asdict(self)
        return {**values, "share": values.pop("part"), "change_per_unit_ns": self.per_unit_ns}


@dataclass(frozen=True, slots=True)
class CostChange:
    """The difference of the wall time of two runs."""

    kind: Kind
    severity: Severity
    """`warn` for a moderately slower run, `crit` for a materially slower one, else `info`."""
    change: float | None
    """(B - A) / A of the wall time per unit; None if a run has no units."""
    noise: float | None
    """The change that the noise of both runs explains; None if a run has too few units."""
    accounts: list[AccountChange]
    """In the order of reports; empty if a run has no units."""
    measured_noise: float = 0.0
    """The noise without that of the machine's speed."""
    shorter_ns: float = 0.0
    """The wall time of a rank in the shorter run."""

    @property
    def is_failure(self) -> bool:
        """Whether the second run is slower."""
        return self.severity != "info"

    @property
    def cause(self) -> AccountChange | None:
        """The account that explains most of the difference; None without a difference."""
        named = self.named if self.kind in ("SLOWER", "FASTER") else []
        difference = sum(each.per_unit_ns for each in self.accounts if each.is_counted)
        return next((each for each in named if each.per_unit_ns * difference > 0), None)

    def is_slower_by(self, share: float, factor: float = 1.0) -> bool:
        """Return whether the wall time, or an account of it, is longer in B by a share of A's.

        The differences also exceed the noise of both runs. `factor` is multiplied with the times of
        B: the ratio of A's units to B's, if a unit of B is larger.
        """
        counted = [each for each in self.accounts if each.is_counted]
        before = sum(each.a_per_unit_ns for each in counted)
        if self.noise is None or not before:
            return False
        times = [(each.a_per_unit_ns, factor * each.b_per_unit_ns) for each in counted]
        speed = _speed_noise(times, self.shorter_ns)
        more = sum(b for _, b in times) - before
        scale = max(factor, 1.0)  # the noise of the times of B is scaled with them
        if more >= share * before and more > max(scale * self.measured_noise, speed) * before:
            return True
        return any(
            b - a >= share * before and b - a > max(scale * (each.noise_ns or 0.0), speed * a)
            for each, (a, b) in zip(counted, times, strict=True)
        )

    @property
    def named(self) -> list[AccountChange]:
        """The accounts that explain the difference, the largest first."""
        named = [each for each in self.accounts if each.is_named]
        return sorted(named, key=lambda each: -abs(each.per_unit_ns))


def compare_costs(
    a: LedgerCosts | None, b: LedgerCosts | None, moderate: float, material: float
) -> CostChange:
    """Compare the wall time per unit of two runs; `moderate` and `material` are changes of it."""
    if a is None or b is None or not a.wall_ns:
        return CostChange("INCONCLUSIVE", "info", None, None, [])
    change = (b.per_unit - a.per_unit) / a.per_unit
    if a.noise is None or b.noise is None:
        accounts = _accounts(a, b, math.inf)
        return CostChange("INCONCLUSIVE", "info", change, None, accounts)
    measured = noise = math.hypot(a.noise, b.noise) / a.per_unit
    shorter_ns = min(each.wall_ns / each.lanes for each in (a, b))
    speed = 0.0
    if abs(change) >= moderate:
        speed = _speed_noise(_times(a, b), shorter_ns)
        noise = max(measured, speed)
    kind: Kind = "SLOWER" if change > 0 else "FASTER"
    least_ns = _LEAST_PART * abs(change) * a.per_unit
    if abs(change) < moderate or abs(change) <= noise:
        kind, least_ns = "INCONCLUSIVE", max(moderate, noise) * a.per_unit
    accounts = _accounts(a, b, least_ns, speed)
    severity: Severity = "info"
    if kind == "SLOWER":
        severity = "crit" if change >= material else "warn"
    elif abs(change) + _SURE * noise < moderate and not any(e.is_named for e in accounts):
        kind = "SAME"
    return CostChange(kind, severity, change, noise, accounts, measured, shorter_ns)


def _times(a: LedgerCosts, b: LedgerCosts) -> list[tuple[float, float]]:
    """Return the times per unit of each account of the wall time, in A and in B."""
    return [
        (a.totals.get(name, 0) / a.units, b.totals.get(name, 0) / b.units)
        for name in sorted({*a.totals, *b.totals} - UNCOUNTED)
    ]


def _speed_noise(times: Sequence[tuple[float, float]], shorter_ns: float) -> float:
    """Return the change that a different speed of the machine explains.

    It is 0 if only two accounts change, or if the others do not change accordingly. The speed
    changes within seconds. So its noise is inversely proportional to the root of the duration of
    the shorter run, in ns.
    """
    before, after = (sum(values) for values in zip(*times, strict=True))
    sign = math.copysign(1, after - before)
    others = sorted(times, key=lambda pair: sign * (pair[1] - pair[0]))[:-_LARGEST]
    rest = sum(a for a, _ in others)
    least = _OTHERS * abs(after - before) * rest / before
    if not rest or sign * (sum(b for _, b in others) - rest) < least:
        return 0.0
    return _SPEED_NOISE * math.sqrt(_SHORT_NS / max(shorter_ns, _SHORT_NS))


def _accounts(
    a: LedgerCosts, b: LedgerCosts, least_ns: float, speed: float = 0.0
) -> list[AccountChange]:
    """Return the differences of all accounts.

    Those of `least_ns` per unit or more are named, unless the speed of the machine explains them:
    a change of an account's time by up to `speed`.
    """
    known = {*a.totals, *b.totals}
    names = [name for name in ACCOUNTS if name in known]
    difference = b.per_unit - a.per_unit
    found = []
    for name in names:
        times = [each.totals.get(name, 0) for each in (a, b)]
        before, after = times[0] / a.units, times[1] / b.units
        noise = None
        if a.noise is not None and b.noise is not None:
            noise = math.hypot(a.account_noise.get(name, 0), b.account_noise.get(name, 0))
        is_counted = name not in UNCOUNTED
        change = abs(after - before)
        found.append(
            AccountChange(
                name, round(times[0] / a.lanes), round(times[1] / b.lanes), before, after,
                noise if is_counted else None,
                (after - before) / difference if is_counted and difference else None,
                is_counted
                and noise is not None
                and change > max(noise, speed * before)
                and change >= least_ns,
            )
        )  # fmt: skip
    return found
