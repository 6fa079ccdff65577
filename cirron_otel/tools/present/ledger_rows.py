"""The rows of the ledger in a document, and shares that add up to 100.0 %."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...core.run.accounts import ACCOUNTS
from .formatting import plural

if TYPE_CHECKING:
    from ...core.run.figures.ledger import Ledger
    from ...core.run.findings.rate import Rate

ACCOUNT_NAMES: Final[dict[str, str]] = {
    "start_up": "start-up",
    "warm_up": "warm-up",
    "compilation": "compilation",
    "garbage_collection": "garbage collection",
    "tracing": "tracing",
    "input": "waiting for input",
    "transfer": "copies to the device",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "communication": "communication",
    "waiting_for_ranks": "waiting for other ranks",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "logging": "logging",
    "other_scopes": "own scopes",
    "unattributed": "unattributed in {units}",
    "between_units": "between {units}",
    "busy": "busy with {units}",
    "idle": "idle",
    "stalled": "stalled",
    "lost": "repeated after a restart",
    "paused": "no process running",
    "shut_down": "shut-down",
    "ended": "rank had ended",
}
"""The names of accounts in text; `{units}` is the plural of the name of the run's units."""
_MOST_PARTS: Final = 100


@dataclass(slots=True)
class AccountRow:
    """The time of all ranks in one account."""

    account: str
    ns: int
    share: float
    """The share of the ledger's total, 0 to 1."""
    parts: list[tuple[str, int]] = field(default_factory=list)
    """The recorded names of its scopes with their time in ns, the longest first; at most 100."""


@dataclass(slots=True)
class RankRow:
    """The time of one rank by account."""

    rank: int | None
    host: str | None
    total_ns: int
    accounts: dict[str, int]


@dataclass(slots=True)
class LedgerRows:
    """The ledger of a run: the accounts add up to the total, exactly."""

    total_ns: int
    accounts: list[AccountRow]
    """The accounts with time, in the order of reports."""
    ranks: list[RankRow]
    first_ns: int
    last_ns: int
    """The first start and the last end of any rank, Unix ns."""
    rate: Rate | None = None
    """The price of an hour of a rank, if the user gives it."""
    is_window: bool = False
    """Whether it is the ledger of the last units of a running job."""

    @property
    def amount(self) -> str | None:
        """The price of the total with its currency; None without a rate."""
        return self.amount_of(self.total_ns)

    def amount_of(self, ns: int | None) -> str | None:
        """Return the price of a time of all ranks together; None without a rate."""
        amount = None if self.rate is None else self.rate.amount(ns)
        return None if self.rate is None or amount is None else f"≈ {self.rate.text(amount)}"

    @property
    def extent_ns(self) -> int:
        """The time from the first start to the last end of any rank, ns."""
        return self.last_ns - self.first_ns

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as a JSON object."""
        return {
            "total_ns": self.total_ns,
            "accounts": [
                {
                    "account": each.account, "ns": each.ns, "share": each.share,
                    "parts": [{"name": name, "ns": ns} for name, ns in each.parts],
                }
                for each in self.accounts
            ],
            "ranks": [
                {
                    "rank": each.rank, "host": each.host, "total_ns": each.total_ns,
                    "accounts": each.accounts,
                }
                for each in self.ranks
            ],
        }  # fmt: skip

    def price(self) -> dict[str, Any] | None:
        """Return the price of an hour of a rank, and of the total, as a JSON object."""
        if self.rate is None:
            return None
        return {
            "per_hour": self.rate.per_hour, "currency": self.rate.currency or None,
            "total": self.rate.amount(self.total_ns),
        }  # fmt: skip

    def range_of(self, account: str) -> tuple[float, float]:
        """Return the lowest and the highest share of an account among the ranks, 0 to 1."""
        shares = [each.accounts.get(account, 0) / max(each.total_ns, 1) for each in self.ranks]
        return min(shares, default=0.0), max(shares, default=0.0)


def ledger_rows(ledger: Ledger | None, rate: Rate | None = None) -> LedgerRows | None:
    """Return the rows of a ledger; None if there is none, or if it has no time.

    `rate` is the price of an hour of a rank, if it is known.
    """
    if ledger is None or not ledger.total_ns:
        return None
    extent_ns = ledger.last_ns - ledger.first_ns
    totals = ledger.totals
    parts: dict[str, dict[str, int]] = {}
    ranks = []
    for lane in ledger.lanes:
        ranks.append(RankRow(lane.rank, lane.host, extent_ns, _in_order(lane.totals)))
        for (account, name), ns in lane.parts.items():
            of_account = parts.setdefault(account, {})
            of_account[name] = of_account.get(name, 0) + ns
    rows = [
        AccountRow(account, ns, ns / ledger.total_ns, _longest(parts.get(account, {})))
        for account, ns in _in_order(totals).items()
    ]
    return LedgerRows(ledger.total_ns, rows, ranks, ledger.first_ns, ledger.last_ns, rate)


def _in_order(totals: Any) -> dict[str, int]:
    known = {account: totals[account] for account in ACCOUNTS if totals.get(account)}
    return {**known, **{name: ns for name, ns in totals.items() if ns and name not in known}}


def _longest(parts: dict[str, int]) -> list[tuple[str, int]]:
    ordered = sorted(parts.items(), key=lambda part: (-part[1], part[0]))
    return [part for part in ordered if part[1]][:_MOST_PARTS]


def account_name(account: str, unit: str = "step") -> str:
    """Return the name of an account in text."""
    return ACCOUNT_NAMES.get(account, account.replace("_", " ")).format(units=plural(unit))


def percentages(values: Sequence[int], decimals: int = 1) -> list[str]:
    """Return the percentage of each value in their sum; the texts add up to 100 exactly.

    The largest remainders are rounded up, and the others down. All are 0 if the sum is 0.
    """
    total = sum(values)
    scale = 10**decimals
    if total <= 0:
        return [f"{0:.{decimals}f}"] * len(values)
    parts = [divmod(value * 100 * scale, total) for value in values]
    missing = 100 * scale - sum(whole for whole, _ in parts)
    by_rest = sorted(range(len(parts)), key=lambda place: (-parts[place][1], place))
    raised = set(by_rest[:missing])
    wholes = [whole + (place in raised) for place, (whole, _) in enumerate(parts)]
    return [f"{whole // scale}.{whole % scale:0{decimals}d}" for whole in wholes]
