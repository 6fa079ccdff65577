"""The open phases of one thread's training, and their parents.

The rules of docs/torch.md determine how phases nest. A phase inside a phase of the same kind is
part of the outer phase. A scope that the program opened with the name of a phase replaces that
phase. The open step collects the phases that are directly in it.
"""

from __future__ import annotations

from asyncio import _get_running_loop as running_loop
from typing import TYPE_CHECKING, Any

from opentelemetry.context.context import Context

from ...tracing.buffers import hooks
from ...tracing.clock import now
from ...tracing.enclosing import EnclosingSpan, innermost
from ...tracing.phase import (
    STEPS,
    LoaderPassSpan,
    Phase,
    Step,
    begin,
    leave,
    restore_context,
)
from ...tracing.scope import NO_SESSION
from ...tracing.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from .kinds import (
    BACKWARD,
    FORWARD,
    LOAD,
    NAMES,
    OPTIMIZER,
    PLAIN,
    TIMED,
    TRANSFER,
    UPKEEP,
)
from .open_step import Numbers, OpenStep
from .passes import Passes

if TYPE_CHECKING:
    from .torch_state import TorchState


_get = CONTEXT.get
_set = CONTEXT.set
_reset = CONTEXT.reset
_new = Phase.__new__


class OpenPhases(OpenStep):
    """The phases of one thread, with its steps and passes. Raises nothing."""

    # Use slots, because there are more attributes than an object can store inline.
    __slots__ = (
        "__weakref__",
        "backward",
        "backwards",
        "called",
        "compiled",
        "loaderless",
        "open",
        "partial",
        "partial_until",
        "passes",
        "spare",
        "stepping",
        "steps",
        "was_forward",
    )  # fmt: skip

    def __init__(self, torch_state: TorchState, numbers: Numbers | None = None) -> None:
        super().__init__(torch_state)
        self.open: Phase | None = None
        """The innermost open phase."""
        self.backward: Phase | None = None
        """The open `backward`, which is the parent of recomputations on other threads."""
        self.stepping: Any = None
        """The optimizer step that is open."""
        self.spare: Any = None
        """The last object in `stepping`, for reuse; after a skipped optimizer step, one with the
        step in place of the phase."""
        self.called = 0
        """The id of the optimizer whose step has begun at its call; 0 after torch's hook."""
        self.was_forward = False
        """Whether a model was called since the last fetch and the last optimizer step."""
        self.partial: Any = None
        """The model whose `forward` was discovered while it ran."""
        self.partial_until = 0
        """The end of the last call observed inside `partial`, monotonic ns."""
        self.compiled: Any = None
        """The call to a compiled function that has not returned yet."""
        self.backwards = 0
        """Number of backward passes begun."""
        self.passes = Passes(self, numbers or Numbers())
        self.steps = self.passes.steps
        self.loaderless = self.passes.loaderless

    # --- phases ---------------------------------------------------------------------------------

    def enter_plain(
        self, kind: int, name: str, attrs: dict[str, Any] | None, begun: int
    ) -> Phase | None:
        """Open a phase while `is_plain` is true, so that nothing needs to be decided.

        The hook was called at `begun`: the time from then on is the SDK's own. The body of `enter`
        is inlined, because this is the most frequent path, and other code has filled the CPU caches
        each time it runs.
        """
        try:
            context = _get()
            if context is not self.context:
                return self.enter(kind, attrs, None, begun)
            phase = _new(Phase)
            phase._name = name
            phase._attrs = attrs
            phase._above = parent = self.above
            phase._depth = parent._depth + 1
            phase._trace = parent._trace
            phase._index = phase._extras = phase._stamps = phase._token = None
            phase._end = phase._overhead = phase._until = 0
            phase._before = before = self.base
            if self.folds:
                phase._id = 0
                self.inside, self.open, phase._start = before | kind, phase, now()
                return phase
            buffers = self.buffers
            for phase._id in buffers.ids:
                break
            else:
                phase._id = buffers.next_id()
            phase._thread = buffers.ident
            phase._token = _set(Context({**context, SPAN_KEY: phase, SCOPE_KEY: phase}))
            if state.special:
                phase._notify_start(context)
            self.inside = before | kind
            self.open = phase
            phase._start = begun
            buffers.put(phase)
            phase._start = start = now()
            parent._overhead += start - begun
            if self.clock is not None and kind & TIMED:
                self.clock.begin(phase)
            return phase
        except BaseException as error:
            self.failed(error)
            return None

    def exit_plain(self, phase: Phase, kind: int, end: int) -> None:
        """Close a phase that ended at `end`, and raised nothing."""
        try:
            iteration = self.iteration
            parent = self.above
            if (
                not self.is_plain
                or iteration is None
                or phase._above is not parent
                or phase._stamps is not None
                or state.special
            ):
                self.exit(phase, kind, None, end)
                return
            phase._until = end
            token = phase._token
            if token is not None:
                phase._token = None
                try:  # noqa: SIM105 - contextlib.suppress costs as much as all this
                    _reset(token)
                except (ValueError, RuntimeError):
                    pass  # left in a context other than its own
            phase._end = end
            self.inside = before = phase._before
            if before:
                self.open = self.above  # the optimizer step, whose closure the phase is part of
            else:
                self.open = None
                iteration.children.append(phase)
                iteration.covered += end - phase._start
                iteration.until = end
            parent._overhead += now() - end
        except BaseException as error:
            self.failed(error)

    def enter(
        self, kind: int, attrs: dict[str, Any] | None, parent_scope: Any = None, begun: int = 0
    ) -> Phase | None:
        """Open a phase below `parent_scope`; None means that the parent is determined here.

        The hook was called at `begun`; 0: now. Returns None if the phase is not recorded.
        """
        try:
            return self._enter(kind, attrs, parent_scope, begun or now())
        except BaseException as error:
            self.failed(error)
            return None

    def _enter(
        self, kind: int, attrs: dict[str, Any] | None, parent_scope: Any, begun: int
    ) -> Phase | None:
        context = _get()
        if not state.recording or self.torch_state.is_over:
            return None
        if not self.torch_state.has_tasks and running_loop() is not None:
            self.torch_state.use_task_trackers()
        if state.session is NO_SESSION:
            # A forked child opens its session now, unless it is a DataLoader worker.
            hooks.first()
            if not state.recording:
                return None
            context = _get()
        if self.passes.training is not None and self.passes.training.over:
            self.passes.begins_phase()
            context = _get()
        elif kind & UPKEEP and self.passes.evaluation is not None:
            self.passes.upkeep_begins()
            context = _get()
        current: Any = context.get(SCOPE_KEY) or state.session
        name = NAMES[kind & PLAIN]
        has_other = context.get(SPAN_KEY) is not current
        is_fixed = parent_scope is not None
        if has_other and not is_fixed:
            current = innermost(context)  # a span of the program, if that is recorded
        is_over = type(current) is Step and bool(current._until) and not is_fixed
        if is_over:
            current = self._parent_after(current)
        if parent_scope is not None:
            current = parent_scope
        elif current is self.step:
            # A folded phase is not the current scope, but is the parent of the phases inside it.
            current = self.parent if self.open is None else self.open
            is_fixed = not has_other
        elif (
            current._depth and current is not self.open and self._is_opened_manually(current, name)
        ):
            self._note(kind & PLAIN)
            return None
        phase = _new(Phase)
        begin(phase, name, None, attrs, current, context, begun, is_fixed or is_over, enters=True)
        phase._before = before = self.inside
        if not before:
            self.opened_ns = phase._start - begun
        self.inside = before | kind
        self.open = phase
        if kind & TIMED and self.clock is not None:
            self.clock.begin(phase)
        return phase

    def _parent_after(self, step: Any) -> Any:
        """Return the parent of a phase in the context of a step that has ended.

        A span that outlives its step restores the step's context when it ends.
        """
        training = self.step
        return training if training is not None and training._above is step._above else step._above

    def exit(
        self, phase: Phase, kind: int, error: BaseException | None = None, until: int = 0
    ) -> None:
        """Close a phase that `enter` opened, now or as of `until`."""
        try:
            if phase._until:
                restore_context(phase)  # the session ended inside the phase
                return
            if phase._stamps is not None:
                self.clock.end(phase)
            phase._until = end = until or now()
            if error is not None:
                phase._fail(error)
            token, phase._token = phase._token, None
            if token is not None:
                try:  # noqa: SIM105 - contextlib.suppress costs as much as all this
                    _reset(token)
                except (ValueError, RuntimeError):
                    pass  # left in a context other than its own
            self.inside = phase._before
            if error is not None:
                kind = 0  # a failed phase does not classify its step or pass
            elif kind == FORWARD:
                self.was_forward = True
            parent_scope: Any = phase._above
            iteration = self.iteration
            self.open = None
            if parent_scope is self.parent and iteration is not None:
                if kind == BACKWARD:
                    iteration.was_backward = True
                elif kind == FORWARD:
                    iteration.called = True
                elif kind == TRANSFER:
                    iteration.is_odd = True  # the end of the transfer may still move
                if phase._stamps is not None or state.special or kind == TRANSFER:
                    iteration.add(phase)
                else:
                    iteration.count(phase)
                    phase._end = end
            else:
                self._place(phase, kind, parent_scope)
            parent_scope._overhead += now() - end
        except BaseException as problem:
            self.failed(problem)

    def _place(self, phase: Phase, kind: int, parent_scope: Any) -> None:
        """Decide when a phase that is not a child of the open step may be finished."""
        evaluation = self.passes.evaluation
        loaderless = self.loaderless.iteration
        if type(parent_scope) is Phase:
            self.open = parent_scope
            self._note(kind)
            self.settle(phase)
        elif evaluation is not None and parent_scope is evaluation.scope:
            evaluation.keep(phase)
        elif kind == LOAD and self.batch is not None:
            self.batch.add(phase)
        elif loaderless is not None and parent_scope is loaderless.step:
            loaderless.add(phase)
        elif self.passes.pass_ends.unfinished is not None and self.passes.pass_ends.takes(phase):
            pass  # the phase belongs to the last step of an unfinished pass
        elif not self.loaderless.takes(phase, kind):
            if type(parent_scope) is EnclosingSpan:
                parent_scope.note_phase()
            self._note(kind)
            training = self.passes.training
            if training is not None and parent_scope is training.scope:
                training.reached = max(training.reached, phase._until)
            self.settle(phase)

    def drop(self, phase: Phase) -> None:
        """Discard a scope that turned out not to be a phase."""
        try:
            leave(phase)
            if phase._stamps is not None:
                phase._stamps[0].release()
                phase._stamps = None
            self.inside = phase._before
            self.open = phase._above if type(phase._above) is Phase else None
            phase.drop()
            phase.finish()
        except BaseException as error:
            self.failed(error)

    def _note(self, kind: int) -> None:
        """Update the step for a phase that counts as part of it, although it is not its child."""
        if self.iteration is not None:
            if kind == BACKWARD:
                self.iteration.was_backward = True
            elif kind == OPTIMIZER:
                self.iteration.was_stepped = True
            elif kind == FORWARD:
                self.iteration.called = True
        if kind == FORWARD:
            self.was_forward = True

    def _is_opened_manually(self, current: Any, name: str) -> bool:
        """Return whether a scope that the program opened inside the step has the phase's name.

        If the program opened its own step inside the recorded step, drop the recorded step.
        """
        iteration = self.iteration
        is_step = False
        parent_scope = current
        while parent_scope._depth:
            if iteration is not None and parent_scope is iteration.step:
                if is_step:
                    self.passes.steps.yield_step()
                return False
            if not isinstance(parent_scope, Phase):
                if parent_scope._name == name:
                    return True
                is_step = is_step or parent_scope._name in STEPS
            elif isinstance(parent_scope, LoaderPassSpan):
                return False
            parent_scope = parent_scope._above
        return False

    def has_open(self, scope: Any) -> bool:
        """Return whether `scope` is the open step of this tracker, or the scope of an open pass."""
        training, evaluation = self.passes.training, self.passes.evaluation
        return (
            scope is self.step
            or (training is not None and scope is training.scope)
            or (evaluation is not None and scope is evaluation.scope)
            or (self.loop is not None and self.loop.has_open(scope))
        )
