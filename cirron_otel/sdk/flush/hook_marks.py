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


class HookMarks:
    """Selects the marks of the hooks of one session."""

    def __init__(self) -> None:
        self._of_program: set[str] = set()
        """The series that the program records itself."""
        self._are_in_step: dict[str, bool] = {}
        """For each series, whether the last mark of the hooks was made in a step."""

    def select(self, marks: list[MarkEntry]) -> list[MarkEntry] | None:
        """Return the marks without those that are left out; None if all are recorded.

        A call with the result, or once more with the same marks, leaves out the same marks.
        """
        is_hooks = [type(entry[5]) is HookAttributes for entry in marks]
        if any(is_hooks):
            for entry, is_own in zip(marks, is_hooks, strict=True):
                if is_own:
                    self._are_in_step[entry[1]] = entry[5].in_step  # type: ignore[union-attr]
        elif not self._are_in_step:
            return None
        self._look_for_own(
            entry for entry, is_own in zip(marks, is_hooks, strict=True) if not is_own
        )
        selected = [
            entry for entry, is_own in zip(marks, is_hooks, strict=True)
            if not is_own or self._is_recorded(entry)
        ]  # fmt: skip
        return None if len(selected) == len(marks) else selected

    def _look_for_own(self, marks: Iterable[MarkEntry]) -> None:
        """Find the series that the program records itself."""
        for entry in marks:
            name = entry[1]
            if type(name) is not str or name not in _SERIES or name in self._of_program:
                continue
            if self._is_own(entry):
                self._of_program.add(name)

    def _is_own(self, entry: MarkEntry) -> bool:
        """Return whether a mark of the program is one value of each step, or of some steps.

        A value of an epoch, outside of the steps, is not; neither is that of an evaluation.
        """
        if entry[4] != POINT or isinstance(entry[2], (str, bool)):
            return False
        scope: Any = entry[0]
        while scope._depth:
            if type(scope._name) is str and scope._name in _EVALUATIONS:
                return False
            scope = scope._above
        return not self._are_in_step.get(entry[1], False) or unit_of(entry[0]) is not None

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
