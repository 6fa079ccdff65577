"""The scopes of a training loop that a framework runs: epochs, steps, evaluations, checkpoints.

The hooks of a framework call a TrainingLoop at the framework's own events. While a loop runs in a
thread, the hooks of frameworks with a lower priority open no epochs, steps and evaluations in that
thread, and add their phases to the loop's scopes. docs/frameworks.md defines the rules.
"""

from __future__ import annotations

import threading
from typing import Any, Self

from ..session.errors import record_error
from ..tracing.mark import POINT, mark
from ..tracing.phase import LoaderPassSpan, Phase, make_current
from ..tracing.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from .iteration import current_scope, opened_manually
from .loop_scopes import EPOCH, EVALUATION, STEP, LoopScopes
from .recording import is_recording
from .step_engine import current_engine

_get = CONTEXT.get

PRIORITY = ("transformers", "lightning", "accelerate", "keras", "tensorflow")
"""The frameworks in descending priority (Cirron's concepts page, "Framework hook priority"). Others
come after them, and torch, which runs no loops, is the last."""


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


class TrainingLoop(LoopScopes):
    """One run of a framework's training loop, or of an evaluation alone, in one thread.

    Create it with `start`. Every other method records its own errors and raises nothing. Methods
    that open a scope close the scopes that can no longer be open: a new step closes the last one,
    and an evaluation closes the open step.
    """

    logged: frozenset[str] = frozenset()
    """The marks of torch's hooks that the framework makes itself: `loss`, `grad_norm`."""

    def __init__(self, framework: str) -> None:
        super().__init__(framework)
        self._open_loops: list[TrainingLoop] = []
        """The open loops of the thread that started this one."""

    @classmethod
    def start(cls, framework: str) -> Self | None:
        """Begin a loop in this thread.

        Returns None if nothing is recorded, or if a loop of the same framework or of one with a
        higher priority is open in this thread: the scopes then belong to that loop.
        """
        try:
            if not is_recording():
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
            self.expected = None
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

        It closes the open step, unless a phase or a scope of the program is open in the step. With
        `is_in_step`, it does so only if the step's work is over (`end_step`); otherwise the
        evaluation is a child of the step.
        """
        try:
            if not (is_in_step and self._is_working) and not self.is_inside_step:
                self._close_step()
            if self._is_over:
                return None
            self._expected_after, self.expected = self.expected, None
            return self._open(EVALUATION, self._number(EVALUATION, index), attrs)
        except Exception as error:
            record_error(self.framework, error)
            return None

    def end_evaluation(self, error: BaseException | None = None) -> None:
        """Close the open evaluation; `error` is the exception that leaves it."""
        self._end(EVALUATION, error)

    # --- other scopes ---------------------------------------------------------------------------

    def open(self, name: str, **attrs: Any) -> LoaderPassSpan | None:
        """Open a scope that no step contains, such as `checkpoint`; pass it to `close`.

        If a phase or a scope of the program is open in the step, the scope is inside that.
        """
        try:
            if not self.is_inside_step:
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
            if not self._is_working and not self.is_inside_step:
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

    # --- inside ---------------------------------------------------------------------------------

    def _number(self, name: str, index: int | None) -> int:
        if index is not None:
            return index
        if self._engine is not None:
            return self._engine.next_number(name)
        return _loops.next_number(name)

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
                self.expected = None
            elif name == EVALUATION:
                self.expected, self._expected_after = self._expected_after, None
            while self._scopes:
                scope = self._scopes.pop()
                self._close_scope(scope, error)
                if scope._name == name:
                    return
        except Exception as problem:
            record_error(self.framework, problem)
