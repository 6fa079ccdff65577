"""The comparison of two runs, step by step, in the order of causes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any, Final

from ....ulp import FORMATS, ulp_distance
from ...records.digest_marks import RNG, TensorDigest
from .numbers import number_text
from .observed_steps import TRACE, Observation, ObservedStep

ObservedPair = tuple[Observation | None, Observation | None]
"""The same quantity in A and in B."""
MAX_RANKS: Final = 1000
"""The maximum number of ranks whose first difference is kept."""


@dataclass(slots=True)
class Divergence:
    """The first difference of a rank."""

    rank: int | None
    step: int
    """The number among A's steps of the rank, from 0; the step id in a trace."""
    epoch: str | None
    index: str | None
    """The number of the step in its epoch."""
    quantity: str
    tensor: str | None = None
    """The first tensor that differs; None if the quantity is not a set of tensors, or if a run has
    no digests of its tensors."""
    ulp: int | None = None
    """The largest distance of known elements; None if none is known, or if exactly one of them is
    a NaN."""
    a: str | None = None
    b: str | None = None
    """The values of both runs, as text; None in a run without the quantity."""
    equal: list[str] = field(default_factory=list)
    """The quantities of the step that are equal up to here, in order."""
    place: int = 0
    """The number of the quantity in the step, from 0."""
    sides: ObservedPair = (None, None)
    ignored: frozenset[str] = frozenset()
    """Tensors of which the difference has no effect."""
    only: frozenset[str] | None = None
    """The tensors that should be equal; None: all of them."""
    mismatch: str | None = None
    """The tensors of both runs in this place, if these are not of one name, dtype and shape."""
    missing_from: str | None = None
    """`A` or `B` if that trace does not have the step."""
    failed: list[str] = field(default_factory=list)
    """The quantities up to here of which a run has no complete digest."""

    def considered(self, tensors: list[TensorDigest]) -> list[TensorDigest]:
        """Return the tensors that may be the cause."""
        return [
            each
            for each in tensors
            if each.name not in self.ignored and (self.only is None or each.name in self.only)
        ]

    @property
    def has_numbers(self) -> bool:
        """Whether the values are numbers of which all bits are known."""
        return all(each is not None and bool(each.numbers) for each in self.sides)

    def to_json(self) -> dict[str, Any]:
        """Return the place of the difference as a JSON object."""
        return {
            "rank": self.rank, "step": self.step, "epoch": _number(self.epoch),
            "index": _number(self.index), "quantity": self.quantity, "tensor": self.tensor,
            "ulp": self.ulp,
        }  # fmt: skip


@dataclass(slots=True)
class RankComparison:
    """The comparison of one rank of two runs."""

    rank: int | None
    compared: int = 0
    """The number of steps with digests in both runs."""
    differing: int = 0
    """The number of compared steps that differ in more than the states of generators."""
    only_a: int = 0
    only_b: int = 0
    """The numbers of steps that only one of the runs has."""
    failed: int = 0
    """The number of digests of compared steps that a run could not take completely."""
    first: Divergence | None = None
    """The first difference, set by `settle`."""
    generators: Divergence | None = None
    """The first difference of the generators of random numbers."""
    results: Divergence | None = None
    """The first difference of another quantity."""
    start: int | None = None
    """The lowest compared step."""
    ends: tuple[str, int] | None = None
    """The run, `A` or `B`, that ends within a step of the other, and the step's number in it."""
    at_results: ObservedPair = (None, None)
    at_end: ObservedPair = (None, None)
    """The states of the generators in the step of `results`, and in the last one."""
    idle: list[str] = field(default_factory=list)
    """The generators that differ without effect: neither run uses them, or they are restored."""
    is_lasting: bool = False
    """Whether the generators also differ in a step after that of `generators`."""
    had_effectless: bool = False
    """Whether the generators differed in steps in which nothing else did, and then were equal."""

    def observe(self, a: ObservedStep, b: ObservedStep, tolerance: int = 0) -> None:
        """Compare the same step of both runs."""
        self.compared += 1
        self.failed += sum(map(_is_failed, a.observations, b.observations))
        self.start = a.step if self.start is None else min(self.start, a.step)
        states = _generators(a), _generators(b)
        self.at_end = states
        divergence = first_difference(a, b, tolerance)
        self._observe_end(divergence, a, b)
        if divergence is None and self.generators is not None and self.results is None:
            # A resumed training may restore its generators after it has fetched a batch.
            self.generators, self.is_lasting, self.had_effectless = None, False, True
        if divergence is not None and divergence.quantity == RNG:
            self.is_lasting = self.generators is not None
            if self.generators is None or divergence.step < self.generators.step:
                self.generators = divergence
            divergence = first_difference(a, b, tolerance, after=divergence.place)
        if divergence is not None:
            self.differing += 1
            if self.results is None or divergence.step < self.results.step:
                self.results, self.at_results = divergence, states

    def _observe_end(self, divergence: Divergence | None, a: ObservedStep, b: ObservedStep) -> None:
        """Note which of the runs ends within a step."""
        lengths = len(a.observations), len(b.observations)
        if divergence is not None and divergence.quantity != RNG:
            return
        if a.is_cut and lengths[0] < lengths[1]:
            self.ends = "A", a.step
        elif b.is_cut and lengths[1] < lengths[0]:
            self.ends = "B", b.step

    def miss(self, a: ObservedStep | None, b: ObservedStep | None) -> None:
        """Count a step that only one of the runs has. In a trace that is a difference."""
        self.only_a += b is None
        self.only_b += a is None
        step = a if a is not None else b
        if step is None or step.source != TRACE:
            return
        if self.results is None or step.step < self.results.step:
            loss = step.observations[0]
            sides, missing = ((None, loss), "A") if a is None else ((loss, None), "B")
            self.results = Divergence(
                step.rank, step.step, None, step.number, loss.quantity, sides=sides,
                missing_from=missing,
            )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object."""
        ends = self.ends
        return {
            "rank": self.rank, "compared": self.compared, "differing": self.differing,
            "only_a": self.only_a, "only_b": self.only_b, "failed": self.failed,
            "ends": None if ends is None else {"run": ends[0], "step": ends[1]},
            "divergence": None if self.first is None else self.first.to_json(),
        }  # fmt: skip


@dataclass(slots=True)
class RunComparison:
    """The comparison of two runs."""

    ranks: list[RankComparison] = field(default_factory=list)
    """In order; at most 1,000."""
    dropped: tuple[int, int] = (0, 0)
    """The numbers of marks that the processes of A and B dropped; digests may be among them."""
    left_out: int = 0
    """The number of ranks that are not compared."""

    @property
    def compared(self) -> int:
        """The number of compared steps of all ranks."""
        return sum(each.compared for each in self.ranks)

    @property
    def failed(self) -> int:
        """The number of digests of compared steps that a run could not take completely."""
        return sum(each.failed for each in self.ranks)

    @property
    def first(self) -> Divergence | None:
        """The earliest difference of all ranks: by step, then by cause, then by rank."""
        differences = [each.first for each in self.ranks if each.first is not None]
        return min(differences, key=lambda each: (each.step, each.place), default=None)

    @property
    def is_complete(self) -> bool:
        """Whether both runs have the same steps, and neither ends within one."""
        return not any(each.only_a or each.only_b or each.ends for each in self.ranks)

    @property
    def is_identical(self) -> bool:
        """Whether both runs have the same steps, and all of their digests, which are equal."""
        is_equal = bool(self.compared) and self.first is None
        is_known = not (self.failed or any(self.dropped) or self.left_out)
        return is_equal and self.is_complete and is_known

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object, without the first difference."""
        return {
            "identical": self.is_identical,
            "compared": self.compared,
            "failed": self.failed,
            "ranks_left_out": self.left_out,
            "dropped": dict(zip("ab", self.dropped, strict=True)),
            "ranks": [each.to_json() for each in self.ranks],
        }


def compare_runs(
    a: Iterable[ObservedStep], b: Iterable[ObservedStep], tolerance: int = 0
) -> RunComparison:
    """Compare the steps of two runs; each iterable is in order of the keys.

    `settle` then names the first difference of a rank.
    Numbers that are recorded exactly are equal if they are at most `tolerance` ULPs apart.
    """
    ranks: dict[int, RankComparison] = {}
    left_out, last = 0, None
    for one, other in _pairs(a, b):
        recorded_rank = next(each.rank for each in (one, other) if each is not None)
        number = recorded_rank or 0
        if number not in ranks and len(ranks) >= MAX_RANKS:
            left_out += number != last  # the steps of a rank follow each other
            last = number
            continue
        rank = ranks.setdefault(number, RankComparison(recorded_rank))
        if one is None or other is None:
            rank.miss(one, other)
            continue
        rank.observe(one, other, tolerance)
    compared = [ranks[number] for number in sorted(ranks)]
    return RunComparison(compared, left_out=left_out)


def _generators(step: ObservedStep) -> Observation | None:
    return next((each for each in step.observations if each.quantity == RNG), None)


def first_difference(
    a: ObservedStep, b: ObservedStep, tolerance: int = 0, after: int = -1
) -> Divergence | None:
    """Return the first quantity of a step that differs, in the order of observation.

    Quantities up to the place `after` count as equal, as do those without a complete digest. The
    last step of a run that an error ended may lack the last quantities.
    """
    equal: list[str] = []
    failed: list[str] = []
    for place, (one, other) in enumerate(zip_longest(a.observations, b.observations)):
        if one is not None and other is not None and one.quantity == other.quantity:
            if _is_failed(one, other):
                failed.append(one.quantity)
                continue
            difference = None if place <= after else _difference(one, other, tolerance)
            if difference is None:
                equal += [one.quantity] if place > after else []
                continue
            quantity = one.quantity
        elif (a if one is None else b).is_cut and None in (one, other):
            return None  # a run ends here
        else:  # one of the runs has done something else
            present = one or other
            quantity = "" if present is None else present.quantity
            difference = None, None, one and one.value, None
        return Divergence(
            a.rank, a.step, a.epoch, a.number, quantity, *difference, equal, place, (one, other),
            failed=failed,
        )  # fmt: skip
    return None


def _is_failed(a: Observation, b: Observation) -> bool:
    """Return whether two digests of a quantity cannot be compared."""
    return a.quantity == b.quantity and (a.is_failed or b.is_failed)


_Difference = tuple[str | None, int | None, str | None, str | None]
"""The first tensor of a quantity that differs, its distance, and both values as text."""


def _difference(a: Observation, b: Observation, tolerance: int) -> _Difference | None:
    """Return the difference of a quantity.

    If there are digests, equal ones are equal bits, and others may be within the tolerance.
    """
    has_digests = a.value is not None and b.value is not None
    if has_digests and a.value == b.value:
        return None
    if not a.numbers or not b.numbers:
        return None, None, a.value, b.value
    for one, other in zip(a.numbers, b.numbers, strict=True):
        if one.dtype == other.dtype and one.dtype in FORMATS:
            ulp = ulp_distance(one.bits, other.bits, one.dtype)
            is_equal = ulp is not None and ulp <= tolerance
        else:
            ulp, is_equal = None, one == other and not has_digests
        if not is_equal or (has_digests and not tolerance):
            return one.tensor, ulp, number_text(one), number_text(other)
    return None


def _pairs(
    a: Iterable[ObservedStep], b: Iterable[ObservedStep]
) -> Iterator[tuple[ObservedStep | None, ObservedStep | None]]:
    """Yield the steps of both runs by their keys; None for a run without the step.

    If a job was restarted, and the other was not, a repeated step counts in its last attempt.
    Otherwise the nth attempts belong together.
    """
    sides = ((step.key, 0, step) for step in a), ((step.key, 1, step) for step in b)
    steps = heapq.merge(*sides, key=lambda each: each[0])
    for _, group in groupby(steps, key=lambda each: each[0]):
        attempts: tuple[dict[int, ObservedStep], ...] = {}, {}
        counts = [0, 0]
        for _, side, step in group:
            attempts[side][step.attempt] = step
            counts[side] = step.attempts
        one, other = attempts
        both = sorted(one.keys() & other.keys()) if counts[0] == counts[1] else []
        yield from ((one[number], other[number]) for number in both)
        last = one.get(counts[0]), other.get(counts[1])
        if any(last) and counts[0] not in both:
            yield last


def _number(text: str | None) -> int | str | None:
    """Return a number of a step as an integer if it is one."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return text
