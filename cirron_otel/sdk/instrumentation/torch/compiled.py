"""Record calls to compiled functions as `forward`, unless they turn out to be something else.

Calls to compiled *modules* are recorded by modules.py. This module watches the entry into compiled
code, regardless of where and when `torch.compile` was called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import functions_of, strip
from ...tracing.phase import leave
from ...tracing.state import state
from ..patches import Patches
from .kinds import BACKWARD, COMPILED, FORWARD, LOAD, LOSS, NAMES, OPTIMIZER, RECOMPUTE, TRANSFER
from .optimizers import open_step
from .tracker import Tracker
from .trackers import Trackers

_codes: dict[str, tuple[int, Sequence[CodeType]]] = {}
"""The code of each module of this package, with the number of names that the module had."""
_PARTS = LOAD | FORWARD | LOSS | BACKWARD | OPTIMIZER | TRANSFER | RECOMPUTE


class Compiled:
    """Replaces the function that dynamo calls before and after a call into compiled code."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers
        self._functions: dict[int, tuple[Any, Any]] = {}
        """The callback and the compiled object, by the id of the callback."""

    def install(self, patches: Patches, eval_frame: Any) -> None:
        """Hook `torch._dynamo.eval_frame`. Raises AttributeError if it has changed."""
        trackers, original = self._trackers, eval_frame._maybe_set_eval_frame
        get_frame = sys._getframe

        def _maybe_set_eval_frame(callback: Any) -> Any:
            tracker = trackers.t
            if state.recording:
                if tracker.compiled is not None:
                    if tracker.compiled.frame == id(get_frame(1)):
                        self._leave(tracker, get_frame(1))
                elif callback is not None and callback is not False and _is_free(tracker):
                    self._enter(tracker, callback, get_frame(1))
            try:
                return original(callback)
            except BaseException as error:
                strip(error)
                raise

        leave_alone()
        patches.replace(eval_frame, "_maybe_set_eval_frame", _maybe_set_eval_frame)

    def _enter(self, tracker: Tracker, callback: Any, frame: Any) -> None:
        try:
            known = self._functions.get(id(callback))
            if known is None:
                function = frame.f_locals.get("fn")
                known = self._functions[id(callback)] = (callback, function)
            function = known[1]
            owner = getattr(function, "__self__", None)
            was_forward = False
            is_closure = bool(tracker.inside & OPTIMIZER)
            if hasattr(owner, "param_groups"):
                if is_closure:
                    return
                phase, kind = open_step(tracker, owner), OPTIMIZER
                tracker.stepped += 1
            else:
                kind = FORWARD | COMPILED
                was_forward = tracker.was_forward
                tracker.passes.called(owner)
                name = getattr(function, "__name__", None) or type(function).__name__
                phase = tracker.enter(kind, {"function": name})
            if phase is not None:
                gate = tracker.torch_state.gate
                gate.is_open = gate.is_shared
                tracker.compiled = call = Call(phase, kind, id(frame), _version(tracker))
                call.backwards = tracker.backwards
                if is_closure:
                    call.version = None  # the optimizer changes the weights, not the closure
                call.may_be_loss = kind != OPTIMIZER and was_forward and owner is None
        except Exception as error:
            record_error("torch", error)

    def _leave(self, tracker: Tracker, frame: Any) -> None:
        call, tracker.compiled = tracker.compiled, None
        try:
            tracker.torch_state.gate.is_open = True
            error = sys.exc_info()[1]
            is_step = False
            if call.version is not None and error is None:
                is_step = _version(tracker) != call.version
            if is_step and tracker.backwards != call.backwards:
                # A complete step: its forward and its optimizer step cannot be distinguished.
                tracker.exit(call.phase, FORWARD)
                if tracker.iteration is not None:
                    tracker.iteration.stepped(call)
                    tracker.into(None)
            elif is_step:
                _turn_into_step(tracker, call.phase)
            elif call.may_be_loss and _is_scalar(frame.f_locals):
                tracker.drop(call.phase)
            else:
                tracker.exit(call.phase, call.kind & ~COMPILED, error)
        except Exception as problem:
            record_error("torch", problem)


def _is_free(tracker: Tracker) -> bool:
    """Return whether a call is not part of an open phase; it may be in an optimizer's closure."""
    inside = tracker.inside & _PARTS
    if inside == OPTIMIZER:
        stepping = tracker.stepping
        return stepping is not None and stepping.has_closure
    return not inside


def _turn_into_step(tracker: Tracker, phase: Any) -> None:
    """Close a phase that was opened as a forward, and turned out to be an optimizer step."""
    try:
        phase._name = NAMES[OPTIMIZER]
        if phase._stamps is not None:
            tracker.clock.end(phase)
        leave(phase)
        tracker.inside, tracker.open = phase._before, None
        tracker.passes.training_begins()
        parent_scope: Any = phase._above
        iteration = tracker.iteration
        if iteration is None or (
            parent_scope is not iteration.step and parent_scope is not iteration.micro
        ):
            iteration = tracker.loaderless.step(tracker)
        else:
            iteration.stepped(tracker)
            tracker.into(None)
        if iteration is None:
            tracker.settle(phase)
        else:
            phase.move(iteration.step)
            iteration.add(phase)
    except Exception as problem:
        tracker.failed(problem)


def leave_alone() -> None:
    """Keep dynamo from compiling functions of this package that it finds after a graph break.

    If these functions were compiled, they would always behave as during a compilation. Dynamo still
    traces through those that compiled code calls.
    """
    from torch._C._dynamo import eval_frame  # noqa: PLC0415

    if hasattr(eval_frame, "skip_code"):
        skip = eval_frame.skip_code
    else:
        # from torch 2.7 on
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)

        def skip(code: CodeType) -> None:
            eval_frame.set_code_exec_strategy(code, strategy)

    for name, module in list(sys.modules.items()):
        if name.startswith("cirron_otel.sdk") or name.startswith("cirron_otel.sdk.instrumentation"):
            for code in _codes_in(module):
                skip(code)


def _codes_in(module: ModuleType) -> Sequence[CodeType]:
    """Return what `_codes_of` yields, which is kept until the module gets another name."""
    size = len(vars(module))
    kept = _codes.get(module.__name__)
    if kept is None or kept[0] != size:
        found = {id(code): code for code in _codes_of(module)}
        kept = _codes[module.__name__] = (size, list(found.values()))
    return kept[1]


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a module's functions and methods, and of functions nested in them."""
    for function in functions_of(module):
        yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


class Call:
    """A call to a compiled function that has not returned yet."""

    __slots__ = ("backwards", "frame", "kind", "may_be_loss", "phase", "version")

    def __init__(self, phase: Any, kind: int, frame: int, version: int | None) -> None:
        self.phase, self.kind, self.frame = phase, kind, frame
        self.version = version if kind & COMPILED else None
        """The version of a trained parameter before the call. A call that changes it is an
        optimizer step."""
        self.backwards = 0
        """The number of backward passes before the call."""
        self.may_be_loss = False
        """Whether a model was called earlier: a call that returns one number is then the loss."""


def _is_scalar(names: dict[str, Any]) -> bool:
    """Return whether the call's frame shows that it returned one number.

    With torch 2.6, the frame has no result; then return True.
    """
    return "result" not in names or getattr(names["result"], "ndim", None) == 0


def _version(tracker: Tracker) -> int | None:
    gradients = tracker.gradients
    version = gradients.version()
    gradients.seeks_parameter = gradients.seeks_parameter or version is None
    return version
