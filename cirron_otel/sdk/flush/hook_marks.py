"""Decide which marks of the hooks are recorded, so that no series is recorded twice.

docs/torch.md defines the rules. The flush thread decides, because it reads the values that are
copied from a device, and sees all marks of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from ...semconv import GRAD_NORM, LOSS
from ..tracing.buffers import MarkEntry
from ..tracing.coerce import Deferred
from ..tracing.hook_marks import HookAttributes, unit_of
from ..tracing.mark import POINT

_SERIES: Final = frozenset({LOSS, GRAD_NORM})
_EVALUATIONS: Final = frozenset({"eval", "evaluation", "val", "validation", "test"})
_FEW: Final = 10
"""Outside of steps, the program records a series itself if its marks on one scope have at most this
number of the hooks' marks between them; with more, they are values of epochs."""


class _Series:
    """The marks of one series so far, by time."""

    __slots__ = ("count", "in_step", "scope", "until")

    def __init__(self) -> None:
        self.until = 0
        """The time of the last mark, monotonic ns."""
        self.in_step = False
        """Whether the last mark of the hooks was made in a step."""
        self.count = 0
        """The number of units with a mark of the hooks since the program's last mark."""
        self.scope: Any = None
        """The scope of the program's last mark outside of units."""

    def add_own(self, scope: Any) -> bool:
        """Add a mark of the program; return whether it shows that the program has the series."""
        if unit_of(scope) is not None:
            return True
        count, before = self.count, self.scope
        self.count, self.scope = 0, scope
        return not self.in_step and 0 < count <= (_FEW if scope is before else 1)


class HookMarks:
    """Selects the marks of the hooks of one session."""

    def __init__(self) -> None:
        self._of_program: set[str] = set()
        """The series that the program records itself."""
        self._series: dict[str, _Series] = {}
        """The other series of the hooks and of the program."""
        self._has_hooks = False

    def select(self, marks: list[MarkEntry]) -> list[MarkEntry] | None:
        """Return the marks without those that are left out; None if all are recorded.

        A call with the result, or once more with the same marks, leaves out the same marks.
        """
        is_hooks = [type(entry[5]) is HookAttributes for entry in marks]
        self._has_hooks = self._has_hooks or any(is_hooks)
        if not self._has_hooks:
            return None
        self._look_for_own(marks)
        selected = [
            entry for entry, is_own in zip(marks, is_hooks, strict=True)
            if not is_own or self._is_recorded(entry)
        ]  # fmt: skip
        return None if len(selected) == len(marks) else selected

    def _look_for_own(self, marks: Iterable[MarkEntry]) -> None:
        """Find the series that the program records itself.

        A mark that is not later than those of earlier calls is not counted again.
        """
        of_series = [each for each in marks if type(each[1]) is str and each[1] in _SERIES]
        for entry in sorted(of_series, key=lambda each: each[3]):
            name, attributes = entry[1], entry[5]
            if name in self._of_program:
                continue
            series = self._series.setdefault(name, _Series())
            if entry[3] <= series.until:
                continue
            series.until = entry[3]
            if type(attributes) is HookAttributes:
                series.in_step = attributes.in_step
                series.count += attributes.is_first
            elif _is_value(entry) and series.add_own(entry[0]):
                self._of_program.add(name)
                del self._series[name]

    def _is_recorded(self, entry: MarkEntry) -> bool:
        attributes: Any = entry[5]
        is_wanted = attributes.is_first and entry[1] not in self._of_program
        if is_wanted and not attributes.is_scaled:
            return True
        value = entry[2]
        if type(value) is Deferred:
            try:
                value = value.value()
            except Exception:
                return is_wanted  # the error is counted when the mark is recorded
        return is_wanted if math.isfinite(value) else not attributes.is_scaled


def _is_value(entry: MarkEntry) -> bool:
    """Return whether a mark of the program is a number, and not of an evaluation."""
    if entry[4] != POINT or isinstance(entry[2], (str, bool)):
        return False
    scope: Any = entry[0]
    while scope._depth:
        if type(scope._name) is str and scope._name in _EVALUATIONS:
            return False
        scope = scope._above
    return True
