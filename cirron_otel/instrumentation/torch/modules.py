"""`forward` and `loss`: the outermost call of a module.

Hooks on every module cost a microsecond a call of each, and hooks on a model would be pickled and
copied with it. So the *class* of a model gets a `__call__` that looks whether the call is an
outermost one. Which classes these are is found out while one step or two are watched: for so long
`torch.nn.Module.__call__` itself is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ...sdk.clock import now
from ...sdk.errors import swallowed
from ...sdk.otel_span import Constant
from ...sdk.state import CONTEXT, state
from ..patches import Patches
from .kinds import BACKWARD, FORWARD, LOSS, NAMES, NO_FORWARD, PARTIAL
from .left_open import fail_step, interrupt
from .shared import Shared
from .tracker import Tracker
from .trackers import Trackers

_WATCHED_STEPS = 2
_WATCHED_CALLS = 64
"""Outermost calls, outside of steps, after which it is enough, too."""


class Modules:
    """Finds the models, and opens their scopes."""

    def __init__(self, trackers: Trackers, shared: Shared, patches: Patches) -> None:
        import torch  # noqa: PLC0415

        self._trackers, self._shared, self._patches = trackers, shared, patches
        self._torch = torch
        self._graph_task = shared.graph_task
        self._base = torch.nn.Module
        self._known = _Models()
        """By the id of a module."""
        self._classes: set[tuple[type, str]] = set()
        self._steps = self._calls = 0
        self._passes = 0
        """Training passes begun so far."""
        self._due = 1
        """The number of the next one whose first steps are watched whatever is known."""
        self._watches = self._is_watching = False
        self._original: Any = None
        """What stood there first."""
        self._watcher: Any = None
        """What stands in the place of every module's `__call__` for a time."""

    def __reduce__(self) -> Any:
        return _Elsewhere, ()

    def install(self) -> None:
        """Begin to look for models."""
        self._shared.discover = self.watch
        self._shared.pass_begins = self.pass_begins
        self._shared.step_over = self.step_over
        self.watch()

    def pass_begins(self) -> None:
        """A training pass begins: look for models in the first one, and then more and more seldom.

        Replacing `Module.__call__` makes torch's classes forget what they know by heart, of which
        there are hundreds. A step without a model, or with a new optimizer, is a reason, too.
        """
        self._passes += 1
        if self._passes >= self._due:
            self._due = 4 * self._passes
            self.watch()

    def watch(self) -> None:
        """Look for models in the next steps."""
        self._steps, self._calls = _WATCHED_STEPS, _WATCHED_CALLS
        self._watches = self._shared.attends = True
        self.go_on()

    def step_over(self, was_forward: bool) -> None:
        """A step has ended: when enough of them were watched, no other module pays for it.

        `was_forward`: a model was called in it, as far as is known.
        """
        if self._shared.clock is not None:
            self._shared.clock.poll()
        if not was_forward:
            if not self._watches:
                self.watch()
            return
        self._steps -= 1
        if self._steps <= 0 and self._watches:
            self._rest()

    def _rest(self) -> None:
        self._watches = False
        self._shared.attends = self._shared.clock is not None
        self.pause()

    def pause(self) -> None:
        """Look for nothing while a model runs: all that is called in it is a part of it.

        What is compiled in it must find `Module.__call__` as it will be later: dynamo compiles
        again where a function that it saw is another one.
        """
        if self._is_watching and vars(self._base)["__call__"] is self._watcher:
            self._is_watching = False
            self._patches.undo(self._base, "__call__")

    def go_on(self) -> None:
        """Look again, if that is not over. Raises nothing."""
        if not self._watches or self._is_watching:
            return
        try:
            own = vars(self._base)["__call__"]
            if self._watcher is None:
                self._original = own
                self._watcher = self._method(self._base, "__call__", own)
            elif own is not self._original:
                return  # somebody else's, for a time: to put ours over it would make it stay
            self._is_watching = True
            self._patches.replace(self._base, "__call__", self._watcher)
        except Exception as error:
            self._watches = self._is_watching = False
            swallowed("torch", error)

    # --- the replaced methods -------------------------------------------------------------------

    def _adopt(self, owner: type, name: str) -> None:
        """Replace a method of a model's class."""
        if (owner, name) not in self._classes:
            self._replace(owner, name)

    def _replace(self, owner: type, name: str) -> None:
        self._classes.add((owner, name))
        own = vars(owner).get(name)
        self._patches.replace(owner, name, self._method(owner, name, own))

    def _method(self, owner: type, name: str, own: Callable[..., Any] | None) -> Any:
        self_, trackers, enter, base = self, self._trackers, self.enter, self._base
        is_compiling = self._torch.compiler.is_dynamo_compiling
        known_of = self._known.get
        call = _inherited(owner, name) if own is None else own
        is_direct = own is None and name == "__call__" and getattr(owner, name) is base.__call__

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return call(self, *args, **kwargs)
            tracker = trackers.t
            inside = tracker.inside
            known = known_of(id(self)) if tracker.is_plain and not inside else None
            if known is not None and known.is_usual and (tracker.was_forward or not known.is_loss):
                kind = known.kind
                phase = tracker.enter_plain(kind, known.name, known.attrs)
            elif (inside & NO_FORWARD and not inside & PARTIAL) or not state.recording:
                return call(self, *args, **kwargs)
            else:
                entered = enter(tracker, self)
                if entered is None:
                    return call(self, *args, **kwargs)
                phase, kind = entered
            if phase is None:
                tracker.inside = inside | kind
                try:
                    return call(self, *args, **kwargs)
                finally:
                    tracker.inside = inside
                    tracker.partial_until = now()
                    if self_._watches:
                        self_.go_on()
            try:
                if is_direct and type(self) is owner:
                    # A function less to go through, on the way that is walked most. A class that
                    # inherits from several may have another `__call__` behind this one.
                    result = base.__call__(self, *args, **kwargs)
                else:
                    result = call(self, *args, **kwargs)
            except BaseException as error:
                tracker.exit(phase, kind, error)
                if self_._watches:
                    self_.go_on()
                raise
            if kind == FORWARD:
                tracker.was_forward = True
                if tracker.iteration is not None:
                    tracker.iteration.called = True
            tracker.exit_plain(phase, kind)
            if self_._watches:
                self_.go_on()
            return result

        return _named_as(method, name, own)

    # --- calls ----------------------------------------------------------------------------------

    def enter(self, tracker: Tracker, module: Any) -> tuple[Any, int] | None:
        """Open the scope of a module's outermost call; None where it is nothing.

        Without a phase it is what a scope by hand says, or a part of a model that was met while it
        ran.
        """
        try:
            if tracker.inside & PARTIAL:
                if _around(module, self._base) is tracker.partial:
                    return None, PARTIAL
                interrupt(tracker)
            if tracker.compiled is not None:
                return None
            if CONTEXT.get() is not tracker.context and self._is_on_devices_thread(tracker):
                return None
            known = self._known.get(id(module))
            if known is None:
                known = self._meet(tracker, module)
                if known is None:
                    return None
            kind = known.kind
            if tracker.stepping is not None and not tracker.stepping.has_closure:
                fail_step(tracker)
            if kind == LOSS:
                if not tracker.was_forward:
                    return None
            else:
                if not known.is_usual and self._shared.is_grad_enabled() and module.training:
                    known.is_usual = True
                    self._shared.trained.add(module)
                tracker.passes.called(module)
            if self._is_watching:
                self.pause()
            return tracker.enter(kind, known.attrs), kind
        except Exception as error:
            swallowed("torch", error)
            return None

    def _is_on_devices_thread(self, tracker: Tracker) -> bool:
        """Whether autograd runs this, on a thread of its own."""
        return not tracker.inside & BACKWARD and self._graph_task() != -1

    def _meet(self, tracker: Tracker, module: Any) -> Known | None:
        """A module that is called for the first time, outermost as far as was seen."""
        if self._watches and tracker.iteration is None and tracker.bare.iteration is None:
            self._calls -= 1
            if self._calls <= 0:
                self._rest()
        around = _around(module, self._base)
        if around is not None:
            # Its `forward` was called without `__call__`, and is running.
            self._adopt(type(around), "forward")
            self._remember(around)
            self._shared.trained.add(around)
            tracker.passes.called(around)
            name = type(around).__name__
            tracker.partial, tracker.partial_until = around, 0
            if tracker.enter(FORWARD | PARTIAL, {"module": name}) is None:
                tracker.partial = None
            return None
        self._adopt(type(module), "__call__")
        return self._remember(module)

    def _remember(self, module: Any) -> Known:
        key, known = id(module), self._known
        reference = weakref.ref(module, lambda _: known.pop(key, None))
        kind = FORWARD if _is_model(module) else LOSS
        shown = module
        while type(shown).__name__ == "OptimizedModule" and hasattr(shown, "_orig_mod"):
            shown = shown._orig_mod
        if kind == FORWARD and self._shared.parameter is None:
            self._shared.parameter = _first_trained(module)
        attrs = Constant(module=type(shown).__name__)
        known[key] = made = Known(reference, kind, attrs)
        return made


class _Models(dict[int, "Known"]):
    """Modules that were called, by their ids."""

    def __reduce__(self) -> Any:
        return _Models, ()


class _Elsewhere:
    """What a class that was pickled by value finds in another process instead of Modules."""

    _watches = False

    def enter(self, _tracker: Tracker, _module: Any) -> None:
        """Nothing is recorded there."""


class Known:
    """A module that was called."""

    __slots__ = ("attrs", "is_loss", "is_usual", "kind", "name", "reference")

    def __init__(self, reference: Any, kind: int, attrs: dict[str, Any]) -> None:
        self.reference, self.kind, self.attrs = reference, kind, attrs
        self.name, self.is_loss = NAMES[kind], kind == LOSS
        self.is_usual = self.is_loss
        """Whether there is nothing to be learned from a call of it in a step: of a model, that it
        was trained."""


def _inherited(owner: type, name: str) -> Callable[..., Any]:
    """A method that a class inherits, looked up when it is called: others may replace it, too."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return call


def _named_as(
    method: Callable[..., Any], name: str, own: Callable[..., Any] | None
) -> Callable[..., Any]:
    """`method`, under the name of what it replaces."""
    if own is None:
        method.__name__ = method.__qualname__ = name
        return method
    # Who asks for its signature or its source is to find the original's.
    return functools.wraps(own)(method)


def _is_model(module: Any) -> bool:
    try:
        return next(iter(module.parameters()), None) is not None
    except Exception as error:
        swallowed("torch", error)
        return True  # no criterion has such


def _first_trained(module: Any) -> Any:
    with contextlib.suppress(Exception):
        for parameter in module.parameters():
            if parameter.requires_grad:
                return weakref.ref(parameter)
    return None


def _around(module: Any, base: type) -> Any:
    """The outermost module whose `forward` is running around this call, if there is one."""
    frame: Any = sys._getframe(3)
    found = None
    while frame is not None:
        if frame.f_code.co_name == "forward":
            owner = frame.f_locals.get("self")
            if isinstance(owner, base) and owner is not module:
                found = owner
        frame = frame.f_back
    return found
