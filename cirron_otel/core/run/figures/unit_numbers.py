"""The numbers of units over the whole run, equal on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ..relations import NO_TEXT, Block, Texts

_NO_EPOCH: Final = -1
_BITS: Final = 40
_MOST: Final = 1 << _BITS


class UnitNumbers:
    """Numbers the units of each lane by their epoch and index.

    A unit with the epoch and the index of an earlier unit of another process repeats it, and has
    the same number. Within a process, it is another unit.
    """

    def __init__(self, texts: Texts, epoch_of: Callable[[int], str | None]) -> None:
        """`epoch_of` returns the number of the epoch of units by the token of their parent."""
        self._texts, self._epoch_of = texts, epoch_of
        self._places: dict[int, int] = {}
        """The place of the epoch by the token of the units' parent."""
        self._by_epoch: dict[str, int] = {}
        self._indexes: dict[int, int] = {}
        """Numbers of the indexes that are no short decimal numbers."""
        self._pairs: dict[tuple[int, int], int] = {}
        """Numbers of the pairs of a key and how often it occurred in its process."""
        self._ordered: np.ndarray | None = None
        """The keys of the first lane, in the order of their numbers."""
        self._sorted: np.ndarray = np.zeros(0, np.int64)
        self._numbers: np.ndarray = np.zeros(0, np.int64)
        self._places_in_order: np.ndarray = np.zeros(0, np.int64)

    @property
    def epochs(self) -> list[str]:
        """The numbers of the epochs, as recorded, by their places."""
        return list(self._by_epoch)

    def keys(self, units: Block) -> np.ndarray:
        """Return a number for each unit that encodes its epoch and its index."""
        parent, index = units["parent"], units["idx"]
        is_new = np.r_[len(parent) > 0, parent[1:] != parent[:-1]]
        firsts = np.flatnonzero(is_new)
        places = [self._place(token) for token in parent[firsts].tolist()]
        epochs = np.repeat(np.array(places, np.int64), np.diff(np.r_[firsts, len(parent)]))
        is_odd = (index < 0) | (index >= _MOST // 2)
        if is_odd.any():
            index = index.copy()
            odd = [self._index(token) for token in index[is_odd].tolist()]
            index[is_odd] = np.array(odd, np.int64)
        keys: np.ndarray = (epochs + 1) * _MOST + index
        return keys

    def _place(self, parent: int) -> int:
        found = self._places.get(parent)
        if found is None:
            epoch = None if parent == NO_TEXT else self._epoch_of(parent)
            found = (
                _NO_EPOCH
                if epoch is None
                else self._by_epoch.setdefault(epoch, len(self._by_epoch))
            )
            self._places[parent] = found
        return found

    def _index(self, token: int) -> int:
        return _MOST // 2 + self._indexes.setdefault(token, len(self._indexes))

    @staticmethod
    def epoch_places(keys: np.ndarray) -> np.ndarray:
        """Return the place of each unit's epoch; -1 without one."""
        places: np.ndarray = (keys >> _BITS) - 1
        return places

    def of_lane(self, keys: np.ndarray, process: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each unit of a lane, and whether a later process repeats it."""
        keys = self._distinct(keys, process)
        if self._ordered is None:
            unique, at, where = np.unique(keys, return_index=True, return_inverse=True)
            order = np.argsort(at, kind="stable")
            numbers = np.empty(len(unique), np.int64)
            numbers[order] = np.arange(len(unique))
            self._ordered, self._sorted, self._numbers = unique[order], unique, numbers
            found = numbers[where]
            self._places_in_order = np.arange(len(unique))
        elif np.array_equal(keys, self._ordered):
            found = self._places_in_order
        else:
            found = self._known(keys)
        return found, _repeated(found, process)

    def _known(self, keys: np.ndarray) -> np.ndarray:
        new = np.setdiff1d(keys, self._sorted)
        if len(new):
            # New numbers follow in the order of the lane.
            _, at = np.unique(keys, return_index=True)
            order = keys[np.sort(at)]
            order = order[np.isin(order, new)]
            every = np.concatenate([self._sorted, order])
            numbers = np.concatenate([
                self._numbers, len(self._sorted) + np.arange(len(order))
            ])  # fmt: skip
            places = np.argsort(every, kind="stable")
            self._sorted, self._numbers = every[places], numbers[places]
        return self._numbers[np.searchsorted(self._sorted, keys)]

    def _distinct(self, keys: np.ndarray, process: np.ndarray) -> np.ndarray:
        """Return the keys with those distinguished that occur again in the same process."""
        if len(keys) < 2 or (keys[1:] > keys[:-1]).all():
            return keys
        order = np.lexsort((np.arange(len(keys)), keys, process))
        sorted_keys, sorted_process = keys[order], process[order]
        is_new = np.r_[
            True,
            (sorted_keys[1:] != sorted_keys[:-1]) | (sorted_process[1:] != sorted_process[:-1]),
        ]
        if is_new.all():
            return keys
        place = np.arange(len(keys))
        occurrence = place - np.maximum.accumulate(np.where(is_new, place, 0))
        again = np.empty(len(keys), np.int64)
        again[order] = occurrence
        # Negative keys are free: a pair of a key and its occurrence becomes a new one.
        distinct = keys.copy()
        for at in np.flatnonzero(again).tolist():
            pair = int(keys[at]), int(again[at])
            distinct[at] = -1 - self._pairs.setdefault(pair, len(self._pairs))
        return distinct


def _repeated(numbers: np.ndarray, process: np.ndarray) -> np.ndarray:
    """Return whether a later process has a unit with the same number."""
    if not len(process) or process[-1] == process[0]:
        return np.zeros(len(numbers), bool)
    last = np.zeros(int(numbers.max()) + 1, np.int64)
    np.maximum.at(last, numbers, process)
    repeated: np.ndarray = last[numbers] > process
    return repeated
