"""The rule for the phases of one unit: which scopes inside it count, and for how long.

`analysis/breakdown.py` has the names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from ....semconv import MICRO_STEP
from ...analysis.breakdown import OPTIMIZER_STEP, ends_closure, holds_phases, is_phase
from ...records.rows import IndexedSpan

Numbered: TypeAlias = tuple[int, IndexedSpan]
"""A span with its number in the recording."""
Children: TypeAlias = Callable[[str | None], Sequence[Numbered]]
"""Returns the spans directly inside the span with an id."""
MOST_NS: Final = 2**63 - 1
"""The longest duration, ns."""


@dataclass(slots=True)
class Part:
    """A scope inside a unit: a phase, or one that may contain phases."""

    no: int
    span: IndexedSpan
    is_phase: bool
    phase: Part | None
    """The innermost phase around it."""
    inner: list[Part] | None = None
    """The phases whose innermost phase is this one."""

    @property
    def ns(self) -> int | None:
        """The duration, ns."""
        return duration_of(self.span)

    @property
    def gpu_ns(self) -> int | None:
        """The time on the device, ns; None if it was not measured."""
        return None if self.span.gpu_ns is None else max(self.span.gpu_ns, 0)


def duration_of(span: IndexedSpan) -> int | None:
    """Return the duration of a span in ns, not negative; None if a time is missing.

    A duration of more than 64 bits counts as missing.
    """
    start, end = span.start_ns, span.end_ns
    if start is None or end is None:
        return None
    ns = end - start
    if ns < 0:
        return 0
    return ns if ns <= MOST_NS else None


def parts_of(first: Sequence[Numbered], children: Children) -> list[Part]:
    """Return the parts of a unit whose direct children are `first`, in the order of their numbers.

    Scopes inside a phase that holds no phases are not parts.
    """
    parts = [Part(no, span, span.name != MICRO_STEP, None) for no, span in first]
    todo = list(parts)
    while todo:
        part = todo.pop()
        name = part.span.name
        is_micro = name == MICRO_STEP
        if not ((is_micro and not part.is_phase) or holds_phases(name)):
            continue
        for no, span in children(part.span.id):
            phase = part if part.is_phase else part.phase
            inside = Part(no, span, is_micro or is_phase(span.name), phase)
            if inside.is_phase and phase is not None:
                phase.inner = [*(phase.inner or ()), inside]
            parts.append(inside)
            todo.append(inside)
    return sorted(parts, key=lambda part: part.no)


def own_times(part: Part) -> tuple[int, int | None]:
    """Return the time of a phase without the phases inside it, on the host and on the device, ns.

    An optimizer updates the weights after its closure has returned, that is, after the closure's
    backward pass and the phases that follow it. The time between phases inside the closure is the
    trainer's, not the optimizer's.
    """
    inner, ns, gpu_ns = part.inner or [], part.ns or 0, part.gpu_ns
    if not inner:
        return ns, gpu_ns
    if gpu_ns is not None:
        gpu_ns = max(gpu_ns - sum(each.gpu_ns or 0 for each in inner), 0)
    is_closure = part.span.name == OPTIMIZER_STEP and any(
        each.span.name == "backward" for each in inner
    )
    start = part.span.start_ns
    if not is_closure or start is None:
        return max(ns - sum(each.ns or 0 for each in inner), 0), gpu_ns
    ends = [
        each.span.start_ns + each.ns
        for each in inner
        if each.span.start_ns is not None and each.ns is not None
    ]
    if not ends:
        return _gaps(inner), gpu_ns
    return min(_gaps(inner) + max(start + ns - max(start, *ends), 0), MOST_NS), gpu_ns


def _gaps(inner: Sequence[Part]) -> int:
    """Return the time from the end of each closure to the phase after it."""
    ordered = sorted(inner, key=lambda part: (_start(part), part.no))
    total = 0
    for part, following in pairwise(ordered):
        name, next_name = part.span.name, following.span.name
        if ends_closure(name) and next_name is not None and not ends_closure(next_name):
            start, next_start, ns = part.span.start_ns, following.span.start_ns, part.ns
            if start is not None and next_start is not None and ns is not None:
                total += max(next_start - start - ns, 0)
    return min(total, MOST_NS)


def _start(part: Part) -> tuple[bool, int]:
    start = part.span.start_ns
    return start is not None, start or 0
