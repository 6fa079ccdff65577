"""The pass over a loader whose `__iter__` is a generator (see `own_iteration`)."""

from __future__ import annotations

import weakref
from typing import Any


class OwnPass:
    """Represents one such generator, in the place of the iterator that the generator reads."""

    __slots__ = ("__weakref__", "_dataset", "_source")

    def __init__(self, loader: Any) -> None:
        self._dataset = getattr(loader, "dataset", self)
        self._source: Any = None

    def represents(self, iterator: Any) -> bool:
        """Return whether `iterator` is the one that the generator reads, if it reads several."""
        source = None if self._source is None else self._source()
        if source is None:
            self._source, source = weakref.ref(iterator), iterator
        return source is iterator

    def forget(self) -> None:
        """Represent the next iterator that the generator reads: the present one is exhausted."""
        self._source = None
