"""The steps of training passes, which open before a fetch and close at the next fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.context.context import Context

from ...tracing.clock import now
from ...tracing.phase import Phase, Step, begin, make_current
from ...tracing.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from ...tracing.traces import UNIT_DEPTH
from ...tracing.unwinding import Place
from ..iteration import Iteration, carry_over, current_scope, new_step, without_step
from .kinds import FORWARD, NAMES, OPTIMIZER
from .one_pass import Pass

if TYPE_CHECKING:
    from .open_step import OpenPasses, OpenStep

_get = CONTEXT.get
_set = CONTEXT.set
_new = Step.__new__


class Steps:
    """Opens and closes the steps of one thread's passes."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses) -> None:
        self._tracker, self._passes = tracker, passes

    def turn_over(self, iterator: Any) -> bool:  # noqa: PLR0915 - inlined, see below
        """Close one step and open the next, unless a decision is needed; return whether it did so.

        The bodies of `close` and `open` are inlined: between two steps, other code has filled the
        CPU caches, so each function call has an extra cost. May raise.
        """
        begun = now()
        tracker = self._tracker
        iteration: Any = tracker.iteration
        step: Any = tracker.step
        context = _get()
        if (
            context is not tracker.context
            or tracker.base
            or not iteration.was_stepped
            or iteration.is_odd
            or step._collected is not None
            or state.special
        ):
            return False
        start = step._start
        until = iteration.until or start
        training: Any = self._passes.training
        loop = tracker.loop
        every = tracker.torch_state.detail_every
        if loop is not None:
            index = None if every else loop.take_plain_step()
            if index is None:
                return False
        elif training is None or training.iterator() is not iterator or not training.is_simple:
            return False
        else:
            training.reached = until
            training.fetches += 1
            index = training.steps
            training.steps += 1
        step._rest = until - start - iteration.covered
        step._end = step._until = until
        if tracker.torch_state.has_step_end_hook:
            tracker.torch_state.on_step_end()
        parent_scope: Any = step._above
        next_step = _new(Step)
        next_step._name, next_step._index = "step", index
        next_step._above, next_step._depth = parent_scope, step._depth
        next_step._attrs = next_step._extras = next_step._token = None
        next_step._stamps = next_step._collected = next_step._folded = next_step._rest = None
        next_step._is_known = None
        next_step._end = next_step._overhead = next_step._until = 0
        buffers = tracker.buffers
        for next_step._id in buffers.ids:
            break
        else:
            next_step._id = buffers.next_id()
        segments: Any = state.segments
        if step._depth > UNIT_DEPTH or segments is None or parent_scope._trace.is_apart:
            next_step._trace = parent_scope._trace
        else:
            segments.tick -= 1
            next_step._trace = segments.trace
            if segments.tick < 0:
                next_step._start = 0
                outer = training.inner_context if loop is None else loop.outer_context
                next_step._place(outer, parent_scope, again=True)
        next_step._thread = buffers.ident
        tracker.context = inside = Context({**context, SPAN_KEY: next_step, SCOPE_KEY: next_step})
        _set(inside)
        tracker.step = tracker.parent = tracker.above = next_step
        iteration.step, iteration.children, iteration.optimizers = next_step, [], ()
        iteration.is_held = True
        iteration.covered = iteration.until = 0
        iteration.called = iteration.was_backward = iteration.was_stepped = False
        if every:
            _fold(tracker, next_step, iteration, every)
        else:
            next_step._is_detailed = None
        next_step._start = begins = now()
        buffers.put(next_step)
        parent_scope._overhead += begins - begun
        return True

    def open(self, training: Pass, context: Any, parent_scope: Any) -> None:
        """Open the next step of a pass, as a child of `parent_scope`."""
        if training.is_manual:
            _set(context)
            return
        tracker = self._tracker
        step = new_step()
        begin(step, "step", training.steps, None, parent_scope, context, now())
        training.steps += 1
        if tracker.torch_state.detail_every:
            step._is_detailed = tracker.steps_begun % tracker.torch_state.detail_every == 0
            tracker.steps_begun += 1
        iteration = Iteration(step, tracker.settle, tracker.torch_state.memory)
        tracker.opened(iteration, make_current(step, context))
        is_usual = training.is_decided and training.unused is None
        tracker.is_plain = is_usual and tracker.context is not None

    def close(self, training: Pass, left: Place | None = None) -> None:
        """Close the open step, if there is one."""
        tracker = self._tracker
        iteration = tracker.iteration
        if iteration is None:
            return
        tracker.closed()
        if iteration.has_manual_step:
            iteration.dissolve(iteration.step._above)
            training.is_manual = True
        else:
            iteration.close(self.micro_of, left)
            training.reached = max(training.reached, iteration.step._until)
            if tracker.torch_state.has_step_end_hook:
                tracker.torch_state.on_step_end()
        context = _get()
        if current_scope(context) is iteration.step:
            _set(without_step(context, iteration.step, training.inner_context))

    def undo_fetch(self, load: Phase) -> None:
        """Drop the step, or micro step, that was opened for a fetch that returned no batch."""
        training, tracker = self._passes.training, self._tracker
        iteration = tracker.iteration
        if training is None or iteration is None:
            return
        if (
            iteration.micro is not None
            and load._above is iteration.micro
            and not iteration.children
        ):
            iteration.undo_micro()
            tracker.into(None)
        elif load._above is iteration.step and not iteration.children and not iteration.was_stepped:
            tracker.closed()
            training.steps -= 1
            tracker.steps_begun -= 1
            iteration.dissolve(iteration.step._above)
            _set(training.inner_context)

    def place_of_next(self, training: Pass, context: Any, current: Any) -> tuple[Any, Any]:
        """Return the context and the parent of the next step.

        Called if no scope of the loop is current.
        """
        parent_scope = current
        while parent_scope._depth:
            if parent_scope is training.scope:
                return training.inner_context, training.scope
            parent_scope = parent_scope._above
        return context, current

    def is_changed(self, training: Pass) -> bool:
        """Return whether the weights were changed without an optimizer since the last batch.

        Checked only if no optimizer has stepped in the pass, since optimizers change the weights.
        """
        tracker = self._tracker
        before, training.version = training.version, tracker.gradients.version()
        return tracker.stepped == training.stepped and before not in (None, training.version)

    def begin_with(self, training: Pass, children: list[Phase]) -> None:
        """Close the open step, and begin the next one of the same pass with earlier phases."""
        self.close(training)
        parent_scope = training.scope or current_scope(training.outer_context)
        self.open(training, carry_over(_get(), training.inner_context), parent_scope)
        self.fill(children)

    def fill(self, children: list[Phase]) -> None:
        """Add earlier phases (`children`) to the step that was just opened."""
        iteration = self._tracker.iteration
        if iteration is None:
            for phase in children:
                self._tracker.settle(phase)
            return
        iteration.step._start = children[0]._start
        for phase in children:
            phase.move(iteration.step)
            iteration.add(phase)
            iteration.was_stepped |= phase._name == NAMES[OPTIMIZER]
            iteration.called |= phase._name == NAMES[FORWARD]

    def micro_of(self, step: Step, index: int) -> Step:
        """Open a micro step of a step."""
        micro = new_step()
        begin(micro, "micro_step", index, None, step, _get(), now(), is_fixed=True)
        return micro

    def yield_step(self) -> None:
        """Drop the open step, because the program opened its own scope as the step."""
        iteration = self._tracker.iteration
        self._tracker.closed()
        if self._passes.training is not None:
            self._passes.training.is_manual = True
        if iteration is not None:
            iteration.dissolve(iteration.step._above)


def _fold(tracker: OpenStep, step: Any, iteration: Iteration, every: int) -> None:
    """Record the phases of one in `every` steps; in other steps, fold them into the step."""
    step._is_detailed = is_detailed = tracker.steps_begun % every == 0
    tracker.steps_begun += 1
    tracker.folds = not is_detailed and tracker.clock is None
    if tracker.folds:
        step._folded = iteration.children
