"""Record steps in loops without a loader: each optimizer step ends a step.

If no optimizer of torch.optim steps, a step ends with a change of the weights. Forward passes of a
trained model in evaluation mode, without gradients, form an evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...tracing.clock import now
from ...tracing.phase import STEPS, LoaderPassSpan, Phase, begin
from ...tracing.state import CONTEXT
from ..iteration import Iteration, current_scope, new_step, opened_manually
from .accumulation import Gradients
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

if TYPE_CHECKING:
    from .open_step import OpenPasses, OpenStep
    from .steps import Steps

_MOST = 4_096
"""Maximum number of phases that wait for an optimizer step; beyond it, the oldest get no step."""
_CHANGES = 4
"""After this many changes of the weights without an optimizer step, no such step is expected."""
_KINDS = FORWARD | LOSS | BACKWARD | TRANSFER | UPKEEP
_get = CONTEXT.get

Waiting = tuple[Phase, int, bool]
"""A phase, its kind, and whether it adds to the gradients of an earlier backward pass."""


class LoaderlessSteps:
    """Assigns the phases of one thread to steps if the phases are outside of every pass."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self._waiting: list[Waiting] = []
        self._changes: list[int] = []
        """Indices in `_waiting` of forward passes after a backward pass and a weight change."""
        self._is_manual = False
        """Whether changes of the weights end the steps."""
        self.gradients = Gradients(tracker.torch_state)
        self.iteration: Iteration | None = None
        """The last step, in which another optimizer may step."""
        self.evaluation: LoaderPassSpan | None = None
        self.evaluates = False
        """Whether the forward pass in progress is part of an evaluation."""
        self.model: Any = None
        """Identifies the model whose parameter is watched, by the dict of its span attributes."""
        self._above: Any = None
        self._step_count = 0
        self._made_at = 0
        """The number of optimizers constructed before the last step."""
        self._is_fresh = False
        """Whether no phase has run since an optimizer stepped."""

    def takes(self, phase: Phase, kind: int) -> bool:
        """Take an ended phase that can belong to a step or an evaluation; return whether it can."""
        tracker, passes = self._tracker, self._passes
        if (
            not kind & _KINDS
            or passes.training is not None
            or passes.evaluation is not None
            or tracker.loop is not None
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
        if not kind & BACKWARD and not tracker.torch_state.is_grad_enabled():
            if not kind & UPKEEP and all(each & UPKEEP for _, each, _ in self._waiting):
                self.release()  # a forward pass without gradients is not part of a step
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
        self._waiting.append(
            (phase, kind, kind == BACKWARD and self.gradients.accumulates_gradients)
        )
        return True

    def _is_followed(self, phase: Phase, kind: int) -> bool:
        """Return whether upkeep right after an optimizer step belongs to that step.

        A `zero_grad` begins the next step if the last step already contains a `zero_grad`.
        """
        last = self.iteration
        if (
            last is None
            or not self._is_fresh
            or last.step._above is not phase._above
            or (kind == ZERO_GRAD and NAMES[ZERO_GRAD] in (each._name for each in last.children))
        ):
            return False
        phase.move(last.step)
        last.add(phase)
        return True

    # --- steps ----------------------------------------------------------------------------------

    def step(self, optimizer: Any) -> Iteration | None:
        """Return the step in which `optimizer` steps; None if no step is recorded for it."""
        tracker, passes = self._tracker, self._passes
        if passes.training is not None or passes.evaluation is not None:
            return None
        self.end_evaluation()
        self._changes, self._is_manual = [], False
        self.gradients.forget()
        if tracker.loop is not None:
            self.release()
            return None
        parent_scope: Any = self._waiting[0][0]._above if self._waiting else current_scope(_get())
        if _is_in_step(parent_scope, itself=True):
            self.release()
            return None
        last = self.iteration
        if last is None or not self._joins(last, optimizer, parent_scope):
            self.close(waiting=False)
            last = self.iteration = self._make(parent_scope, self._waiting)
        waiting, self._waiting = self._waiting, []
        self._fill(last, waiting)
        last.stepped(optimizer)
        self._is_fresh = True
        return last

    def _joins(self, last: Iteration, optimizer: Any, parent_scope: Any) -> bool:
        """Return whether an optimizer steps within the last step, after another optimizer."""
        if id(optimizer) in last.optimizers or last.step._above is not parent_scope:
            return False
        is_new = self._tracker.torch_state.number_of(optimizer) > self._made_at
        return not (is_new and self._waiting)

    def _make(self, parent_scope: Any, waiting: list[Waiting]) -> Iteration:
        if parent_scope is not self._above:
            self._above, self._step_count = parent_scope, 0
        self._made_at = self._tracker.torch_state.optimizers_made
        step = new_step()
        begin(step, "step", self._step_count, None, parent_scope, _get(), now())
        self._step_count += 1
        if waiting:
            first = waiting[0][0]
            step._start, step._trace = first._start, first._trace
        has_memory = self._tracker.torch_state.memory is not None
        return Iteration(step, self._settle_and_read if has_memory else self._tracker.settle)

    def _fill(self, last: Iteration, waiting: list[Waiting]) -> None:
        """Move phases into a step, or into its micro steps if gradients were accumulated."""
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
        """Settle a phase, and read the device's memory after an optimizer step.

        The memory is read here: a step without a loader is closed too late to read it at its end.
        """
        self._tracker.settle(phase)
        if phase._name == NAMES[OPTIMIZER] and self.iteration is not None:
            self._tracker.torch_state.memory.end(self.iteration.step)

    # --- without an optimizer of torch.optim ----------------------------------------------------

    def _have_weights_changed(self) -> bool:
        """Return whether the last phase is a `backward`, and the weights have changed since."""
        kinds = (kind for _, kind, _ in reversed(self._waiting) if not kind & UPKEEP)
        return next(kinds, 0) == BACKWARD and self.gradients.have_changed_weights()

    def _weights_changed(self) -> None:
        """Record that a forward pass follows a weight change that no known optimizer made."""
        waiting, end = self._waiting, len(self._waiting)
        start = self._changes[-1] if self._changes else 0
        if waiting[start][1] == waiting[end - 1][1] == ZERO_GRAD:
            end -= 1  # this `zero_grad` begins the next step: the current step began with another
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
        """Turn the waiting phases into steps if changes of the weights show where steps end."""
        if not (self._is_manual or self._changes) or self.gradients.are_an_optimizers():
            return
        if self._waiting and (self._have_weights_changed() or self.gradients.are_gone()):
            self._changes.append(len(self._waiting))
        self._make_manual_steps()

    # --- evaluations ----------------------------------------------------------------------------

    def _evaluate(self, phase: Phase, kind: int) -> bool:
        """Move a phase without gradients to its evaluation; return False if it belongs to none."""
        if not (self.evaluates if kind == FORWARD else self.evaluation):
            return False
        if self._waiting:
            if not self._is_manual and not self._changes:
                return False  # between two backward passes whose gradients add up
            self.release()
        scope, parent_scope = self.evaluation, phase._above
        if scope is None or scope._above is not parent_scope:
            self.end_evaluation()
            if opened_manually(parent_scope, EVALUATIONS):
                return False
            self.close()
            numbers = self._passes.numbers
            scope = self.evaluation = LoaderPassSpan.__new__(LoaderPassSpan)
            scope._ends = None
            begin(scope, EVALUATIONS[0], numbers.evaluations, None, parent_scope, _get(), now())
            numbers.evaluations += 1
            scope._start, scope._trace = phase._start, phase._trace
        phase.move(scope)
        scope._until = phase._until
        self._tracker.settle(phase)
        return True

    def end_evaluation(self) -> None:
        """End the evaluation at its last phase, because other work begins."""
        scope, self.evaluation = self.evaluation, None
        if scope is not None:
            scope.finish()

    # --- ending ---------------------------------------------------------------------------------

    def release(self) -> None:
        """Settle the waiting phases that do not belong to a step."""
        self._finish_manual_steps()
        waiting, self._waiting = self._waiting, []
        for phase, _, _ in waiting:
            self._tracker.settle(phase)

    def close(self, *, waiting: bool = True) -> None:
        """Close the last step, and with `waiting`, release the waiting phases."""
        self.end_evaluation()
        if waiting:
            self.release()
        last, self.iteration = self.iteration, None
        if last is not None:
            last.close(self._steps.micro_of)
            self._tracker.torch_state.step_ended()

    def open_phases(self) -> list[Any]:
        """Return the scopes that may be open, for a tracker that starts over."""
        return [*[phase for phase, _, _ in self._waiting], self.evaluation]


def _groups(waiting: list[Waiting]) -> list[list[Phase]]:
    """Group phases by the batches whose gradients were accumulated.

    If no gradients were accumulated, there is one group.

    A forward pass that follows a backward pass begins a batch. Gradients are accumulated if the
    backward pass of a later batch adds to the gradients of an earlier batch.
    """
    groups: list[list[Phase]] = []
    was_backward, accumulates = True, False
    for phase, kind, accumulates_gradients in waiting:
        if was_backward and not kind & BACKWARD and not (kind & UPKEEP and groups):
            groups.append([])
            was_backward = False
        if not groups:
            groups.append([])
        accumulates = accumulates or (
            accumulates_gradients and len(groups) > 1 and not was_backward
        )
        groups[-1].append(phase)
        was_backward = was_backward or kind == BACKWARD
    if len(groups) > 1 and not accumulates:
        return [[phase for group in groups for phase in group]]
    return groups


def _is_in_step(scope: Any, *, itself: bool = False) -> bool:
    """Return whether `scope` is inside a step or, with `itself`, is a step."""
    parent_scope = scope if itself else scope._above
    while parent_scope._depth:
        if parent_scope._name in STEPS:
            return True
        parent_scope = parent_scope._above
    return False
