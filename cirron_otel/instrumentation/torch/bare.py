"""Loops without a loader: an optimizer's step makes a step of what preceded it.

If no optimizer of torch.optim steps, the end of a step is a change of the weights. Forwards of a
trained model in evaluation mode, without gradients, form an evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...sdk.clock import now
from ...sdk.phase import STEPS, LoaderPassSpan, Phase, begin
from ...sdk.state import CONTEXT
from .accumulation import Gradients
from .iteration import Iteration, new_step
from .kinds import (
    BACKWARD,
    COLLECTIVE,
    EVALUATIONS,
    FORWARD,
    LOSS,
    NAMES,
    OPTIMIZER,
    TRANSFER,
    UPKEEP,
    ZERO_GRAD,
)
from .one_pass import by_hand, scope_of

if TYPE_CHECKING:
    from .open_passes import OpenPasses
    from .open_step import OpenStep
    from .steps import Steps

_MOST = 4_096
"""Phases that wait for an optimizer's step; of more, the oldest belong to none."""
_CHANGES = 4
"""Changes of the weights without an optimizer's step that show that none is to be expected."""
_KINDS = FORWARD | LOSS | BACKWARD | TRANSFER | UPKEEP
_get = CONTEXT.get

Waiting = tuple[Phase, int, bool]
"""A phase, its kind, and whether it adds to the gradients of an earlier backward."""


class Bare:
    """The phases of one thread outside of every pass."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self._waiting: list[Waiting] = []
        self._changes: list[int] = []
        """Where in `_waiting` a forward follows a backward and a change of the weights."""
        self._is_manual = False
        """Whether changes of the weights end the steps."""
        self.gradients = Gradients(tracker.shared)
        self.iteration: Iteration | None = None
        """The step that was made last; a further optimizer may step in it."""
        self.evaluation: LoaderPassSpan | None = None
        self.evaluates = False
        """Whether the forward that runs is one of an evaluation."""
        self.model: Any = None
        """Stands for the model whose parameter is looked at."""
        self._above: Any = None
        self._step_count = 0
        self._made_at = 0
        """The number of optimizers made before the last step."""
        self._is_fresh = False
        """Whether nothing ran since an optimizer stepped."""

    def takes(self, phase: Phase, kind: int) -> bool:
        """Whether a phase that is over waits for an optimizer's step, or is of an evaluation."""
        tracker, passes = self._tracker, self._passes
        if (
            not kind & _KINDS
            or passes.training is not None
            or passes.evaluation is not None
            or not tracker.shared.owns_step
            or _is_in_step(phase)
        ):
            self.end_evaluation()
            return False
        if kind & UPKEEP:
            if kind == COLLECTIVE and self._evaluate(phase, kind):
                return True
            self.end_evaluation()
            if not self._waiting:
                if self._is_followed(phase, kind):
                    return True
                if kind != ZERO_GRAD:
                    return False
        self._is_fresh = False
        if not kind & BACKWARD and not tracker.shared.is_grad_enabled():
            if not kind & UPKEEP and all(each & UPKEEP for _, each, _ in self._waiting):
                self.release()  # a forward without gradients is in no step
            if self._evaluate(phase, kind):
                return True
            if not self._waiting:
                return False
        self.end_evaluation()
        if self._waiting and self._waiting[-1][0]._above is not phase._above:
            self.release()
        elif len(self._waiting) >= _MOST:
            tracker.settle(self._waiting.pop(0)[0])
            self._changes.clear()
        if not kind & (BACKWARD | UPKEEP) and self._have_weights_changed():
            self._weights_changed()
        if kind == BACKWARD:
            self.gradients.backward_ended()
        self._waiting.append((phase, kind, kind == BACKWARD and self.gradients.adds))
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

    # --- steps ----------------------------------------------------------------------------------

    def step(self, optimizer: Any) -> Iteration | None:
        """The step that `optimizer` steps in; None where there is to be none."""
        tracker, passes = self._tracker, self._passes
        if passes.training is not None or passes.evaluation is not None:
            return None
        self.end_evaluation()
        self._changes, self._is_manual = [], False
        self.gradients.forget()
        if not tracker.shared.owns_step:
            self.release()
            return None
        above: Any = self._waiting[0][0]._above if self._waiting else scope_of(_get())
        if _is_in_step(above, itself=True):
            self.release()
            return None
        last = self.iteration
        if last is None or not self._joins(last, optimizer, above):
            self.close(waiting=False)
            last = self.iteration = self._make(above, self._waiting)
        waiting, self._waiting = self._waiting, []
        self._fill(last, waiting)
        last.stepped(optimizer)
        self._is_fresh = True
        return last

    def _joins(self, last: Iteration, optimizer: Any, above: Any) -> bool:
        """Whether an optimizer steps in the last step, in which another one has stepped."""
        if id(optimizer) in last.optimizers or last.step._above is not above:
            return False
        is_new = self._tracker.shared.number_of(optimizer) > self._made_at
        return not (is_new and self._waiting)

    def _make(self, above: Any, waiting: list[Waiting]) -> Iteration:
        if above is not self._above:
            self._above, self._step_count = above, 0
        self._made_at = self._tracker.shared.optimizers_made
        step = new_step()
        begin(step, "step", self._step_count, None, above, _get(), now())
        self._step_count += 1
        if waiting:
            first = waiting[0][0]
            step._start, step._trace = first._start, first._trace
        has_memory = self._tracker.shared.memory is not None
        return Iteration(step, self._settle_and_read if has_memory else self._tracker.settle)

    def _fill(self, last: Iteration, waiting: list[Waiting]) -> None:
        """Put phases into a step: into micro steps, if gradients were accumulated."""
        groups = _groups(waiting)
        if len(groups) > 1:
            for phase, _, _ in waiting:
                if phase._stamps is not None:
                    last.stamp(phase._stamps)
            last.split(self._steps.micro_of, groups)
        for phase in groups[0] if len(groups) == 1 else ():
            phase.move(last.step)
            last.add(phase)

    def _settle_and_read(self, phase: Phase) -> None:
        """When an optimizer has stepped, the device's memory is read: the step is closed late."""
        self._tracker.settle(phase)
        if phase._name == NAMES[OPTIMIZER] and self.iteration is not None:
            self._tracker.shared.memory.end(self.iteration.step)

    # --- without an optimizer of torch.optim ----------------------------------------------------

    def _have_weights_changed(self) -> bool:
        """Whether the last phase is a backward, and the weights have changed since."""
        kinds = (kind for _, kind, _ in reversed(self._waiting) if not kind & UPKEEP)
        return next(kinds, 0) == BACKWARD and self.gradients.have_changed_weights()

    def _weights_changed(self) -> None:
        """A forward follows a change of the weights, which no optimizer is known to have made."""
        waiting, end = self._waiting, len(self._waiting)
        start = self._changes[-1] if self._changes else 0
        if waiting[start][1] == waiting[end - 1][1] == ZERO_GRAD:
            end -= 1  # it begins the next step, as this one has begun with its own
        self._changes.append(end)
        if self._is_manual or (
            len(self._changes) >= _CHANGES and not self.gradients.are_an_optimizers()
        ):
            self._is_manual = True
            self._make_manual_steps()

    def _make_manual_steps(self) -> None:
        waiting, changes = self._waiting, self._changes
        start = 0
        for end in changes:
            self.close(waiting=False)
            step = self.iteration = self._make(waiting[start][0]._above, waiting[start:end])
            self._fill(step, waiting[start:end])
            step.stepped(None)
            start = end
        self._waiting, self._changes = waiting[start:], []

    def _finish_manual_steps(self) -> None:
        """Make steps of what waits, if changes of the weights ended them."""
        if not (self._is_manual or self._changes) or self.gradients.are_an_optimizers():
            return
        if self._waiting and (self._have_weights_changed() or self.gradients.are_gone()):
            self._changes.append(len(self._waiting))
        self._make_manual_steps()

    # --- evaluations ----------------------------------------------------------------------------

    def _evaluate(self, phase: Phase, kind: int) -> bool:
        """Whether a phase without gradients belongs to an evaluation; it hangs there then."""
        if not (self.evaluates if kind == FORWARD else self.evaluation):
            return False
        if self._waiting:
            if not self._is_manual and not self._changes:
                return False  # between two backwards whose gradients add up
            self.release()
        scope, above = self.evaluation, phase._above
        if scope is None or scope._above is not above:
            self.end_evaluation()
            if by_hand(above, EVALUATIONS):
                return False
            self.close()
            numbers = self._passes.numbers
            scope = self.evaluation = LoaderPassSpan.__new__(LoaderPassSpan)
            scope._ends = None
            begin(scope, EVALUATIONS[0], numbers.evaluations, None, above, _get(), now())
            numbers.evaluations += 1
            scope._start, scope._trace = phase._start, phase._trace
        phase.move(scope)
        scope._until = phase._until
        self._tracker.settle(phase)
        return True

    def end_evaluation(self) -> None:
        """Something else begins: an evaluation is over with its last phase."""
        scope, self.evaluation = self.evaluation, None
        if scope is not None:
            scope.finish()

    # --- ending ---------------------------------------------------------------------------------

    def release(self) -> None:
        """What waits belongs to no step of an optimizer."""
        self._finish_manual_steps()
        waiting, self._waiting = self._waiting, []
        for phase, _, _ in waiting:
            self._tracker.settle(phase)

    def close(self, *, waiting: bool = True) -> None:
        """The last step is over; what waits (if `waiting`) belongs to none."""
        self.end_evaluation()
        if waiting:
            self.release()
        last, self.iteration = self.iteration, None
        if last is not None:
            last.close(self._steps.micro_of)
            if self._tracker.shared.attends:
                self._tracker.shared.step_over()

    def open_phases(self) -> list[Any]:
        """What may be open, for a tracker that starts over."""
        return [*[phase for phase, _, _ in self._waiting], self.evaluation]


def _groups(waiting: list[Waiting]) -> list[list[Phase]]:
    """One group for each batch whose gradients were accumulated; else a single one.

    A forward that follows a backward begins a batch. Gradients are accumulated if a backward of a
    later batch adds to those of an earlier one.
    """
    groups: list[list[Phase]] = []
    was_backward, accumulates = True, False
    for phase, kind, adds in waiting:
        if was_backward and not kind & BACKWARD and not (kind & UPKEEP and groups):
            groups.append([])
            was_backward = False
        if not groups:
            groups.append([])
        accumulates = accumulates or (adds and len(groups) > 1 and not was_backward)
        groups[-1].append(phase)
        was_backward = was_backward or kind == BACKWARD
    if len(groups) > 1 and not accumulates:
        return [[phase for group in groups for phase in group]]
    return groups


def _is_in_step(scope: Any, *, itself: bool = False) -> bool:
    """Whether a scope by hand around it is a step."""
    above = scope if itself else scope._above
    while above._depth:
        if above._name in STEPS:
            return True
        above = above._above
    return False
