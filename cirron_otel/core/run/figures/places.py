"""The lines at which the program was in samples, by account: a fold over the relation `mark`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from ....semconv import PLACE, SESSION
from ..accounts import AccountNames
from ..relations import ABSENT, STRING, Block, Texts
from .ledger import Lane, Ledger

_AROUND: Final = frozenset({SESSION, "step", "batch", "request", "epoch", "micro_step"})
"""The scopes around phases. A sample with one of them is in no phase."""
_MOST: Final = 1_000_000
"""The maximum number of samples that are counted: the first ones."""


class PlaceCount(NamedTuple):
    """A line of the program, and the number of samples that have it."""

    place: str
    """`FILE:LINE (FUNCTION)`, with ` of __getitem__` or ` of collate` if a fetch called it."""
    samples: int


PlacesByAccount: TypeAlias = Mapping[str, Sequence[PlaceCount]]
"""By account: the places of its samples, the most frequent first."""


class PlacesFold:
    """Collects the samples of all ranks."""

    def __init__(self, texts: Texts) -> None:
        """`texts` has the names and the values of the marks."""
        self._texts = texts
        self._rows: list[np.ndarray] = []
        self._count = 0

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        is_due = (block["name"] == self._texts.token(PLACE)) & (block["type"] == STRING)
        is_due &= block["ts_ns"] != ABSENT
        if is_due.any() and self._count < _MOST:
            columns = [block[name][is_due] for name in ("rank", "ts_ns", "value")]
            self._rows.append(np.stack(columns))
            self._count += int(is_due.sum())

    def result(self, ledger: Ledger, accounts: AccountNames) -> PlacesByAccount:
        """Return the places of the samples between the first and the last unit of each rank."""
        counts: dict[str, dict[str, int]] = {}
        if self._rows:
            rank, at, value = np.concatenate(self._rows, axis=1)
            for lane in ledger.lanes:
                own = rank == (ABSENT if lane.rank is None else lane.rank)
                if own.any() and len(lane.start) and lane.thread in (None, 1):
                    self._count_lane(counts, lane, at[own], value[own], accounts)
        return {account: most_frequent(places) for account, places in counts.items()}

    def _count_lane(
        self, counts: dict[str, dict[str, int]], lane: Lane, at: np.ndarray, value: np.ndarray,
        accounts: AccountNames,
    ) -> None:  # fmt: skip
        unit = np.searchsorted(lane.start, at, side="right") - 1
        is_inside = (unit >= 0) & (at <= lane.start[-1] + lane.ns[-1])
        # An entry of several units has no gaps; then all of it counts as inside of units.
        in_unit = at <= lane.start[unit] + lane.ns[unit] if lane.size == 1 else is_inside
        # The gap ahead of a later training or of another process is outside of all cycles.
        is_outside = np.append(lane.rises(), False)
        is_outside[[place for place, _ in lane.restarts]] = True
        is_inside &= in_unit | ~is_outside[unit + 1]
        for token, inside in zip(value[is_inside].tolist(), in_unit[is_inside], strict=True):
            place, _, scope = (self._texts.text(token) or "").rpartition(" in ")
            if scope in _AROUND:
                account = "unattributed" if inside else "between_units"
            else:
                account = accounts.account_of(scope)
            if place:
                of_account = counts.setdefault(account, {})
                of_account[place] = of_account.get(place, 0) + 1


def most_frequent(samples: Mapping[str, int]) -> list[PlaceCount]:
    """Return places with their numbers of samples, the most frequent first."""
    ordered = sorted(samples.items(), key=lambda each: (-each[1], each[0]))
    return [PlaceCount(*each) for each in ordered]
