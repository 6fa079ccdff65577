"""Record steps in loops without a loader: each optimizer step ends a step.

If no optimizer of torch.optim steps, a step ends with a change of the weights. Forward passes of a
trained model in evaluation mode, which no backward pass uses, form an evaluation.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.phase import STEPS, LoaderPassSpan, Phase, begin
from ...tracing.state import CONTEXT
from ..iteration import Iteration, current_scope, new_step, opened_manually
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
from .waiting_phases import (
    WaitingPhase,
    earlier_count,
    groups,
    has_backward,
    unused_count,
    watch_graph,
)

if TYPE_CHECKING:
    from .open_step import OpenPasses, OpenStep
    from .steps import Steps

_MOST = 4_096
"""Maximum number of phases that wait for an optimizer step; beyond it, the oldest get no step."""
_CHANGES = 4
"""After this many changes of the weights without an optimizer step, no such step is expected."""
_MOST_BETWEEN = 64
"""After this many phases of other models, an evaluation is over."""
_RECENT = 64
"""The maximum number of waiting phases that are searched for a backward pass."""
_KINDS = FORWARD | LOSS | BACKWARD | TRANSFER | UPKEEP
_get = CONTEXT.get


class LoaderlessSteps:
    """Assigns the phases of one thread to steps if the phases are outside of every pass."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self._waiting: list[WaitingPhase] = []
        self._changes: list[int] = []
        """Indices in `_waiting` of forward passes after a backward pass and a weight change."""
        self._is_manual = False
        """Whether changes of the weights end the steps."""
        self.gradients = tracker.gradients
        self.iteration: Iteration | None = None
        """The last step, in which another optimizer may step."""
        self.evaluation: LoaderPassSpan | None = None
        self._between: list[Phase] = []
        """The phases of other models since the last forward pass of the evaluation."""
        self.evaluates = False
        """Whether the current forward pass is part of an evaluation if no backward pass uses it."""
        self._graph: Any = None
        """A weak reference to the graph of the forward pass in progress (`watch_graph`)."""
        self.model: Any = None
        """Identifies the model whose parameter is watched, by the dict of its span attributes."""
        self._above: Any = None
        self._step_count = 0
        self._made_at = 0
        """The number of optimizers constructed before the last step."""
        self._begins_with_zero_grad = False
        """Whether the last step began with a `zero_grad`."""
        self._is_fresh = False
        """Whether no phase has run since an optimizer stepped."""

    def returned(self, output: Any) -> None:
        """Record the output of the forward pass that ends next. Raises nothing."""
        try:
            if (
                self._passes.evaluation is None
                and not self._has_begun()
                and self._tracker.torch_state.is_grad_enabled()
            ):
                self._graph = watch_graph(output)
        except Exception as error:
            record_error("torch", error)

    def _has_begun(self) -> bool:
        """Return whether the next step has begun, so that all waiting forwards belong to it.

        It begins with a `zero_grad` (`unused_count`). This saves the cost of `watch_graph`.
        """
        waiting, start = self._waiting, self._changes[-1] if self._changes else 0
        return len(waiting) > start and bool(waiting[start].kind & (BACKWARD | ZERO_GRAD))

    def backward_begins(self) -> None:
        """Release the waiting forward passes that the backward pass which begins now cannot use."""
        for each in self._waiting:
            if each.graph is not None and each.is_unused:  # most have none: this saves a call
                break
        else:
            return
        start = self._changes[-1] if self._changes else 0
        waiting = self._waiting[start:]
        if has_backward(waiting):
            return
        count = unused_count(waiting)
        if count:
            del self._waiting[start : start + count]
            self._settle_unused(waiting[:count])
            self.end_evaluation()

    def takes(self, phase: Phase, kind: int) -> bool:
        """Take an ended phase that can belong to a step or an evaluation; return whether it can."""
        tracker, passes = self._tracker, self._passes
        graph, self._graph = self._graph, None
        if (
            not kind & _KINDS
            or passes.training is not None
            or passes.evaluation is not None
            or tracker.loop is not None
            or (phase._above._depth and _is_in_step(phase))
        ):
            self.end_evaluation()
            return False
        if kind & UPKEEP:
            if kind == COLLECTIVE and self._evaluate(phase, kind):
                return True
            if self.evaluation is not None or self._between:
                self.end_evaluation()
            if not self._waiting:
                if self._is_followed(phase, kind):
                    return True
                if kind != ZERO_GRAD:
                    return False
        self._is_fresh = False
        if not kind & BACKWARD and not tracker.torch_state.is_grad_enabled():
            if not kind & UPKEEP and all(each.kind & UPKEEP for each in self._waiting):
                self.release()  # a forward pass without gradients is not part of a step
            if self._evaluate(phase, kind):
                return True
            if not self._waiting:
                return False
        if self.evaluation is not None or self._between:
            self.end_evaluation()
        if self._waiting and self._waiting[-1].phase._above is not phase._above:
            self.release()
        elif len(self._waiting) >= _MOST:
            tracker.settle(self._waiting.pop(0).phase)
            self._changes.clear()
        if not kind & (BACKWARD | UPKEEP) and self._have_weights_changed():
            self._weights_changed()
        made, evaluates = tracker.torch_state.optimizers_made, kind == FORWARD and self.evaluates
        cost_ns = tracker.opened_ns + now() - phase._until
        waiting = WaitingPhase(phase, kind, graph, made, cost_ns, evaluates)
        if kind == BACKWARD:
            self.gradients.backward_ended()
            waiting.accumulates = self.gradients.accumulates_gradients
        self._waiting.append(waiting)
        return True

    def _is_followed(self, phase: Phase, kind: int) -> bool:
        """Return whether upkeep right after an optimizer step belongs to that step.

        A `zero_grad` begins the next step if the last step began with a `zero_grad`.
        """
        last = self.iteration
        if (
            last is None
            or not self._is_fresh
            or last.step._above is not phase._above
            or (kind == ZERO_GRAD and self._begins_with_zero_grad)
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
        waiting = self._waiting
        number = tracker.torch_state.number_of(optimizer)
        if waiting and waiting[0].made < number and (count := earlier_count(waiting, number)):
            self._waiting = waiting[:count]
            self.release()
            self._waiting = waiting = waiting[count:]
        parent_scope: Any = waiting[0].phase._above if waiting else current_scope(_get())
        if parent_scope._depth and _is_in_step(parent_scope, itself=True):
            self.release()
            return None
        last = self.iteration
        if last is None or not self._joins(last, optimizer, parent_scope):
            self.close(waiting=False)
            last = self.iteration = self._make(parent_scope, waiting)
        self._waiting = []
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

    def _make(self, parent_scope: Any, waiting: list[WaitingPhase]) -> Iteration:
        if parent_scope is not self._above:
            self._above, self._step_count = parent_scope, 0
        self._made_at = self._tracker.torch_state.optimizers_made
        step = new_step()
        begin(step, "step", self._step_count, None, parent_scope, _get(), now())
        self._step_count += 1
        # The hooks of its phases, whose parent was not known when they ran. Other threads add to
        # the same parent, so a value that one of them adds at this moment may be lost.
        cost_ns = 0
        for each in waiting:
            cost_ns += each.cost_ns
        step._overhead = cost_ns
        parent_scope._overhead = max(parent_scope._overhead - cost_ns, 0)
        self._begins_with_zero_grad = bool(waiting) and waiting[0].kind == ZERO_GRAD
        if waiting:
            first = waiting[0].phase
            step._start, step._trace = first._start, first._trace
        has_memory = self._tracker.torch_state.memory is not None
        return Iteration(step, self._settle_and_read if has_memory else self._tracker.settle)

    def _fill(self, last: Iteration, waiting: list[WaitingPhase]) -> None:
        """Move phases into a step, or into its micro steps if gradients were accumulated."""
        batches: list[list[Phase]] = []
        for each in waiting:
            if each.accumulates:
                batches = groups(waiting)
                break
        if len(batches) > 1:
            for each in waiting:
                if each.phase._stamps is not None:
                    last.stamp(each.phase._stamps)
            last.split(self._steps.micro_of, batches)
            return
        step = last.step
        for each in waiting:
            each.phase.move(step)
            last.add(each.phase)

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
        for each in reversed(self._waiting):
            if not each.kind & UPKEEP:
                return each.kind == BACKWARD and self.gradients.have_changed_weights()
        return False

    def _weights_changed(self) -> None:
        """Record that a forward pass follows a weight change that no known optimizer made."""
        waiting, end = self._waiting, len(self._waiting)
        start = self._changes[-1] if self._changes else 0
        if waiting[start].kind == waiting[end - 1].kind == ZERO_GRAD:
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
            step = self.iteration = self._make(waiting[start].phase._above, waiting[start:end])
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
        continues = self.evaluation is not None and not self._between
        if not (self.evaluates if kind == FORWARD else continues):
            return self._is_between(phase)
        if self._waiting:
            is_new = self._waiting[-1].made < self._tracker.torch_state.optimizers_made
            is_update = self._is_manual or self._changes or is_new
            if has_backward(self._waiting) and not is_update:
                return False  # between two backward passes whose gradients add up
            self.release()
        return self._put_in_evaluation(phase)

    def _is_between(self, phase: Phase) -> bool:
        """Hold a phase of another model, which is in the open evaluation if that continues.

        Return False if no evaluation is open, or if this ends it.
        """
        scope = self.evaluation
        if scope is None:
            return False
        if scope._above is not phase._above or len(self._between) >= _MOST_BETWEEN:
            self.end_evaluation()
            return False
        self._between.append(phase)
        return True

    def _put_in_evaluation(self, phase: Phase) -> bool:
        """Move a phase to the evaluation; return False if the program has opened its own."""
        scope, parent_scope = self.evaluation, phase._above
        if scope is None or scope._above is not parent_scope:
            self.end_evaluation()
            if opened_manually(parent_scope, EVALUATIONS):
                return False
            self.close(waiting=False)
            numbers = self._passes.numbers
            scope = self.evaluation = LoaderPassSpan.__new__(LoaderPassSpan)
            scope._ends = None
            begin(scope, EVALUATIONS[0], numbers.evaluations, None, parent_scope, _get(), now())
            numbers.evaluations += 1
            scope._start, scope._trace = phase._start, phase._trace
        phases, self._between = [*self._between, phase], []
        for each in phases:
            each.move(scope)
            scope._until = each._until
            self._tracker.settle(each)
        return True

    def _settle_unused(self, unused: list[WaitingPhase]) -> None:
        """Settle phases that no backward pass uses; those of an evaluation form one."""
        for each in unused:
            continues = self.evaluation is not None and each.kind & (LOSS | TRANSFER | COLLECTIVE)
            if not (each.evaluates or continues) or not self._put_in_evaluation(each.phase):
                self.end_evaluation()
                self._tracker.settle(each.phase)

    def end_evaluation(self) -> None:
        """End the evaluation at its last phase, because other work begins."""
        scope, between = self.evaluation, self._between
        if scope is None and not between:
            return
        self.evaluation, self._between = None, []
        if scope is not None:
            scope.finish()
        for each in between:
            self._tracker.settle(each)

    # --- ending ---------------------------------------------------------------------------------

    def release(self) -> None:
        """Settle the waiting phases that do not belong to a step."""
        self._finish_manual_steps()
        waiting, self._waiting = self._waiting, []
        if has_backward(waiting):
            for each in waiting:
                self._tracker.settle(each.phase)
        else:
            self._settle_unused(waiting)

    def close(self, *, waiting: bool = True) -> None:
        """Close the last step, and with `waiting`, release the waiting phases."""
        self.end_evaluation()
        if waiting:
            self.release()
            self.end_evaluation()
        last, self.iteration = self.iteration, None
        if last is not None:
            last.close(self._steps.micro_of)
            self._tracker.torch_state.step_ended()

    @property
    def repeats_backward(self) -> bool:
        """Whether the last waiting forward pass has its backward pass already."""
        kinds = [each.kind for each in islice(reversed(self._waiting), _RECENT)]
        last = next((each for each in kinds if each in (FORWARD, BACKWARD)), FORWARD)
        return last == BACKWARD and FORWARD in kinds

    def open_phases(self) -> list[Any]:
        """Return the scopes that may be open, for a tracker that starts over."""
        return [*[each.phase for each in self._waiting], *self._between, self.evaluation]


def _is_in_step(scope: Any, *, itself: bool = False) -> bool:
    """Return whether `scope` is inside a step or, with `itself`, is a step."""
    parent_scope = scope if itself else scope._above
    while parent_scope._depth:
        if parent_scope._name in STEPS:
            return True
        parent_scope = parent_scope._above
    return False
