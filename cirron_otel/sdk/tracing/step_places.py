"""The epoch and the global step of each step, as attributes of its record.

A query then needs neither a step's parent nor the preceding steps. Both values are computed when
the record is created, on the flush thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...ids import INT64_LIMIT
from .phase import STEPS
from .scope import MAX_DEPTH, NO_SESSION

EPOCH_ATTRIBUTE: Final = "epoch"
GLOBAL_STEP: Final = "global_step"
_EPOCH = "epoch"
_LOOPS = frozenset((_EPOCH, "request", *STEPS))


class StepPlaces:
    """Counts the steps of a session, in the order in which they ended.

    A step's number within its epoch gives the number of preceding steps, even if some of them were
    dropped. Numbers that continue from one epoch to the next are kept unchanged.
    """

    __slots__ = ("_above", "_epoch", "_first", "_index", "_is_inner", "_last")

    def __init__(self) -> None:
        """Start at zero: no step has ended yet."""
        self._above: Any = None
        self._epoch: int | None = None
        self._is_inner = False
        self._first = self._index = self._last = -1

    def copy(self) -> StepPlaces:
        """Return a copy that counts independently."""
        copy = StepPlaces()
        for name in self.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def place(self, scope: Any, index: int) -> dict[str, Any]:
        """Return the attributes of an ended step whose number within its epoch is `index`.

        A step inside another step is part of it and is not counted.
        """
        parent = scope._above
        if parent is self._above and index == self._index + 1 and not self._is_inner:
            self._index += 1  # the usual case: the next step of the same epoch
            self._last = number = self._last + 1
            if self._epoch is None:
                return {GLOBAL_STEP: number}
            return {EPOCH_ATTRIBUTE: self._epoch, GLOBAL_STEP: number}
        if parent is not self._above:
            self._above = parent
            self._epoch, self._is_inner = _surroundings(parent)
        place = {} if self._epoch is None else {EPOCH_ATTRIBUTE: self._epoch}
        if not self._is_inner:
            number = self._next(index)
            if -INT64_LIMIT <= number < INT64_LIMIT:
                place[GLOBAL_STEP] = number
        return place

    def _next(self, index: int) -> int:
        if self._index < 0:
            self._first = min(max(index, 0), 1)
            number = index
        elif index > self._index:
            number = self._last + index - self._index
        else:
            number = self._last + max(index - self._first, 0) + 1
        self._index, self._last = max(index, 0), number
        return number


def has_loop(scopes: Iterable[Any]) -> bool:
    """Return whether one of the scopes is an epoch, a step or a request."""
    return any(type(scope._name) is str and scope._name in _LOOPS for scope in scopes)


def is_step(scope: Any) -> bool:
    """Return whether a scope is a step; a step with a numeric index gets these attributes."""
    return type(scope._name) is str and scope._name in STEPS


def _surroundings(scope: Any) -> tuple[int | None, bool]:
    """Return the number of the enclosing epoch, and whether there is an enclosing step."""
    epoch = None
    is_inner = False
    for _ in range(MAX_DEPTH):
        if scope is NO_SESSION or scope is None:
            break
        name, index = scope._name, scope._index
        if type(name) is str:
            is_inner = is_inner or name in STEPS
            if epoch is None and name == _EPOCH and type(index) is int and abs(index) < INT64_LIMIT:
                epoch = index
        scope = getattr(scope, "_above", None)
    return epoch, is_inner
