"""The steps of a run that have digests, and the rule by which they are numbered.

Recorded runs and runs that are being recorded use the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....ulp import FORMATS
from .numbers import ExactNumber

DIGESTS, TRACE = 0, 1
"""The sources of steps: marks with digests, and records of a DGRR trace."""


class Observation(NamedTuple):
    """A quantity of a step."""

    quantity: str
    value: str | None
    """The digest; None in a trace."""
    file: int
    """The number of the batch in the run."""
    position: int
    """The position of the mark in its batch."""
    numbers: tuple[ExactNumber, ...] = ()
    """The numbers that are the quantity; empty if it is known by its digest only."""
    is_failed: bool = False
    """Whether tensors are missing from the digest, so that equal ones prove nothing."""


class StepKey(NamedTuple):
    """The numbers by which a step is found in another run."""

    rank: int
    """0 for a process without a rank."""
    epoch: str | None
    number: str | None
    turn: int


class ObservedStep(NamedTuple):
    """A step with the quantities that were observed in it."""

    source: int
    rank: int | None
    epoch: str | None
    number: str | None
    """The number in the epoch; the step id in a trace."""
    turn: int
    """The number of the step among those with the same epoch and index, from 1."""
    attempt: int
    attempts: int
    """The number of sessions that have the step: more than one after a restart."""
    step: int
    """The number among the steps of the rank, from 0; the step id in a trace."""
    observations: list[Observation]
    """In the order in which they were observed."""
    is_cut: bool = False
    """Whether the step ended with an error, and its session has no later one."""

    @property
    def key(self) -> tuple[Any, ...]:
        """The key that the same step has in another run; keys are in order."""
        return sortable_key(
            StepKey(self.rank or 0, self.epoch, self.number, self.turn), self.source
        )

    @property
    def values(self) -> tuple[str | None, ...]:
        """The digests as text."""
        return tuple(each.value for each in self.observations)

    def of(self, quantity: str) -> list[Observation]:
        """Return the observations of a quantity."""
        return [each for each in self.observations if each.quantity == quantity]


def sortable(number: str | None) -> tuple[int, str]:
    """Return a key that puts numbers, as text, in order."""
    return (-1, "") if number is None else (len(number), number)


def sortable_key(key: StepKey, source: int = DIGESTS) -> tuple[Any, ...]:
    """Return the key of a step for the order of the steps of a run."""
    return (source, key.rank, *sortable(key.epoch), *sortable(key.number), key.turn)


_Number = tuple[int, str]


@dataclass(slots=True)
class Numbering:
    """Counts the turns of the numbers of a session's steps, which are taken in order.

    A second training of the same process repeats the numbers of epochs and steps. A range is the
    numbers of an epoch from the first one on that is not above the one before it.
    """

    _ranges: dict[str | None, list[tuple[_Number, _Number]]] = field(default_factory=dict)
    _unnumbered: dict[str | None, int] = field(default_factory=dict)
    """How many steps of each epoch had no number."""

    def turn_of(self, epoch: str | None, number: str | None) -> int:
        """Return the turn of the next step: 1 if its numbers occur for the first time."""
        if number is None:
            return self._unnumbered.get(epoch, 0) + 1
        key = sortable(number)
        return 1 + sum(first <= key <= last for first, last in self._ranges.get(epoch, ()))

    def take(self, epoch: str | None, number: str | None) -> int:
        """Count a step, and return its turn."""
        turn, key = self.turn_of(epoch, number), sortable(number)
        if number is None:
            self._unnumbered[epoch] = turn
            return turn
        ranges = self._ranges.setdefault(epoch, [])
        if ranges and key > ranges[-1][1]:
            ranges[-1] = ranges[-1][0], key
        else:
            ranges.append((key, key))
        return turn


def numbers_of(dtype: str | None, bits: int | None) -> tuple[ExactNumber, ...]:
    """Return the number that is a loss; none if its bits are not recorded."""
    form = None if dtype is None else FORMATS.get(dtype)
    is_valid = bits is not None and bits >= 0 and (form is None or bits < 1 << form.bits)
    return (ExactNumber(None, dtype, bits),) if dtype and bits is not None and is_valid else ()
