"""Hashes of ids, by which repeated records are found in little memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .columns import Columns
from .errors import NotReducibleError


def hashes_of(ids: Iterable[str | None]) -> np.ndarray:
    """Return a hash of each id; 0 for a missing one.

    Raises NotReducibleError for an id of which the hash is 0, such as an empty text.
    """
    known = list(ids)
    missing = known.count(None)
    found = [0 if each is None else hash(each) for each in known] if missing else map(hash, known)
    hashes = np.fromiter(found, np.int64, len(known))
    if (hashes == 0).sum() != missing:
        raise NotReducibleError("an id has the hash of a missing one")
    return hashes


class IdHashes:
    """The hashes of many ids, which are in a temporary file until they are sorted."""

    def __init__(self) -> None:
        self._rows = Columns("hash")

    def add(self, ids: Iterable[str | None]) -> None:
        """Add some ids. Raises NotReducibleError like `hashes_of`."""
        self._rows.append(hashes_of(ids)[:, None])

    def ordered(self) -> np.ndarray:
        """Return all hashes in order, without those of missing ids. No ids can be added later.

        Raises NotReducibleError if an id may occur twice.
        """
        hashes: np.ndarray = self._rows.taken("hash")[:, 0]
        del self._rows
        if not hashes.all():
            hashes = hashes[hashes != 0]
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any():
            raise NotReducibleError("a record occurs twice")
        return hashes


def contains(hashes: np.ndarray, id_: str) -> bool:
    """Return whether an id is among those with hashes in order."""
    place = int(np.searchsorted(hashes, hash(id_)))
    return place < len(hashes) and bool(hashes[place] == hash(id_))


def are_in(hashes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which of other hashes are among hashes in order."""
    if not len(hashes):
        return np.zeros(len(others), bool)
    found: np.ndarray = hashes[np.searchsorted(hashes, others) % len(hashes)] == others
    return found
