"""The figures of each step, as attributes of its record: its loss, its length, the time it waits.

A backend that stores spans can then filter and plot them without a query over marks or children.
docs/otlp-mapping.md, "Steps", defines each value. All are computed on the flush thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...semconv import LOSS, MICRO_STEP, UNIT_NS, WAITING_NS
from ..tracing.buffers import MarkEntry
from ..tracing.coerce import Deferred
from ..tracing.enclosing import EnclosingSpan
from ..tracing.loops import STEP
from ..tracing.scope import NO_SESSION, Scope
from .json_attributes import plain
from .span_rows import recorded_above

_NO_WORK: Final = frozenset({"data_load", MICRO_STEP})
"""The phase in which a step waits for its batch, and scopes whose children are phases."""
_MOST_OPEN: Final = 1_000
"""Maximum number of steps without a record whose figures are retained."""


class StepFigures:
    """The figures of the steps that have no record yet."""

    __slots__ = ("_losses", "_work")

    def __init__(self) -> None:
        """Start without steps."""
        self._work: dict[Scope, int] = {}
        """The time in phases other than `data_load`, ns; a step without phases has none."""
        self._losses: dict[Scope, tuple[int, float]] = {}
        """The time and the value of the last loss."""

    def copy(self) -> StepFigures:
        """Return a copy that changes independently."""
        copy = StepFigures()
        copy._work, copy._losses = self._work.copy(), self._losses.copy()
        return copy

    def add(
        self, ended: Iterable[Scope], entries: Iterable[MarkEntry], partial: Iterable[Scope] = ()
    ) -> None:
        """Add the scopes and marks of a flush. The loop does little: it runs for every scope.

        `partial` are steps of which only some phases are recorded.
        """
        work = self._work
        last_parent: Any = None
        last_above: Any = None
        step: Any = None
        is_inner = False
        total = 0
        for scope in ended:
            parent: Any = scope._above
            if parent is not last_parent:
                if step is not None:
                    work[step] = work.get(step, 0) + total
                last_parent, total = parent, 0
                name = parent._name
                if parent._id and type(name) is str and name == STEP:  # the usual case
                    if parent._above is not last_above:
                        last_above = parent._above
                        is_inner = step_around(last_above) is not None
                    step = None if is_inner else parent
                else:
                    is_foreign = type(parent) is EnclosingSpan
                    step = step_of_phases(parent.scope if is_foreign else parent)
            if step is not None:
                name = scope._name
                if type(name) is not str or name not in _NO_WORK:
                    total += scope._end - scope._start
        if step is not None:
            work[step] = work.get(step, 0) + total
        for step in partial:
            work.pop(step, None)
        for entry in [each for each in entries if type(each[1]) is str and each[1] == LOSS]:
            self._add_loss(entry)
        for retained in (work, self._losses):
            if len(retained) > _MOST_OPEN:
                _forget_recorded(retained, ended)

    def _add_loss(self, entry: MarkEntry) -> None:
        step = step_around(entry[0])
        if step is None:
            return
        value = number(entry[2])
        before = self._losses.get(step)
        if value is not None and (before is None or before[0] <= entry[3]):
            self._losses[step] = entry[3], value

    def of(self, step: Any) -> dict[str, Any]:
        """Return the attributes of an ended scope named `step`, and forget it.

        A step inside another step has none.
        """
        work = self._work.pop(step, None)
        if work is None and not is_outermost(step):
            return {}
        length = step._end - step._start
        figures: dict[str, Any] = {UNIT_NS: length}
        if work is not None:
            figures[WAITING_NS] = length - work if work < length else 0
        loss = self._losses.pop(step, None)
        if loss is not None:
            value = loss[1]
            figures[LOSS] = value if value - value == 0.0 else plain(value)  # NaN, infinity
        return figures


def _forget_recorded(retained: dict[Scope, Any], ended: Iterable[Scope]) -> None:
    """Drop the oldest steps, whose records exist already or were dropped."""
    current = set(ended)
    old = [step for step in retained if step._end and step not in current]
    for step in old[: len(retained) - _MOST_OPEN]:
        del retained[step]


def step_of_phases(scope: Any) -> Any:
    """Return the step whose phases are the children of a scope; None if they are not phases.

    The scope is an outermost step, or a micro step of one.
    """
    if not scope._id and scope is not NO_SESSION:
        scope = recorded_above(scope)
    name = scope._name
    if type(name) is not str:
        return None
    if name == MICRO_STEP:
        scope = recorded_above(scope)
        name = scope._name
    return scope if type(name) is str and name == STEP and is_outermost(scope) else None


def step_around(scope: Any) -> Any:
    """Return the outermost scope named `step` among a scope and those around it; else None."""
    found = None
    while scope._depth and scope is not NO_SESSION:
        name = scope._name
        if type(name) is str and name == STEP:
            found = scope
        scope = scope._above
    return found


def is_outermost(step: Any) -> bool:
    """Return whether a step is not inside another step, as in `cirron-otel report`."""
    return step_around(step._above) is None


def number(value: Any) -> float | None:
    """Return a mark's value as a float, NaN and infinities included; None if it is not a number."""
    try:
        if type(value) is Deferred:
            value = value.value()
        return float(value) if type(value) in (float, int) else None
    except Exception:  # an integer too large for a float, or an unavailable device
        return None
