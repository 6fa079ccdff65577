"""The scopes of a training loop that a framework runs: epochs, steps, evaluations, checkpoints.

The hooks of a framework call a TrainingLoop at the framework's own events. While a loop runs in a
thread, the hooks of frameworks with a lower priority open no epochs, steps and evaluations in that
thread, and add their phases to the loop's scopes. docs/frameworks.md defines the rules.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from ..session.errors import record_error
from ..tracing.buffers import hooks
from ..tracing.clock import now
from ..tracing.mark import POINT, mark
from ..tracing.phase import (
    LoaderPassSpan,
    Phase,
    begin,
    enter,
    leave,
    make_current,
)
from ..tracing.scope import MAX_DEPTH, NO_SESSION
from ..tracing.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from ..tracing.step_places import GLOBAL_STEP
from ..tracing.unwinding import keep, raised_in
from .iteration import current_scope, new_step, opened_manually, without_step
from .loop_step import LoopStep
from .step_engine import StepEngine, close_phases, current_engine

EPOCH, STEP, EVALUATION = "epoch", "step", "eval"
_NEXT: dict[str, Any] = {"index": None}
"""The expected step after another one: it has the next number, and no attributes."""

PRIORITY = ("transformers", "lightning", "accelerate", "keras", "tensorflow")
"""The frameworks in descending priority (Cirron's concepts page, "Framework hook priority"). Others
come after them, and torch, which runs no loops, is the last."""

_get = CONTEXT.get
_set = CONTEXT.set


def _rank(framework: str) -> int:
    return PRIORITY.index(framework) if framework in PRIORITY else len(PRIORITY)


class _Loops(threading.local):
    """The open loops of a thread, the outermost first."""

    def __init__(self) -> None:
        self.open: list[TrainingLoop] = []
        self._session: Any = None
        self._numbers = {EPOCH: 0, EVALUATION: 0}

    def next_number(self, name: str) -> int:
        """Return the number of the next epoch or evaluation of this thread in the session."""
        if self._session is not state.session:
            self._session, self._numbers = state.session, {EPOCH: 0, EVALUATION: 0}
        self._numbers[name] += 1
        return self._numbers[name] - 1


_loops = _Loops()
_all: set[TrainingLoop] = set()
"""The open loops of all threads."""


def current_loop() -> TrainingLoop | None:
    """Return the innermost open loop of this thread."""
    return _loops.open[-1] if _loops.open else None


def after_fork() -> None:
    """In a forked child, forget the parent's loops."""
    global _loops  # noqa: PLW0603
    _loops = _Loops()
    for loop in _all:
        loop._open_loops.clear()
    _all.clear()


def end_all(framework: str | None = None) -> None:
    """End the open loops of a framework, or all of them, because the hooks are removed."""
    for loop in list(_all):
        if framework in (None, loop.framework):
            loop.end()


def is_step_open() -> bool:
    """Return whether a step is open around the caller, whoever opened it."""
    scope = _get().get(SCOPE_KEY)
    while scope is not None and scope._depth:
        if scope._name in (STEP, "batch"):
            return True
        scope = scope._above
    return False


def _leave_ended() -> None:
    """Leave the scopes of a loop of this thread that another thread has ended."""
    context = _get()
    scope = innermost = context.get(SCOPE_KEY)
    while isinstance(scope, Phase) and scope._until:
        scope = scope._above
    if scope is not innermost and context.get(SPAN_KEY) is innermost:
        make_current(scope, context)


def _settle(phase: Phase) -> None:
    phase.finish()


class TrainingLoop:
    """One run of a framework's training loop, or of an evaluation alone, in one thread.

    Create it with `start`. Every other method records its own errors and raises nothing. Methods
    that open a scope close the scopes that can no longer be open: a new step closes the last one,
    and an evaluation closes the open step.
    """

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.step: LoopStep | None = None
        """The open step."""
        self._engine: StepEngine | None = None
        self._scopes: list[LoaderPassSpan] = []
        """The open epochs and evaluations and the scopes of `open`, the outermost first."""
        self._expected: dict[str, Any] | None = None
        """The attributes of the next step, which the next fetch opens."""
        self._expected_after: dict[str, Any] | None = None
        """The same for the first fetch after the open evaluation."""
        self._steps = 0
        self._outer: Any = None
        """The context around the open step."""
        self._around_micro: Any = None
        """The context around the open micro step."""
        self._is_over = False
        self._open_loops: list[TrainingLoop] = []
        """The open loops of the thread that started this one."""

    @classmethod
    def start(cls, framework: str) -> Self | None:
        """Begin a loop in this thread.

        Returns None if nothing is recorded, or if a loop of the same framework or of one with a
        higher priority is open in this thread: the scopes then belong to that loop.
        """
        try:
            if state.session is NO_SESSION:
                hooks.first()
            if not state.recording or state.session is NO_SESSION:
                return None
            outer = current_loop()
            if outer is not None and _rank(outer.framework) <= _rank(framework):
                return None
            if outer is None:
                _leave_ended()
            loop = cls(framework)
            loop._engine = current_engine() if outer is None else None
            if loop._engine is not None:
                loop._engine.loop_begins(loop)
            elif outer is not None:
                outer._close_step()
                loop._engine = outer._engine
                if loop._engine is not None:
                    loop._engine.loop = loop
            loop._open_loops = _loops.open
            loop._open_loops.append(loop)
            _all.add(loop)
            return loop
        except Exception as error:
            record_error(framework, error)
            return None

    def end(self, error: BaseException | None = None) -> None:
        """End the loop, and close its open scopes. `error` is the exception that leaves it."""
        try:
            if self._is_over:
                return
            self._is_over = True
            self._expected = None
            if error is not None and self.step is not None:
                self._close_phases()
            self._close_step(error)
            while self._scopes:
                self._close_scope(self._scopes.pop(), error)
        except Exception as problem:
            record_error(self.framework, problem)
        finally:
            _all.discard(self)
            if self in self._open_loops:  # those of another thread, if that ends the loop
                self._open_loops.remove(self)
            outer = self._open_loops[-1] if self._open_loops else None
            if self._engine is not None and outer is not None:
                self._engine.loop = outer
            elif self._engine is not None:
                self._engine.loop_ends()

    # --- epochs and evaluations -----------------------------------------------------------------

    def begin_epoch(self, index: int | None = None, **attrs: Any) -> LoaderPassSpan | None:
        """Open `epoch[index]`; without `index`, the next number of this thread.

        Opens nothing inside an epoch or a step that the program opened itself.
        """
        try:
            self._close_step()
            self._steps = 0
            if self._is_over or opened_manually(current_scope(_get()), (EPOCH, STEP, "batch")):
                return None
            return self._open(EPOCH, self._number(EPOCH, index), attrs)
        except Exception as error:
            record_error(self.framework, error)
            return None

    def end_epoch(self) -> None:
        """Close the open epoch and the scopes in it."""
        self._end(EPOCH)

    def begin_evaluation(
        self, index: int | None = None, *, is_in_step: bool = False, **attrs: Any
    ) -> LoaderPassSpan | None:
        """Open `eval[index]`; without `index`, the thread's next number.

        It closes the open step. With `is_in_step`, it does so only if the step's work is over
        (`end_step`); otherwise the evaluation is a child of the step.
        """
        try:
            if not (is_in_step and self._is_working):
                self._close_step()
            if self._is_over:
                return None
            self._expected_after, self._expected = self._expected, None
            return self._open(EVALUATION, self._number(EVALUATION, index), attrs)
        except Exception as error:
            record_error(self.framework, error)
            return None

    def end_evaluation(self, error: BaseException | None = None) -> None:
        """Close the open evaluation; `error` is the exception that leaves it."""
        self._end(EVALUATION, error)

    # --- other scopes ---------------------------------------------------------------------------

    def open(self, name: str, **attrs: Any) -> LoaderPassSpan | None:
        """Open a scope that no step contains, such as `checkpoint`; pass it to `close`."""
        try:
            self._close_step()
            return None if self._is_over else self._open(name, None, attrs)
        except Exception as error:
            record_error(self.framework, error)
            return None

    def open_inside(self, name: str, **attrs: Any) -> LoaderPassSpan | None:
        """Open a scope that may be inside the open step, or micro step, while that works.

        Pass it to `close`. If the step's work is over (`end_step`), it is closed.
        """
        try:
            if not self._is_working:
                self._close_step()
            return None if self._is_over else self._open(name, None, attrs)
        except Exception as error:
            record_error(self.framework, error)
            return None

    def close(self, scope: LoaderPassSpan | None, error: BaseException | None = None) -> None:
        """Close a scope that `open` returned. If `error` is given, the scope has failed."""
        try:
            if scope is None or scope not in self._scopes:
                return
            if not self._is_in_step(scope):
                self._close_step()
            while self._scopes:
                innermost = self._scopes.pop()
                if innermost is scope and error is not None:
                    innermost._fail(error)
                self._close_scope(innermost)
                if innermost is scope:
                    return
        except Exception as problem:
            record_error(self.framework, problem)

    def mark(self, name: str, value: Any, kind: str = POINT, **attrs: Any) -> None:
        """Attach a value to the innermost open scope; a step is open until the next one begins."""
        mark(name, value, kind=kind, **attrs)

    # --- steps ----------------------------------------------------------------------------------

    def expect_step(self, index: int | None = None, **attrs: Any) -> None:
        """Let the next fetch of a batch close the last step and open the next one."""
        attrs["index"] = index
        self._expected = attrs

    def begin_step(self, index: int | None = None, **attrs: Any) -> None:
        """Open a step, or confirm the step that a fetch has opened since the last step began."""
        try:
            if self.step is None or self.step.is_begun:
                if index not in (None, self._steps) or attrs or not self._turn_over():
                    self._open_step(index, attrs)
            elif attrs:
                self.set_attributes(**attrs)
            self._expected = None
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
            self._expected = _NEXT if expects_next else None
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
            expected, self._expected = self._expected, None
            if expected is not None:
                attrs = expected.copy()
                self._open_step(attrs.pop("index"), attrs)
        except Exception as error:
            record_error(self.framework, error)

    def _turn_over(self) -> bool:
        """Close the open step and open the next, if there is nothing to decide."""
        engine = self._engine
        if self.step is None or engine is None or engine.inside or not engine.is_plain:
            return False
        self._expected = _NEXT
        return engine.turn_over()

    def take_plain_step(self) -> int | None:
        """Return the number of the step that a fetch begins now; None if it is not plain.

        A plain step follows a step that the framework has begun and ended. Torch's hooks then open
        it; `self.step` then contains the new step.
        """
        step = self.step
        if self._expected is not _NEXT or step is None or not step.is_begun:
            return None
        self._expected = None
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

    def _number(self, name: str, index: int | None) -> int:
        if index is not None:
            return index
        if self._engine is not None:
            return self._engine.next_number(name)
        return _loops.next_number(name)

    def _open(self, name: str, index: int | None, attrs: dict[str, Any]) -> LoaderPassSpan:
        scope = LoaderPassSpan.__new__(LoaderPassSpan)
        scope._ends = None
        context = _get()
        begin(scope, name, index, attrs or None, current_scope(context), context, now())
        enter(scope, context)
        self._scopes.append(scope)
        return scope

    def _end(self, name: str, error: BaseException | None = None) -> None:
        """Close the innermost open scope called `name`, and the scopes in it."""
        try:
            scope = next((each for each in reversed(self._scopes) if each._name == name), None)
            if scope is None:
                self._close_step()
                return
            if not self._is_in_step(scope):
                self._close_step(error)
            if name == EPOCH:
                self._expected = None
            elif name == EVALUATION:
                self._expected, self._expected_after = self._expected_after, None
            while self._scopes:
                scope = self._scopes.pop()
                self._close_scope(scope, error)
                if scope._name == name:
                    return
        except Exception as problem:
            record_error(self.framework, problem)

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
