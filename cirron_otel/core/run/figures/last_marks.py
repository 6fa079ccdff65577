"""The last losses before some times: a fold over blocks of the relation `mark`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from ..relations import ABSENT, Block, Texts
from .series import value_of

_LOSS: Final = "loss"


class LastLoss(NamedTuple):
    """A mark that is named `loss`, or whose name contains that word."""

    name: str
    value: str | None


class LastLossFold:
    """The last loss of each rank up to each of some times; one named `loss` is preferred."""

    def __init__(self, texts: Texts, times: Iterable[int]) -> None:
        """`times` are in Unix ns."""
        self._texts = texts
        self._times = sorted(set(times))
        self._is_loss: dict[int, bool] = {}
        self._found: dict[tuple[int, int], tuple[bool, int, int, int, int, int]] = {}

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        if not self._times:
            return
        names = block["name"]
        losses = [token for token in np.unique(names).tolist() if self._names_loss(token)]
        is_due = (block["on_scope"] == 1) & (block["ts_ns"] != ABSENT) & np.isin(names, losses)
        if not is_due.any():
            return
        columns = ("rank", "ts_ns", "no", "name", "type", "value")
        rank, ts_ns, no, name, kind, value = (block[each][is_due] for each in columns)
        is_first = name == self._texts.token(_LOSS)
        order = np.lexsort((no, ts_ns, is_first, rank))
        for time in self._times:
            places = order[ts_ns[order] <= time]
            ranks = rank[places]
            for place in (
                places[np.flatnonzero(np.r_[ranks[1:] != ranks[:-1], True])] if len(places) else ()
            ):
                found = (
                    bool(is_first[place]), int(ts_ns[place]), int(no[place]), int(name[place]),
                    int(kind[place]), int(value[place]),
                )  # fmt: skip
                key = time, int(rank[place])
                known = self._found.get(key)
                if known is None or found[:3] > known[:3]:
                    self._found[key] = found

    def _names_loss(self, token: int) -> bool:
        found = self._is_loss.get(token)
        if found is None:
            found = self._is_loss[token] = _LOSS in _lower(self._texts.text(token) or "")
        return found

    def last(self, rank: int | None, time_ns: int | None) -> LastLoss | None:
        """Return the last loss of a rank up to one of the times."""
        if time_ns is None:
            return None
        found = self._found.get((time_ns, ABSENT if rank is None else rank))
        if found is None:
            return None
        *_, name, kind, value = found
        return LastLoss(self._texts.text(name) or "", value_of(self._texts, kind, value))


def _lower(text: str) -> str:
    """Return a text with its ASCII letters in lower case."""
    return "".join(each.lower() if each.isascii() else each for each in text)
