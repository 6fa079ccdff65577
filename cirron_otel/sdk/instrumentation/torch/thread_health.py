"""The last marks of losses and gradient norms of a thread, or of an asyncio task."""

from __future__ import annotations

from typing import Any

from ...tracing.hook_marks import unit_of
from ...tracing.phase import Phase
from ..iteration import Iteration
from .kinds import NAMES, OPTIMIZER


class Occurrences:
    """The last unit, or the last update of a loop without a loader, that has a mark."""

    __slots__ = ("_optimizers", "_step", "_unit", "stepped")

    def __init__(self) -> None:
        self._unit: Any = None
        """The scope of the last unit, or of an `optimizer_step` with a closure."""
        self.stepped = -1
        """The number of optimizer steps before the last mark outside of units."""
        self._step: Any = None
        """The last step of the loop without a loader."""
        self._optimizers = 0
        """The number of optimizers that stepped in the step before that."""

    def place(self, iteration: Iteration | None, scope: Any) -> tuple[bool, bool]:
        """Return whether a mark on `scope` is the first one of its unit, and is in a step.

        `iteration` is the last step of a loop without a loader.
        """
        unit = unit_of(scope)
        in_step = unit is not None
        if unit is None:
            unit = _optimizer_step(scope)
        if unit is None:
            return self._begins_update(iteration), False
        before, self._unit = self._unit, unit
        return unit is not before, in_step

    def _begins_update(self, iteration: Iteration | None) -> bool:
        """Return whether all optimizers of a loop without a loader have stepped.

        Each of them steps once in a step. Their number is that of the step before.
        """
        if iteration is not self._step:
            if self._step is not None:
                self._optimizers = len(self._step.optimizers)
            self._step = iteration
        return iteration is None or len(iteration.optimizers) >= self._optimizers


class ThreadHealth:
    """The state of one thread, or of an asyncio task."""

    __slots__ = ("losses", "norms", "scaled", "uses_scale")

    def __init__(self) -> None:
        self.losses = Occurrences()
        self.norms = Occurrences()
        self.scaled: list[tuple[Any, Any]] = []
        """Weak references to the results of `GradScaler.scale`, with the values ahead of it."""
        self.uses_scale = False
        """Whether a GradScaler has scaled a loss."""


def _optimizer_step(scope: Any) -> Any:
    """Return the `optimizer_step` whose closure is running, or None."""
    while scope._depth:
        if type(scope) is Phase and scope._name == NAMES[OPTIMIZER]:
            return scope
        scope = scope._above
    return None
