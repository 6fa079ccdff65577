"""Hashes of ids, by which repeated records are found in little memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

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


def sorted_hashes(parts: list[np.ndarray]) -> np.ndarray:
    """Return all hashes of ids in order, without those of missing ones.

    Empty the list, so that the memory of the parts can be used.
    """
    hashes: np.ndarray = np.concatenate([np.zeros(0, np.int64), *parts])
    parts.clear()
    if not hashes.all():
        hashes = hashes[hashes != 0]
    hashes.sort()
    return hashes


def contains(hashes: np.ndarray, id_: str) -> bool:
    """Return whether an id is among those with hashes in order."""
    place = int(np.searchsorted(hashes, hash(id_)))
    return place < len(hashes) and bool(hashes[place] == hash(id_))


def has_repeated(parts: list[np.ndarray]) -> bool:
    """Return whether an id may occur twice. Empty the list like `sorted_hashes`."""
    hashes = sorted_hashes(parts)
    return bool((hashes[1:] == hashes[:-1]).any())
