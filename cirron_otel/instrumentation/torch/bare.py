"""Loops without a loader: a step is made of what came before, when an optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...sdk.clock import now
from ...sdk.phase import STEPS, Phase, begin
from ...sdk.state import CONTEXT
from .iteration import Iteration, new_step
from .kinds import BACKWARD, FORWARD, LOSS, NAMES, OPTIMIZER, TRANSFER, UPKEEP, ZERO_GRAD
from .one_pass import scope_of

if TYPE_CHECKING:
    from .tracker import Tracker

_MOST = 4_096
"""Phases that wait for an optimizer's step; of more, the oldest belong to none."""
_KINDS = FORWARD | LOSS | BACKWARD | TRANSFER | UPKEEP
_get = CONTEXT.get


class Bare:
    """The phases of one thread outside of every pass."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._waiting: list[tuple[Phase, int]] = []
        self.iteration: Iteration | None = None
        """The step that was made last; a further optimizer may step in it."""
        self._above: Any = None
        self._steps = 0
        self._is_fresh = False
        """Whether nothing ran since an optimizer stepped."""

    def takes(self, phase: Phase, kind: int) -> bool:
        """Whether a phase that is over waits for an optimizer's step."""
        tracker = self._tracker
        passes = tracker.passes
        if (
            not kind & _KINDS
            or passes.training is not None
            or passes.evaluation is not None
            or not tracker.shared.owns_step
            or _is_in_step(phase)
        ):
            return False
        waiting = self._waiting
        if kind & UPKEEP and not waiting:
            if self._is_followed(phase, kind):
                return True
            if kind != ZERO_GRAD:
                return False
        self._is_fresh = False
        if (
            not kind & (UPKEEP | BACKWARD)
            and waiting
            and not tracker.shared.is_grad_enabled()
            and all(each & UPKEEP for _, each in waiting)
        ):
            self.release()  # a forward without gradients is in no step
            return False
        if kind != BACKWARD and not waiting and not tracker.shared.is_grad_enabled():
            return False
        if waiting and waiting[-1][0]._above is not phase._above:
            self.release()
        elif len(waiting) >= _MOST:
            tracker.settle(waiting.pop(0)[0])
        waiting.append((phase, kind))
        return True

    def _is_followed(self, phase: Phase, kind: int) -> bool:
        """Whether upkeep right after an optimizer's step belongs to that step.

        A `zero_grad` begins the next step if that one has begun with its own.
        """
        last = self.iteration
        if (
            last is None
            or not self._is_fresh
            or last.step._above is not phase._above
            or (kind == ZERO_GRAD and NAMES[ZERO_GRAD] in (each._name for each in last.kids))
        ):
            return False
        phase.move(last.step)
        last.add(phase)
        return True

    def step(self, optimizer: Any) -> Iteration | None:
        """The step that `optimizer` steps in; None where there is to be none."""
        tracker = self._tracker
        passes = tracker.passes
        if passes.training is not None or passes.evaluation is not None:
            return None
        if not tracker.shared.owns_step:
            self.release()
            return None
        last = self.iteration
        context = _get()
        above: Any = self._waiting[0][0]._above if self._waiting else scope_of(context)
        if _is_in_step(above, itself=True):
            self.release()
            return None
        if last is None or id(optimizer) in last.optimizers or last.step._above is not above:
            self.close(waiting=False)
            last = self.iteration = self._make(above, context)
        groups = _groups(self._waiting)
        self._waiting = []
        if len(groups) > 1:
            for phase in (phase for group in groups for phase in group):
                if phase._stamps is not None:
                    last.stamp(phase._stamps)
            last.split(passes.steps.micro_of, groups)
        for phase in groups[0] if len(groups) == 1 else ():
            phase.move(last.step)
            last.add(phase)
        last.stepped(optimizer)
        self._is_fresh = True
        return last

    def _make(self, above: Any, context: Any) -> Iteration:
        if above is not self._above:
            self._above, self._steps = above, 0
        step = new_step()
        begin(step, "step", self._steps, None, above, context, now())
        self._steps += 1
        if self._waiting:
            first = self._waiting[0][0]
            step._start, step._trace = first._start, first._trace
        has_memory = self._tracker.shared.memory is not None
        return Iteration(step, self._settle_and_read if has_memory else self._tracker.settle)

    def _settle_and_read(self, phase: Phase) -> None:
        """When an optimizer has stepped, the device's memory is read: the step is closed late."""
        self._tracker.settle(phase)
        if phase._name == NAMES[OPTIMIZER] and self.iteration is not None:
            self._tracker.shared.memory.end(self.iteration.step)

    def release(self) -> None:
        """What waits belongs to no step."""
        waiting, self._waiting = self._waiting, []
        for phase, _ in waiting:
            self._tracker.settle(phase)

    def close(self, *, waiting: bool = True) -> None:
        """The last step is over; what waits (if `waiting`) belongs to none."""
        last, self.iteration = self.iteration, None
        if last is not None:
            last.close(self._tracker.passes.steps.micro_of)
            if self._tracker.shared.attends:
                self._tracker.shared.step_over()
        if waiting:
            self.release()


def _groups(waiting: list[tuple[Phase, int]]) -> list[list[Phase]]:
    """Cut before every forward that follows a backward."""
    groups: list[list[Phase]] = []
    was_backward = True
    for phase, kind in waiting:
        if was_backward and kind != BACKWARD and not (kind & UPKEEP and groups):
            groups.append([])
            was_backward = False
        if not groups:
            groups.append([])
        groups[-1].append(phase)
        was_backward = was_backward or kind == BACKWARD
    return groups


def _is_in_step(scope: Any, *, itself: bool = False) -> bool:
    """Whether a scope by hand around it is a step."""
    above = scope if itself else scope._above
    while above._depth:
        if above._name in STEPS:
            return True
        above = above._above
    return False
