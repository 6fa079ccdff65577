"""Record `zero_grad`, `clip_grad` and `scheduler_step`, the work between a step's phases.

`ScopeWrapper` also wraps the functions of checkpoints.py and collectives.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.hidden_frames import as_caller, strip
from ...tracing.otel_span import SharedAttributes
from ...tracing.state import state
from ..patches import Patches
from .health import Norms
from .kinds import CLIP_GRAD, NAMES, NO_UPKEEP, OPTIMIZER, PARTIAL, SCHEDULER, ZERO_GRAD
from .tracker import Tracker
from .trackers import Trackers
from .unclosed_phases import end_partial_forward

Attributes = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any] | None]
"""Returns the attributes of a scope from the arguments of the call; None if the call is not
recorded."""
Ended = Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], None]
"""Adds the attributes that are known only at the end of the call, from the call's arguments."""


class ScopeWrapper:
    """Wraps functions so that each outermost call is a scope of one kind."""

    def __init__(self, trackers: Trackers) -> None:
        from torch.compiler import is_dynamo_compiling  # noqa: PLC0415

        self._trackers, self._is_compiling = trackers, is_dynamo_compiling

    def wrap(
        self, original: Any, kind: int, attributes: Attributes, ended: Ended | None = None
    ) -> Any:
        """Return `original`, wrapped. A call inside a phase is part of that phase."""
        trackers, is_compiling, name = self._trackers, self._is_compiling, NAMES[kind]

        invoke = as_caller(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            begun = now()
            try:
                tracker = trackers.t
                inside = tracker.inside
                is_plain = tracker.is_plain and inside == tracker.base
                if inside and not is_plain and not _is_free(tracker, inside):
                    return invoke(*args, **kwargs)
                attrs = _attributes_of(attributes, args, kwargs)
                if attrs is None:
                    return invoke(*args, **kwargs)
                if is_plain:
                    phase = tracker.enter_plain(kind, name, attrs, begun)
                else:
                    phase = tracker.enter(kind, attrs, None, begun) if state.recording else None
                if phase is None:
                    return invoke(*args, **kwargs)
                try:
                    result = invoke(*args, **kwargs)
                except BaseException as error:
                    tracker.exit(phase, kind, error)
                    raise
                end = now()
                if ended is not None:
                    _add(ended, attrs, args, kwargs)
                tracker.exit_plain(phase, kind, end)
                return result
            except BaseException as error:
                strip(error)
                raise

        return call


def _is_free(tracker: Tracker, inside: int) -> bool:
    """Return whether a call is not part of a phase, although a phase is open."""
    try:
        if inside & PARTIAL:
            end_partial_forward(tracker)  # a partial forward ends when other work begins
            inside = tracker.inside
        if inside & OPTIMIZER and not inside & NO_UPKEEP:
            stepping = tracker.stepping
            return stepping is not None and stepping.has_closure
    except Exception as error:
        tracker.failed(error)
    return not inside & NO_UPKEEP


def _attributes_of(
    attributes: Attributes, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    try:
        return attributes(args, kwargs)
    except Exception as error:
        record_error("torch", error)
        return {}


def _add(
    ended: Ended, attrs: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        ended(attrs, args, kwargs)
    except Exception as error:
        record_error("torch", error)


def constant(**attrs: Any) -> Attributes:
    """Return a function that gives every call the same attributes."""
    shared = SharedAttributes(**attrs)
    return lambda _args, _kwargs: shared


def named(key: str) -> Attributes:
    """Return a function that puts the class name of a method's object into the attribute `key`."""
    known: dict[type, SharedAttributes] = {}

    def attributes(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> dict[str, Any]:
        kind = type(args[0])
        attrs = known.get(kind)
        if attrs is None:
            if len(known) > _MOST_CLASSES:
                known.clear()  # the program keeps creating classes
            attrs = known[kind] = SharedAttributes({key: kind.__name__})
        return attrs

    return attributes


_MOST_CLASSES = 256


class Upkeep:
    """Hooks the functions that zero gradients, clip gradients and schedule learning rates."""

    def __init__(self, wrapper: ScopeWrapper, patches: Patches) -> None:
        self._wrapper, self._patches = wrapper, patches
        self.norms: Norms | None = None
        """Marks the norms of clipped gradients; None if they are not marked."""

    def zero_grad(self) -> None:
        """Replace `zero_grad` of optimizers and modules. Raises AttributeError if torch changed."""
        from torch.nn import Module  # noqa: PLC0415
        from torch.optim import Optimizer  # noqa: PLC0415

        for owner, key in ((Optimizer, "optimizer"), (Module, "module")):
            wrapped = self._wrapper.wrap(owner.zero_grad, ZERO_GRAD, named(key))
            self._patches.replace(owner, "zero_grad", wrapped)

    def clip_grad(self) -> None:
        """Replace the functions. Raises AttributeError if torch has changed."""
        from torch.nn import utils  # noqa: PLC0415

        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = getattr(utils, name)
            if self.norms is not None and name == "clip_grad_norm_":
                original = self.norms.marking(original)
            wrapped = self._wrapper.wrap(original, CLIP_GRAD, constant(function=name))
            self._patches.replace_function((utils.clip_grad, utils), name, wrapped)

    def scheduler(self) -> None:
        """Replace `step` of each scheduler class that defines it, now or later."""
        from torch.optim.lr_scheduler import LRScheduler  # noqa: PLC0415

        def wrapped(original: Any) -> Any:
            return self._wrapper.wrap(original, SCHEDULER, _scheduler)

        self._patches.replace(LRScheduler, "step", wrapped(LRScheduler.step))
        self._patches.wrap_in_subclasses(LRScheduler, "step", wrapped)


_named_scheduler = named("scheduler")


def _scheduler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the attributes of a scheduler's step; None for the step in its constructor."""
    scheduler = args[0]
    if getattr(scheduler, "_step_count", 1) == 0 or getattr(scheduler, "_is_initial", False):
        return None
    return _named_scheduler(args, kwargs)
