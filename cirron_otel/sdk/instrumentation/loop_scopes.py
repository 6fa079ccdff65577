"""The open scopes of a training loop: its epochs and evaluations, and its step with micro steps."""

from __future__ import annotations

from typing import Any

from ..session.errors import record_error
from ..tracing.clock import now
from ..tracing.phase import LoaderPassSpan, Phase, begin, leave, make_current
from ..tracing.scope import MAX_DEPTH
from ..tracing.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from ..tracing.step_places import GLOBAL_STEP
from ..tracing.unwinding import keep, raised_in
from .iteration import current_scope, new_step, opened_manually, without_step
from .loop_step import LoopStep
from .step_engine import StepEngine, close_phases

EPOCH, STEP, EVALUATION = "epoch", "step", "eval"
_NEXT: dict[str, Any] = {"index": None}
"""The expected step after another one: it has the next number, and no attributes."""

_get = CONTEXT.get
_set = CONTEXT.set


def _settle(phase: Phase) -> None:
    phase.finish()


class LoopScopes:
    """The open scopes of a TrainingLoop, which extends this class, and the events of its steps.

    Public methods record their own errors and raise nothing.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.step: LoopStep | None = None
        """The open step."""
        self._engine: StepEngine | None = None
        self._scopes: list[LoaderPassSpan] = []
        """The open epochs and evaluations and the scopes of `open`, the outermost first."""
        self.expected: dict[str, Any] | None = None
        """The attributes of the next step, which the next fetch opens. None: a fetch belongs to the
        open step."""
        self._expected_after: dict[str, Any] | None = None
        """The same for the first fetch after the open evaluation."""
        self._steps = 0
        self._outer: Any = None
        """The context around the open step."""
        self._around_micro: Any = None
        """The context around the open micro step."""
        self._is_over = False

    # --- steps ----------------------------------------------------------------------------------

    def expect_step(self, index: int | None = None, **attrs: Any) -> None:
        """Let the next fetch of a batch close the last step and open the next one."""
        attrs["index"] = index
        self.expected = attrs

    def begin_step(self, index: int | None = None, **attrs: Any) -> None:
        """Open a step, or confirm the step that a fetch has opened since the last step began."""
        try:
            if self.step is None or self.step.is_begun:
                if index not in (None, self._steps) or attrs or not self._turn_over():
                    self._open_step(index, attrs)
            elif attrs:
                self.set_attributes(**attrs)
            self.expected = None
            if self.step is not None:
                self.step.is_begun = True
        except Exception as error:
            record_error(self.framework, error)

    def begin_micro_step(self) -> None:
        """Open the next micro step of the open step."""
        try:
            if self.step is not None and self.step.step._id:
                self._leave_micro()
                micro = self.step.begin_micro()
                self._around_micro = _get()
                inside = make_current(micro, self._around_micro)
                if self._engine is not None:
                    self._engine.into(micro)
                    self._engine.context = inside if micro._depth < MAX_DEPTH else None
        except Exception as error:
            record_error(self.framework, error)

    def end_micro_step(self) -> None:
        """Close the open micro step; subsequent phases belong to the step."""
        try:
            if self.step is not None and self.step.micro is not None:
                while self._scopes and self._is_in_step(self._scopes[-1]):
                    self._close_scope(self._scopes.pop())
                self.step._close_micro()
                self._leave_micro()
        except Exception as error:
            record_error(self.framework, error)

    def leave_micro(self) -> None:
        """Make the step the current scope: an optimizer step has closed the micro step.

        Called by torch's hooks.
        """
        try:
            self._leave_micro()
        except Exception as error:
            record_error(self.framework, error)

    def set_attributes(self, **attrs: Any) -> None:
        """Set attributes of the open step."""
        if self.step is not None:
            step = self.step.step
            step._attrs = {**(step._attrs or {}), **attrs}

    def drop_step(self) -> None:
        """Discard the open step, which had no batch; its children move to its parent."""
        try:
            if self.step is not None:
                self.step.take_micro_apart()
                self._leave_micro()
                self.step.is_begun = False
                self._close_step()
        except Exception as error:
            record_error(self.framework, error)

    def end_step(self, global_step: int | None = None, *, expects_next: bool = True) -> None:
        """Mark the end of the open step's work; the next fetch may open another step.

        The step remains open for marks until another scope begins. It ends with its last child.
        `global_step` is the framework's number of the step. Without `expects_next`, a fetch opens
        no step.
        """
        try:
            iteration = self.step
            if iteration is not None:
                if iteration.micro is not None:
                    self.end_micro_step()
                if global_step is not None:
                    step = iteration.step
                    step._attrs = {**(step._attrs or {}), GLOBAL_STEP: global_step}
                iteration.is_over = True
            self.expected = _NEXT if expects_next else None
        except Exception as error:
            record_error(self.framework, error)

    def close_step(self) -> None:
        """Close the open step."""
        try:
            self._close_step()
        except Exception as error:
            record_error(self.framework, error)

    def fetching(self) -> None:
        """Open the expected step, because a batch is fetched now. Called by torch's hooks."""
        try:
            expected, self.expected = self.expected, None
            if expected is not None:
                attrs = expected.copy()
                self._open_step(attrs.pop("index"), attrs)
        except Exception as error:
            record_error(self.framework, error)

    def take_plain_step(self) -> int | None:
        """Return the number of the step that a fetch begins now; None if it is not plain.

        A plain step follows a step that the framework has begun and ended. Torch's hooks then open
        it; `self.step` then contains the new step.
        """
        step = self.step
        if self.expected is not _NEXT or step is None or not step.is_begun:
            return None
        self.expected = None
        step.is_begun = step.is_over = False
        index = self._steps
        self._steps = index + 1
        return index

    @property
    def outer_context(self) -> Any:
        """The context around the open step."""
        return self._outer

    def add(self, phase: Phase) -> None:
        """Count an ended phase of the open step that torch's hooks did not record."""
        try:
            if self.step is not None and self.step.owns(phase._above):
                self.step.add(phase)
            else:
                phase.finish()
        except Exception as error:
            record_error(self.framework, error)

    def has_open(self, scope: Any) -> bool:
        """Return whether the loop opened `scope` and has not closed it."""
        return scope in self._scopes or (self.step is not None and scope is self.step.step)

    def is_open(self, name: str) -> bool:
        """Return whether a scope of this name is open in the loop."""
        return any(each._name == name for each in self._scopes)

    # --- inside ---------------------------------------------------------------------------------

    def _turn_over(self) -> bool:
        """Close the open step and open the next, if there is nothing to decide."""
        engine = self._engine
        if self.step is None or engine is None or engine.inside or not engine.is_plain:
            return False
        self.expected = _NEXT
        return engine.turn_over()

    def _open(self, name: str, index: int | None, attrs: dict[str, Any]) -> LoaderPassSpan:
        scope = LoaderPassSpan.__new__(LoaderPassSpan)
        scope._ends = None
        context = _get()
        parent = current_scope(context)
        begin(scope, name, index, attrs or None, parent, context, now(), enters=True)
        self._scopes.append(scope)
        return scope

    def _close_scope(self, scope: LoaderPassSpan, error: BaseException | None = None) -> None:
        leave(scope)
        step = self.step
        if error is not None:
            keep(scope, raised_in(error), scope._until)
            if step is not None and scope._above in (step.step, step.micro):
                scope._above.inside.append((scope._start, scope._until))
        elif step is not None and scope._above is (step.micro or step.step):
            step.add(scope)
        else:
            scope.finish()
        if scope._name == EPOCH:
            state.epoch_ended(scope)

    def _open_step(self, index: int | None, attrs: dict[str, Any]) -> None:
        self._close_step()
        context = _get()
        parent = current_scope(context)
        if self._is_over or opened_manually(parent, (STEP, "batch")):
            return
        engine = self._engine
        if engine is not None and engine.inside:
            self._close_phases()  # an exception that was caught has left them open
        step = new_step()
        number = self._steps if index is None else index
        self._steps = number + 1
        begin(step, STEP, number, attrs or None, parent, context, now())
        if engine is not None:
            step._is_detailed = engine.is_detailed()
            self.step = LoopStep(step, engine.settle, engine.memory, len(self._scopes))
        else:
            self.step = LoopStep(step, _settle, None, len(self._scopes))
        self._outer = context
        inside = make_current(step, context)
        if engine is not None:
            engine.opened(self.step, inside)
            engine.is_plain = engine.context is not None

    def _close_phases(self) -> None:
        if self._engine is not None:
            close_phases(self._engine)

    @property
    def _is_working(self) -> bool:
        """Whether a step is open whose work is not over."""
        return self.step is not None and self.step.is_begun and not self.step.is_over

    @property
    def is_inside_step(self) -> bool:
        """Whether a scope in the open step is current: a phase, or a scope of the program.

        The step cannot end before it.
        """
        step = self.step
        if step is None:
            return False
        scope = current_scope(_get())
        while isinstance(scope, Phase) and scope._until:  # a micro step that has ended
            scope = scope._above
        innermost = scope
        while scope._depth:
            if step.owns(scope):
                return scope is not innermost
            scope = scope._above
        return False

    def _is_in_step(self, scope: Any) -> bool:
        """Return whether one of the open scopes was opened inside the open step."""
        return self.step is not None and scope in self._scopes[self.step.scopes_around :]

    def _leave_micro(self) -> None:
        """Make the step the current scope after a micro step, and attach phases to it."""
        if self.step is None:
            return
        step, context = self.step.step, _get()
        current = current_scope(context)
        if current is not step and current._above is step and type(current) is type(step):
            _set(without_step(context, current, self._around_micro))
            context = _get()
        if self._engine is not None:
            self._engine.into(None)
            is_step = context.get(SPAN_KEY) is step and context.get(SCOPE_KEY) is step
            self._engine.context = context if is_step and step._depth < MAX_DEPTH else None

    def _close_step(self, error: BaseException | None = None) -> None:
        if self.step is None:
            return
        while len(self._scopes) > self.step.scopes_around:
            self._close_scope(self._scopes.pop(), error)
        if self.step.micros:
            self._leave_micro()
        iteration, self.step = self.step, None
        if self._engine is not None:
            self._engine.closed()
        step = iteration.step
        if iteration.is_begun or error is not None:
            iteration.close(None, raised_in(error) if error is not None else None)
            if self._engine is not None:
                self._engine.step_ended()
        else:  # no batch was left, or none was used
            self._steps -= 1
            iteration.dissolve(step._above)
        context = _get()
        if current_scope(context) is step:
            _set(without_step(context, step, self._outer))
