"""Record `optimizer_step`, from the call to its return, and the steps that GradScaler skips.

Torch replaces the `step` of a class of optimizers by a function that calls hooks, when the first
optimizer of the class is made. That function is replaced once more, because its work ahead of the
hooks and after them takes 20 to 50 µs. The scope of a call that does not reach the replacement is
from hook to hook: a scheduler that was made earlier keeps the original.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.hidden_frames import strip
from ...tracing.otel_span import SharedAttributes
from ...tracing.state import state
from ..iteration import MANY
from ..patches import Patches, subclasses
from .kinds import BACKWARD, LOAD, OPTIMIZER, PARTIAL
from .recovery import is_abandoned, start_over
from .torch_state import TorchState
from .tracker import Tracker
from .trackers import Trackers
from .unclosed_phases import end_partial_forward, fail_step


class _Installed:
    """Whether the replaced functions record steps: a scheduler keeps one after the session.

    Also, a class that is pickled by value has a copy, which is off in the other process.
    """

    def __init__(self) -> None:
        self.is_on = False

    def __reduce__(self) -> Any:
        return _Installed, ()


class Optimizers:
    """The hooks before and after the step of every optimizer."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers
        self._handles: list[Any] = []
        self._installed = _Installed()

    def install(self) -> None:
        """Register the hooks."""
        from torch.compiler import is_dynamo_compiling as is_compiling  # noqa: PLC0415
        from torch.optim.optimizer import (  # noqa: PLC0415
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        trackers = self._trackers

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling():
                return
            tracker = trackers.t
            if tracker.called == id(optimizer):
                tracker.called = 0  # it has begun at the call
            else:
                begin(tracker, optimizer, args, kwargs, now(), is_call=False)

        def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            tracker = trackers.t
            stepping = tracker.stepping
            if stepping is not None and not stepping.calls:
                end_step(tracker, stepping, optimizer, now())

        self._handles = [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]

    def install_calls(self, patches: Patches) -> None:
        """Replace the functions that call the hooks, for optimizers that exist or are made later.

        Raises AttributeError if this torch has no such functions.
        """
        from torch.optim import Optimizer  # noqa: PLC0415

        self._installed.is_on = True
        hooked = Optimizer.profile_hook_step
        _Torch.step_code = hooked(lambda _: None).__code__
        original = Optimizer._patch_step_function

        def adopt(owner: type) -> None:
            try:
                step = vars(owner).get("step")
                if getattr(step, "__code__", None) is _Torch.step_code:
                    patches.replace_own(owner, "step", self._from_call(step))
            except Exception as error:  # such as a metaclass whose classes have no hash
                record_error("torch", error)

        @functools.wraps(original)
        def _patch_step_function(self: Any) -> None:
            try:
                original(self)
            except BaseException as error:
                strip(error)
                raise
            for owner in type(self).__mro__:
                adopt(owner)

        for owner in subclasses(Optimizer):
            adopt(owner)
        patches.replace(Optimizer, "_patch_step_function", _patch_step_function)

    def _from_call(self, original: Any) -> Any:
        """Return a function that begins the scope and calls torch's function around `step`."""
        from torch.compiler import is_dynamo_compiling as is_compiling  # noqa: PLC0415

        trackers, installed = self._trackers, self._installed

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not installed.is_on or not args:
                return original(*args, **kwargs)
            begun = now()
            tracker = trackers.t
            try:
                if tracker.compiled is not None:
                    return original(*args, **kwargs)  # part of a compiled function's scope
                begin(tracker, args[0], args, kwargs, begun, is_call=True)
                tracker.called = called = id(args[0])
                stepping = tracker.stepping
                if stepping is None or stepping.optimizer != called:
                    return original(*args, **kwargs)
                stepping.calls += 1
                result = original(*args, **kwargs)
                end = now()
                if tracker.stepping is stepping and stepping.calls:
                    stepping.calls -= 1
                    end_step(tracker, stepping, args[0], end)
                return result
            except BaseException as error:
                tracker.called = 0
                strip(error)
                raise

        return step

    @property
    def is_installed(self) -> bool:
        """Whether the hooks are registered."""
        return bool(self._handles)

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._installed.is_on = False


class OptimizerConstruction:
    """Replaces `Optimizer.__init__` to detect new optimizers."""

    def __init__(self, torch_state: TorchState) -> None:
        self._torch_state = torch_state

    def install(self, patches: Patches) -> None:
        """Replace the method. Raises AttributeError if this torch lacks it."""
        from torch.optim import Optimizer  # noqa: PLC0415

        torch_state, original = self._torch_state, Optimizer.__init__

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                try:
                    torch_state.optimizer_made(self)
                except Exception as error:
                    record_error("torch", error)
                original(self, *args, **kwargs)
            except BaseException as error:
                strip(error)
                raise

        patches.replace(Optimizer, "__init__", __init__)


class OpenOptimizerStep:
    """An optimizer step that has not ended yet."""

    __slots__ = ("calls", "depth", "has_closure", "optimizer", "phase")

    def __init__(self, phase: Any, optimizer: Any, has_closure: bool) -> None:
        self.phase, self.optimizer, self.has_closure = phase, id(optimizer), has_closure
        self.depth = 1
        self.calls = 0
        """The number of nested steps of the optimizer that began at their call, and end with it."""


class _Torch:
    step_code: Any = None
    """The code of torch's function around the `step` of each class."""


def begin(
    tracker: Tracker, optimizer: Any, args: Any, kwargs: Any, begun: int, *, is_call: bool
) -> None:
    """Open an optimizer step, at the call or in torch's hook, which began at `begun`."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    has_closure = closure is not None  # Accelerate always passes the argument
    if tracker.is_plain and not tracker.inside and tracker.stepping is None:
        begin_plain(tracker, optimizer, has_closure, begun)
    elif state.recording:
        begin_step(tracker, optimizer, has_closure, is_call=is_call, begun=begun)


def begin_plain(tracker: Tracker, optimizer: Any, has_closure: bool, begun: int) -> None:
    """Open an optimizer step on the fast path, on which nothing has to be decided."""
    try:
        tracker.stepped += 1
        iteration: Any = tracker.iteration
        iteration.was_stepped = True
        tracker.watches_gradients = False
        if iteration.micro is not None:
            iteration.stepped(optimizer)
            tracker.leave_micro()
        elif tracker.clock is not None and iteration.is_held:
            iteration.release()  # from now on, the events of the held phases are queried
        elif len(iteration.children) > MANY:
            if iteration.is_held and not iteration.is_waiting:
                iteration.release()
            iteration.thin()
        known = attrs = tracker.torch_state.optimizers.get(id(optimizer))
        if attrs is None:
            attrs = _register(tracker, optimizer)
        phase = tracker.enter_plain(OPTIMIZER, "optimizer_step", attrs, begun)
        if phase is not None:
            if known is None:
                tracker.torch_state.trainings.stepped(tracker, optimizer, phase)
            stepping = tracker.spare or OpenOptimizerStep(phase, optimizer, has_closure)
            stepping.phase, stepping.optimizer = phase, id(optimizer)
            stepping.has_closure, stepping.depth, stepping.calls = has_closure, 1, 0
            tracker.stepping = tracker.spare = stepping
            if has_closure:
                tracker.enter_closure(phase)
    except BaseException as error:
        tracker.failed(error)


def _register(tracker: Tracker, optimizer: Any) -> SharedAttributes:
    """Return the attributes of an optimizer that steps for the first time."""
    training = tracker.passes.training
    settings = None if training is None else training.settings
    return tracker.torch_state.register_optimizer(optimizer, settings)


def begin_step(
    tracker: Tracker, optimizer: Any, has_closure: bool, *, is_call: bool = False, begun: int = 0
) -> None:
    """Open an optimizer step."""
    try:
        if tracker.inside & LOAD:
            return
        if tracker.inside & PARTIAL:
            end_partial_forward(tracker)
        is_alone = tracker.iteration is None and tracker.stepping is None
        if tracker.has_failed and is_alone:
            start_over(tracker)  # without a loader, no fetch starts over
        elif tracker.inside & ~OPTIMIZER and is_abandoned(tracker, 4):
            start_over(tracker)
        tracker.stepped += 1
        tracker.watches_gradients = False
        is_known = id(optimizer) in tracker.torch_state.optimizers
        if not is_known:
            _register(tracker, optimizer)
        stepping = tracker.stepping
        if stepping is not None:
            if tracker.inside & OPTIMIZER and _is_nested(is_call):
                # A wrapper around another optimizer, or the `step` of a base class.
                stepping.depth += stepping.optimizer == id(optimizer)
                return
            fail_step(tracker)
        phase = open_step(tracker, optimizer, begun=begun)
        if phase is not None:
            if not is_known:
                tracker.torch_state.trainings.stepped(tracker, optimizer, phase)
            stepping = OpenOptimizerStep(phase, optimizer, has_closure)
            tracker.stepping = tracker.spare = stepping
    except BaseException as error:
        tracker.failed(error)


def _is_nested(is_call: bool) -> bool:
    """Return whether the optimizer step that begins is inside another optimizer step.

    If not, an error ended the other step. Torch's function around `step` is on the stack of a
    nested step: once at the call, and twice in the hooks, which it calls.
    """
    frame: Any = sys._getframe(4)
    code = _Torch.step_code
    if not is_call:
        code, frame = frame.f_code, frame.f_back
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def open_step(
    tracker: Tracker, optimizer: Any, attrs: dict[str, Any] | None = None, *, begun: int = 0
) -> Any:
    """Open the scope of an optimizer step below the step that it belongs to."""
    if attrs is None:
        attrs = {"optimizer": type(optimizer).__name__}
    left = tracker.passes.pass_ends.step(optimizer)
    if left is not None:
        return tracker.enter(OPTIMIZER, attrs, left, begun)
    if not tracker.inside & BACKWARD:
        tracker.training_begins()
    iteration = tracker.iteration
    if iteration is not None:
        if tracker.inside & BACKWARD:
            iteration.was_stepped = True
        else:
            iteration.stepped(optimizer)
            tracker.leave_micro()
        return tracker.enter(OPTIMIZER, attrs, None, begun)
    loaderless = None if tracker.inside & BACKWARD else tracker.loaderless.step(optimizer)
    parent_scope = None if loaderless is None else loaderless.step
    return tracker.enter(OPTIMIZER, attrs, parent_scope, begun)


def end_step(tracker: Tracker, stepping: OpenOptimizerStep, optimizer: Any, end: int) -> None:
    """Close an optimizer step that ended at `end`."""
    try:
        if stepping.optimizer != id(optimizer):
            return
        stepping.depth -= 1
        if not stepping.depth:
            tracker.stepping = None
            tracker.leave_closure()
            tracker.was_forward = tracker.iteration is not None
            tracker.exit_plain(stepping.phase, OPTIMIZER, end)
    except BaseException as error:
        tracker.failed(error)


class Scaler:
    """Detects the steps that GradScaler skips because their gradients are not finite."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Replace the method. Raises AttributeError if this torch lacks it."""
        from torch.amp.grad_scaler import GradScaler  # noqa: PLC0415

        trackers, original = self._trackers, GradScaler.step

        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                tracker = trackers.t
                before = tracker.stepped
                result = original(self, optimizer, *args, **kwargs)
                if state.recording and self.is_enabled():
                    if tracker.stepped == before:
                        skip(tracker, optimizer)
                    else:
                        check_fused_step(tracker, self, optimizer)
                return result
            except BaseException as error:
                strip(error)
                raise

        patches.replace(GradScaler, "step", step)


def skip(tracker: Tracker, optimizer: Any) -> None:
    """Record that GradScaler did not call an optimizer."""
    try:
        tracker.training_begins()
        iteration = tracker.iteration
        if iteration is not None:
            iteration.stepped(optimizer)
            tracker.leave_micro()
        else:
            iteration = tracker.loaderless.step(optimizer)
        if iteration is not None:
            mark_skipped(iteration.step)
            if id(optimizer) not in tracker.torch_state.optimizers:
                _register(tracker, optimizer)
                tracker.torch_state.trainings.stepped(tracker, optimizer, iteration.step)
            tracker.spare = OpenOptimizerStep(iteration.step, optimizer, has_closure=False)
    except Exception as error:
        record_error("torch", error)


def check_fused_step(tracker: Tracker, scaler: Any, optimizer: Any) -> None:
    """Check whether a fused optimizer skipped its step, because GradScaler always calls it."""
    try:
        iteration = tracker.iteration or tracker.loaderless.iteration
        overflows = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if iteration is None or not overflows or not _is_fused(optimizer):
            return
        clock = tracker.torch_state.clock
        step = iteration.step
        for value in overflows.values():
            if value.device.type == "cpu":
                if value.item():
                    mark_skipped(step)
            elif clock is not None:
                clock.read(step, value, mark_skipped)
    except Exception as error:
        record_error("torch", error)


def _is_fused(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def mark_skipped(step: Any) -> None:
    """Mark a step whose optimizer step was skipped."""
    if step._attrs is None:
        step._attrs = {}
    step._attrs["skipped"] = True
