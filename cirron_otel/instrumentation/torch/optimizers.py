"""`optimizer_step`, by torch's global hooks, and what GradScaler leaves out."""

from __future__ import annotations

import sys
from typing import Any

from ...sdk.errors import record_error
from ...sdk.state import state
from ..patches import Patches
from .iteration import MANY
from .kinds import BACKWARD, LOAD, OPTIMIZER, PARTIAL
from .left_open import fail_step, interrupt
from .recovery import is_abandoned, start_over
from .shared import Shared
from .tracker import Tracker
from .trackers import Trackers


class Optimizers:
    """The hooks of every optimizer."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers
        self._handles: list[Any] = []

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
            has_closure = len(args) > 1 or ("closure" in kwargs and kwargs["closure"] is not None)
            if tracker.is_plain and not tracker.inside and tracker.stepping is None:
                begin_plain(tracker, optimizer, has_closure)
            elif state.recording:
                begin_step(tracker, optimizer, has_closure)

        def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            tracker = trackers.t
            stepping = tracker.stepping
            if stepping is not None:
                end_step(tracker, stepping, optimizer)

        self._handles = [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]

    @property
    def is_installed(self) -> bool:
        """Whether the hooks are registered."""
        return bool(self._handles)

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


class Makings:
    """Replaces `Optimizer.__init__`, to know which optimizers are new."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def install(self, patches: Patches) -> None:
        """Raises AttributeError where torch has none."""
        import functools  # noqa: PLC0415

        from torch.optim import Optimizer  # noqa: PLC0415

        shared, original = self._shared, Optimizer.__init__

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                shared.optimizer_made(self)
            except Exception as error:
                record_error("torch", error)
            original(self, *args, **kwargs)

        patches.replace(Optimizer, "__init__", __init__)


class Stepping:
    """An optimizer's step that is open."""

    __slots__ = ("depth", "has_closure", "optimizer", "phase")

    def __init__(self, phase: Any, optimizer: Any, has_closure: bool) -> None:
        self.phase, self.optimizer, self.has_closure = phase, id(optimizer), has_closure
        self.depth = 1


def begin_plain(tracker: Tracker, optimizer: Any, has_closure: bool) -> None:
    """An optimizer begins to step where nothing special is to be expected."""
    try:
        tracker.stepped += 1
        iteration: Any = tracker.iteration
        iteration.was_stepped = True
        if iteration.micro is not None:
            iteration.stepped(optimizer)
            tracker.into(None)
        elif tracker.clock is not None and iteration.is_held:
            iteration.release()  # the device is asked for them from here on
        elif len(iteration.kids) > MANY:
            if iteration.is_held and not iteration.waits:
                iteration.release()
            iteration.thin()
        attrs = tracker.shared.optimizers.get(id(optimizer))
        if attrs is None:
            attrs = tracker.shared.meet(optimizer)
        phase = tracker.enter_plain(OPTIMIZER, "optimizer_step", attrs)
        if phase is not None:
            stepping = tracker.spare or Stepping(phase, optimizer, has_closure)
            stepping.phase, stepping.optimizer = phase, id(optimizer)
            stepping.has_closure, stepping.depth = has_closure, 1
            tracker.stepping = tracker.spare = stepping
    except BaseException as error:
        tracker.failed(error)


def begin_step(tracker: Tracker, optimizer: Any, has_closure: bool) -> None:
    """An optimizer begins to step."""
    try:
        if tracker.inside & LOAD:
            return
        if tracker.inside & PARTIAL:
            interrupt(tracker)
        is_alone = tracker.iteration is None and tracker.stepping is None
        if tracker.has_failed and is_alone:
            start_over(tracker)  # no fetch will
        elif tracker.inside & ~OPTIMIZER and is_abandoned(tracker):
            start_over(tracker)
        tracker.stepped += 1
        if id(optimizer) not in tracker.shared.optimizers:
            tracker.shared.meet(optimizer)
        stepping = tracker.stepping
        if stepping is not None:
            if tracker.inside & OPTIMIZER and _is_nested():
                # A wrapper around another optimizer, or the step of a class that it extends.
                stepping.depth += stepping.optimizer == id(optimizer)
                return
            fail_step(tracker)
        phase = open_step(tracker, optimizer)
        if phase is not None:
            tracker.stepping = Stepping(phase, optimizer, has_closure)
    except BaseException as error:
        tracker.failed(error)


def _is_nested() -> bool:
    """Whether the step that begins is inside another one; if not, an error ended the other one.

    The hooks are called by torch's function around `step`. It is on the stack twice then.
    """
    frame: Any = sys._getframe(3)
    code, frame = frame.f_code, frame.f_back
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def open_step(tracker: Tracker, optimizer: Any, attrs: dict[str, Any] | None = None) -> Any:
    """The scope of a step, in the right place."""
    if attrs is None:
        attrs = {"optimizer": type(optimizer).__name__}
    left = tracker.passes.tails.step(optimizer)
    if left is not None:
        return tracker.enter(OPTIMIZER, attrs, left)
    if not tracker.inside & BACKWARD:
        tracker.trains()
    iteration = tracker.iteration
    if iteration is not None:
        if tracker.inside & BACKWARD:
            iteration.was_stepped = True
        else:
            iteration.stepped(optimizer)
            tracker.into(None)
        return tracker.enter(OPTIMIZER, attrs)
    bare = None if tracker.inside & BACKWARD else tracker.bare.step(optimizer)
    return tracker.enter(OPTIMIZER, attrs, bare.step if bare is not None else None)


def end_step(tracker: Tracker, stepping: Stepping, optimizer: Any) -> None:
    """It has stepped."""
    try:
        if stepping.optimizer != id(optimizer):
            return
        stepping.depth -= 1
        if not stepping.depth:
            tracker.stepping = None
            tracker.was_forward = tracker.iteration is not None
            tracker.exit_plain(stepping.phase, OPTIMIZER)
    except BaseException as error:
        tracker.failed(error)


class Scaler:
    """GradScaler leaves out the steps whose gradients are not finite."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Raises AttributeError where torch has none."""
        from torch.amp.grad_scaler import GradScaler  # noqa: PLC0415

        trackers, original = self._trackers, GradScaler.step

        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            tracker = trackers.t
            before = tracker.stepped
            result = original(self, optimizer, *args, **kwargs)
            if state.recording and self.is_enabled():
                if tracker.stepped == before:
                    skip(tracker, optimizer)
                else:
                    look(tracker, self, optimizer)
            return result

        patches.replace(GradScaler, "step", step)


def skip(tracker: Tracker, optimizer: Any) -> None:
    """An optimizer would have stepped, and was not called."""
    try:
        tracker.trains()
        iteration = tracker.iteration
        if iteration is not None:
            iteration.stepped(optimizer)
            tracker.into(None)
        else:
            iteration = tracker.bare.step(optimizer)
        if iteration is not None:
            mark_skipped(iteration.step)
    except Exception as error:
        record_error("torch", error)


def look(tracker: Tracker, scaler: Any, optimizer: Any) -> None:
    """A fused optimizer is called in any case, and leaves the step out by itself."""
    try:
        iteration = tracker.iteration or tracker.bare.iteration
        found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if iteration is None or not found or not _is_fused(optimizer):
            return
        clock = tracker.shared.clock
        step = iteration.step
        for value in found.values():
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
    """Say on a step that its optimizer's step was left out."""
    if step._attrs is None:
        step._attrs = {}
    step._attrs["skipped"] = True
