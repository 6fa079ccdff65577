"""The accounts of units, from their parts: for a block at once, with a sweep where parts overlap.

A unit's parts are its outermost phases, and its own scopes without the phases inside them. The
time that no part covers is `unattributed`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ..accounts import BY_RULE, OVERRIDING, AccountNames
from ..relations import ABSENT, NO_TEXT, SUMS, Block, Texts
from .sweep import Interval, outermost, sweep

UNATTRIBUTED: Final = "unattributed"
WAITING: Final = frozenset({"backward", "communication"})
"""The accounts of the phases in which ranks wait for each other."""


_LONG_GAP: Final = 50
"""A gap between parts has a name if it takes more than this fraction of its unit."""
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(slots=True)
class UnitAccounts:
    """The time of the units of a block by account, ns."""

    accounts: dict[str, np.ndarray]
    names: dict[tuple[str, int], np.ndarray]
    """By account and the token of the recorded name; of `unattributed`, that of a long gap."""
    waiting: np.ndarray
    """The time in the last backward pass, and in collectives."""
    waited: np.ndarray
    """The end of the last of these phases, Unix ns; `ABSENT` if there is none."""
    forwarded: np.ndarray
    """The end of the last forward pass, Unix ns; `ABSENT` if there is none."""
    device: np.ndarray
    """The time on the device; `ABSENT` if it was not measured."""
    ahead: np.ndarray
    """The part of `unattributed` ahead of the first phase with a time on the device."""
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    """The number of scopes of each account of `OVERRIDING`; none is inside another one of its
    account."""
    lacking: dict[str, np.ndarray] = field(default_factory=dict)
    """By account: the time on the device beyond that on the host, of phases that have both."""


class AccountsOfUnits:
    """Computes the accounts of blocks of units."""

    def __init__(self, texts: Texts, names: AccountNames = BY_RULE) -> None:
        """`texts` has the names of the parts, and `names` the accounts of these."""
        self._texts, self._names = texts, names
        self._accounts: dict[int, str] = {}

    def account(self, token: int) -> str:
        """Return the account of the name with a token."""
        found = self._accounts.get(token)
        if found is None:
            found = self._names.account_of(self._texts.text(token))
            self._accounts[token] = found
        return found

    def of(self, units: Block, parts: Block) -> UnitAccounts:
        """Return the accounts of some units, whose parts have the same order."""
        count = len(units["ns"])
        places = np.repeat(np.arange(count), units["parts"])
        result = UnitAccounts(
            {}, {}, np.zeros(count, np.int64), np.full(count, ABSENT), np.full(count, ABSENT),
            units["gpu_ns"].copy(), np.zeros(count, np.int64),
        )  # fmt: skip
        is_due = self._overlapping(units, parts, places)
        is_swept = bool(is_due.any())
        chosen = ~is_due[places] if is_swept else slice(None)
        clean = {name: parts[name][chosen] for name in ("name", "ns", "wall_ns", "start_ns")}
        self._add(result, clean, places[chosen], count)
        firsts = np.cumsum(units["parts"]) - units["parts"]
        for unit in np.flatnonzero(is_due).tolist():
            self._sweep(result, unit, units, parts, int(firsts[unit]))
        self._add_device_times(result, units, parts, places)
        result.ahead[is_due] = 0  # unknown
        covered = np.zeros(count, np.int64)
        for times in result.accounts.values():
            covered += times
        rest = result.accounts[UNATTRIBUTED] = units["ns"] - covered
        has_gap = (rest > units["ns"] // _LONG_GAP) & ~is_due & ((units["flags"] & SUMS) == 0)
        if has_gap.any():
            self._add_gaps(result, units, parts, firsts, has_gap)
        return result

    def _overlapping(self, units: Block, parts: Block, places: np.ndarray) -> np.ndarray:
        """Return the units whose parts overlap or exceed them, or that contain nested parts.

        The times of these cannot be added up. Of units with sums only, parts have no intervals.
        """
        start, wall, own = parts["start_ns"], parts["wall_ns"], parts["ns"]
        is_due = np.zeros(len(units["ns"]), bool)
        if not len(start):
            return is_due
        # All differences are within the unit, or wrap: then they are negative or too large.
        offset = start - np.repeat(units["start_ns"], units["parts"])
        end = offset + wall
        is_odd = (offset < 0) | (end < offset) | (end > np.repeat(units["ns"], units["parts"]))
        is_odd |= own != wall
        is_odd[1:] |= (offset[1:] < end[:-1]) & (places[1:] == places[:-1])
        if is_odd.any():
            is_due[places[is_odd]] = True
        sums = (units["flags"] & SUMS) != 0
        if sums.any():
            total = np.zeros(len(is_due), float)
            np.add.at(total, places, own)
            is_due[sums] = total[sums] > units["ns"][sums]
        return is_due

    def _add(self, result: UnitAccounts, parts: Block, places: np.ndarray, count: int) -> None:
        """Add parts that do not overlap; `places` has the unit of each."""
        for token, chosen, where in _by_name(parts["name"], places, count):
            account = self.account(token)
            ns = parts["ns"][chosen]
            if where is None:
                result.names[account, token] = ns.copy()
            else:
                times = result.names.setdefault((account, token), np.zeros(count, np.int64))
                np.add.at(times, where, ns)
            if account in OVERRIDING:
                number = result.counts.setdefault(account, np.zeros(count, np.int64))
                np.add.at(number, np.arange(count) if where is None else where, 1)
            total = result.accounts.get(account)
            if total is None:
                result.accounts[account] = result.names[account, token].copy()
            elif where is None:
                total += ns
            else:
                np.add.at(total, where, ns)
            if account in WAITING or account == "forward":
                ends = parts["start_ns"][chosen] + parts["wall_ns"][chosen]
                if account != "forward":
                    self._add_waiting(result, account, where, ns, ends)
                else:
                    _latest(result.forwarded, where, ends)

    def _add_gaps(
        self, result: UnitAccounts, units: Block, parts: Block, firsts: np.ndarray,
        has_gap: np.ndarray,
    ) -> None:  # fmt: skip
        """Add the names of long gaps in some units, whose parts do not overlap.

        `firsts` has the place of the first part of each unit.
        """
        unit = np.flatnonzero(units["parts"])
        if not len(unit):
            return
        # In other units no gap is long enough.
        least = np.where(has_gap, units["ns"] // _LONG_GAP, _NEVER)
        start, counts, names = parts["start_ns"], units["parts"], parts["name"]
        end, first, last = start + parts["wall_ns"], firsts[unit], (firsts + counts - 1)[unit]
        ahead = np.empty(len(start), np.int64)
        np.subtract(start[1:], end[:-1], out=ahead[1:])
        ahead[first] = start[first] - units["start_ns"][unit]
        rows = np.flatnonzero(ahead > np.repeat(least, counts))
        before = names[rows - 1]
        is_first = np.zeros(len(start), bool)
        is_first[first] = True
        before[is_first[rows]] = NO_TEXT
        owner = np.repeat(np.arange(len(counts)), counts)[rows]
        self._name_gaps(result, owner, before, names[rows], ahead[rows])
        rest = (units["start_ns"] + units["ns"])[unit] - end[last]
        rows = np.flatnonzero(rest > least[unit])
        nothing = np.full(len(rows), NO_TEXT)
        self._name_gaps(result, unit[rows], names[last[rows]], nothing, rest[rows])

    def _name_gaps(
        self, result: UnitAccounts, owner: np.ndarray, after: np.ndarray, ahead_of: np.ndarray,
        gaps: np.ndarray,
    ) -> None:  # fmt: skip
        """Add gaps of units between parts with two names."""
        if not len(gaps):
            return
        for first, second, which in _pairs(after, ahead_of):
            token = self._texts.token(self._gap(first, second))
            times = result.names.setdefault(
                (UNATTRIBUTED, token), np.zeros(len(result.device), np.int64)
            )
            np.add.at(times, owner[which], gaps[which])

    def _gap(self, first: int, second: int) -> str:
        """Return the name of the gap between the parts with two names."""
        after, ahead_of = (self._texts.text(each) or "?" for each in (first, second))
        if first == NO_TEXT:
            return f"ahead of {ahead_of}"
        return f"after {after}" if second == NO_TEXT else f"between {after} and {ahead_of}"

    def _add_waiting(
        self,
        result: UnitAccounts,
        account: str,
        where: np.ndarray | None,
        ns: np.ndarray,
        ends: np.ndarray,
    ) -> None:
        if where is not None and account != "communication":
            # Only the last backward of a unit waits for other ranks.
            last = np.r_[where[1:] != where[:-1], True] if len(where) else np.zeros(0, bool)
            where, ns, ends = where[last], ns[last], ends[last]
        if where is None:
            result.waiting += ns
        else:
            np.add.at(result.waiting, where, ns)
        _latest(result.waited, where, ends)

    def _sweep(self, result: UnitAccounts, unit: int, units: Block, parts: Block, at: int) -> None:
        """Add the parts of a unit whose parts overlap, or are inside each other."""
        start, length = int(units["start_ns"][unit]), int(units["ns"][unit])
        some = slice(at, at + int(units["parts"][unit]))
        rows = list(
            zip(*(parts[n][some].tolist() for n in ("name", "start_ns", "wall_ns", "ns")),
                strict=True)
        )  # fmt: skip
        intervals = []
        for token, begin, wall, _ in rows:
            account = self.account(token)
            end = min(begin + wall, start + length)
            overrides, text = account in OVERRIDING, self._texts.text(token) or ""
            intervals.append(Interval(max(begin, start), end, 0, account, token, overrides, text))
        times: dict[tuple[str, int], int] = {}
        if int(units["flags"][unit]) & SUMS:
            times = _scaled([(self.account(row[0]), row[0], row[3]) for row in rows], length)
        else:
            for begin, end, each in sweep(intervals):
                key = each.account, each.name
                times[key] = times.get(key, 0) + end - begin
        size = len(units["ns"])
        for each in outermost(intervals):
            result.counts.setdefault(each.account, np.zeros(size, np.int64))[unit] += 1
        for (account, token), ns in times.items():
            named = result.names.setdefault((account, token), np.zeros(size, np.int64))
            named[unit] += ns
            result.accounts.setdefault(account, np.zeros(size, np.int64))[unit] += ns
        backward = [each for each in intervals if each.account == "backward"]
        waits = [each for each in intervals if each.account == "communication"]
        if backward:
            waits.append(max(backward, key=lambda each: each.end))
        for each in waits:
            result.waiting[unit] += max(each.end - each.start, 0)
            result.waited[unit] = max(int(result.waited[unit]), each.end)
        ends = [each.end for each in intervals if each.account == "forward"]
        result.forwarded[unit] = max(ends, default=ABSENT)

    def _add_device_times(
        self, result: UnitAccounts, units: Block, parts: Block, places: np.ndarray
    ) -> None:
        gpu = parts["gpu_ns"]
        is_timed = gpu != ABSENT
        if not is_timed.any():
            return
        count = len(result.device)
        rows, gpu = places[is_timed], np.maximum(gpu[is_timed], 0)
        device = np.zeros(count, np.int64)
        np.add.at(device, rows, gpu)
        has_parts = np.zeros(count, bool)
        has_parts[rows] = True
        result.device[has_parts] = device[has_parts]
        self._add_ahead(result, units, parts, places, is_timed)
        lacking, names = gpu - parts["ns"][is_timed], parts["name"][is_timed]
        for token in np.unique(names).tolist():
            own = (names == token) & (lacking > 0)
            if own.any():
                times = result.lacking.setdefault(self.account(token), np.zeros(count, np.int64))
                np.add.at(times, rows[own], lacking[own])

    def _add_ahead(
        self,
        result: UnitAccounts,
        units: Block,
        parts: Block,
        places: np.ndarray,
        is_timed: np.ndarray,
    ) -> None:
        """Add the time of units that is ahead of the device's work, and in no part."""
        rows = np.flatnonzero(is_timed)
        rows = rows[np.r_[True, places[rows][1:] != places[rows][:-1]]]
        unit = places[rows]
        up_to = np.r_[0, np.cumsum(parts["ns"])]
        covered = up_to[rows] - up_to[(np.cumsum(units["parts"]) - units["parts"])[unit]]
        ahead = parts["start_ns"][rows] - units["start_ns"][unit] - covered
        result.ahead[unit] = np.where(units["flags"][unit] & SUMS, 0, np.maximum(ahead, 0))


def _pairs(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[int, int, np.ndarray | slice]]:
    """Yield each pair of values with the places that have it."""
    if (first == first[0]).all() and (second == second[0]).all():
        yield int(first[0]), int(second[0]), slice(None)
        return
    firsts, at_first = np.unique(first, return_inverse=True)
    seconds, at_second = np.unique(second, return_inverse=True)
    code = at_first.reshape(-1) * len(seconds) + at_second.reshape(-1)
    for each in np.unique(code).tolist():
        yield (
            int(firsts[each // len(seconds)]), int(seconds[each % len(seconds)]),
            np.flatnonzero(code == each),
        )  # fmt: skip


def _by_name(
    names: np.ndarray, places: np.ndarray, count: int
) -> Iterator[tuple[int, Any, np.ndarray | None]]:
    """Yield each name, the rows that have it, and the units of these rows.

    The units are None if each one has the name once.
    """
    size = len(names) // count if count else 0
    if size and len(names) == size * count:
        first = names[:size].tolist()
        table = names.reshape(count, size)
        is_even = bool((places.reshape(count, size) == np.arange(count)[:, None]).all())
        if is_even and len(set(first)) == size and (table == table[0]).all():
            for column, token in enumerate(first):
                yield token, slice(column, None, size), None
            return
    for token in np.unique(names).tolist():
        chosen = np.flatnonzero(names == token)
        yield token, chosen, places[chosen]


def _latest(times: np.ndarray, where: np.ndarray | None, ends: np.ndarray) -> None:
    if where is None:
        np.maximum(times, ends, out=times)
    else:
        np.maximum.at(times, where, ends)


def _scaled(times: list[tuple[str, int, int]], length: int) -> dict[tuple[str, int], int]:
    """Return sums by account and name, made smaller so that they add up to a length."""
    total = sum(ns for *_, ns in times)
    found: dict[tuple[str, int], int] = {}
    for account, token, ns in times:
        key = account, token
        found[key] = found.get(key, 0) + ns * length // max(total, 1)
    return found
