"""Record the outermost call to a module as `forward` or `loss`.

`torch.nn.Module.__call__` is replaced once, when the hooks are installed. Assigning it empties the
method caches of every subclass, which takes a millisecond in a large program, so it is not assigned
again before the hooks are removed. On a call inside a model, the replacement reads one attribute
and continues like torch's own function (docs/adr/0021). A class is changed only if it defines its
own `__call__`, or if its `forward` is called directly.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.hidden_frames import in_place_of, strip
from ...tracing.otel_span import SharedAttributes
from ...tracing.state import CONTEXT, state
from ..patches import Patches
from .kinds import AHEAD, BACKWARD, FORWARD, LOSS, NO_FORWARD, PARTIAL
from .known_modules import KnownModule, Models, has_parameters, is_torchmetric
from .loaderless import LoaderlessSteps
from .tensor_references import references
from .torch_state import TorchState
from .tracker import Tracker
from .trackers import Trackers
from .unclosed_phases import end_partial_forward, fail_step

_ORIGINAL = "unpatched_nn_module_call"
_HOLD_ORIGINAL = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")
"""Dynamo's modules that store `Module.__call__` under this name, to check whether it was replaced.
"""
_MOST_CLASSES = 1_024
"""Maximum number of classes whose `__call__` or `forward` is replaced: a program may create any
number of classes."""


class Modules:
    """Discovers models, and records their calls."""

    def __init__(self, trackers: Trackers, torch_state: TorchState, patches: Patches) -> None:
        import torch  # noqa: PLC0415

        self._trackers, self._torch_state, self._patches = trackers, torch_state, patches
        self._torch = torch
        self._graph_task = torch_state.graph_task
        self._base = torch.nn.Module
        self._known = Models()
        """The modules that were called, by their ids."""
        self._classes: set[tuple[type, str]] = set()
        self._own_calls: weakref.WeakSet[Any] = weakref.WeakSet()
        """The replacements of `__call__` in classes that do not call the inherited one."""
        self._gate = torch_state.gate

    def __reduce__(self) -> Any:
        return _InertModules, ()

    def install(self) -> None:
        """Replace `Module.__call__`, and the references with which dynamo compares it."""
        original = vars(self._base)["__call__"]
        finder = self._finder(original)
        self._patches.replace(self._base, "__call__", finder)
        for name in _HOLD_ORIGINAL:
            module = sys.modules.get(name)
            if getattr(module, _ORIGINAL, None) is original:
                self._patches.replace(module, _ORIGINAL, finder)
        self._patches.wrap_in_subclasses(self._base, "__call__", self._wrapped_call)
        self._gate.is_open = True

    def _wrapped_call(self, original: FunctionType) -> Any:
        """Return the replacement of a class's own `__call__` that calls no inherited one."""
        code = getattr(inspect.unwrap(original), "__code__", None)
        if (original.__module__ or "").partition(".")[0] == "torch" or (
            code is None
            or {"super", "__call__"} <= set(code.co_names)
            or inspect.iscoroutinefunction(original)
        ):
            return None
        gate, is_compiling = self._gate, self._torch.compiler.is_dynamo_compiling
        outermost = self._method(self._base, "__call__", original)

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if is_compiling():
                return original(self, *args, **kwargs)
            try:
                return (outermost if gate.is_open else original)(self, *args, **kwargs)
            except BaseException as error:
                strip(error)
                raise

        self._own_calls.add(__call__)
        return __call__

    def _finder(self, original: Any) -> Callable[..., Any]:
        """Return the replacement of `original`, which is `Module.__call__`."""
        gate = self._gate
        is_compiling = self._torch.compiler.is_dynamo_compiling
        is_copied = _is_copied(original)
        outermost = self._method(self._base, "__call__", original, is_copied=is_copied)
        if not is_copied:

            def outer(self: Any, *args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    return original(self, *args, **kwargs)
                try:
                    return (outermost if gate.is_open else original)(self, *args, **kwargs)
                except BaseException as error:
                    strip(error)
                    raise

            return _named_as(outer, "__call__", original)

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if gate.is_open and not is_compiling():
                if self._compiled_call_impl is not None:
                    return outermost(self, *args, **kwargs)
                return outermost(self, *args, **kwargs)
            # The body of torch's function, which saves a call in each layer of a model.
            if self._compiled_call_impl is not None:
                return self._compiled_call_impl(*args, **kwargs)
            return self._call_impl(*args, **kwargs)

        # The calls with and without compiled code are on two lines of torch's function.
        located = in_place_of(__call__, original, (0, 1, 0, 1))
        return _named_as(located, "__call__", original)

    # --- the replaced methods -------------------------------------------------------------------

    def _adopt(self, owner: type, name: str) -> None:
        """Replace a method of a model's class, unless the class inherits `Module.__call__`."""
        if name == "__call__":
            inherited = owner.__call__
            is_ours = isinstance(inherited, FunctionType) and inherited in self._own_calls
            if is_ours or inherited is self._base.__call__:
                return
        if (owner, name) not in self._classes and len(self._classes) < _MOST_CLASSES:
            self._replace(owner, name)

    def _replace(self, owner: type, name: str) -> None:
        self._classes.add((owner, name))
        defined = vars(owner).get(name)
        self._patches.replace(owner, name, self._method(owner, name, defined))

    def _method(  # noqa: PLR0915 - the body of a hook
        self, owner: type, name: str, defined: Callable[..., Any] | None, *, is_copied: bool = False
    ) -> Any:
        trackers, gate, enter = self._trackers, self._gate, self.enter
        is_compiling = self._torch.compiler.is_dynamo_compiling
        known_of = self._known.get
        call = _inherited(owner, name) if defined is None else defined
        if is_copied:
            call = _wrapped_call_impl  # the frame of torch's function is the one around this

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return call(self, *args, **kwargs)
            begun = now()
            try:
                tracker = trackers.t
                inside = tracker.inside
                is_plain = tracker.is_plain and inside == tracker.base
                known = known_of(id(self)) if is_plain else None
                if (
                    known is not None
                    and known.is_usual
                    and (tracker.was_forward or not known.is_loss)
                ):
                    kind = known.kind
                    phase = tracker.enter_plain(kind, known.name, known.attrs, begun)
                elif (inside & NO_FORWARD and not inside & PARTIAL) or not state.recording:
                    return call(self, *args, **kwargs)
                else:
                    entered = enter(tracker, self, (args, kwargs), begun)
                    if entered is None:
                        return call(self, *args, **kwargs)
                    phase, kind = entered
                gate.is_open = gate.is_shared or kind == AHEAD
                if phase is None:
                    tracker.inside = inside | kind
                    try:
                        return call(self, *args, **kwargs)
                    finally:
                        tracker.inside = inside
                        tracker.partial_until = now()
                        gate.is_open = True
                try:
                    if is_copied and self._compiled_call_impl is None:
                        # Saves a call on the most frequent path.
                        result = self._call_impl(*args, **kwargs)
                    else:
                        result = call(self, *args, **kwargs)
                except BaseException as error:
                    gate.is_open = True
                    tracker.exit(phase, kind, error)
                    raise
                end = now()
                gate.is_open = True
                if kind == FORWARD:
                    tracker.was_forward = True
                    if tracker.iteration is not None:
                        tracker.iteration.called = True
                    else:
                        tracker.loaderless.returned(result)
                tracker.exit_plain(phase, kind, end)
                return result
            except BaseException as error:
                strip(error)
                raise

        return _named_as(method, name, defined)

    # --- calls ----------------------------------------------------------------------------------

    def enter(
        self, tracker: Tracker, module: Any, arguments: Any, begun: int = 0
    ) -> tuple[Any, int] | None:
        """Open the scope of a module's outermost call; None if the call is part of another call.

        The returned phase is None if a manual scope of the same name is open, if the module is part
        of a model whose `forward` was called directly, or if it is neither a model nor a loss.
        """
        try:
            if tracker.inside & PARTIAL:
                if _enclosing_forward(module, self._base) is tracker.partial:
                    return None, PARTIAL
                end_partial_forward(tracker)
            if tracker.compiled is not None:
                return None
            if CONTEXT.get() is not tracker.context and self._is_on_devices_thread(tracker):
                return None
            known = self._known.get(id(module))
            if known is None:
                known = self._discover(tracker, module)
                if known is None:
                    return None
            kind = known.kind
            if tracker.stepping is not None and not tracker.stepping.has_closure:
                fail_step(tracker)
            if kind == LOSS:
                if tracker.inside & AHEAD:
                    return None
                if not self._is_loss(tracker, known, arguments):
                    return None, AHEAD
            else:
                if not known.is_usual and self._torch_state.is_grad_enabled() and module.training:
                    known.is_usual = True
                    self._torch_state.trained.add(module)
                    self._torch_state.configuration.model_trains(module)
                    if known.parameter is not None:
                        tracker.gradients.watch(known.parameter)
                if tracker.gradients.parameter is None:
                    _watch_first(tracker, known)
                tracker.passes.called(module, arguments)
                if tracker.iteration is None and tracker.passes.evaluation is None:
                    self._outside_of_steps(tracker.loaderless, known, module)
            return tracker.enter(kind, known.attrs, None, begun), kind
        except Exception as error:
            record_error("torch", error)
            return None

    def _is_loss(self, tracker: Tracker, known: KnownModule, arguments: Any) -> bool:
        """Return whether a call to a module without parameters is a loss.

        A loss follows a forward pass. Without a loader, nothing shows where a batch begins, so a
        loss must also depend on a trained tensor, or have several arguments if gradients are off.
        Also, without a loader, a module that was ever called before a model is never a loss.
        A metric is never one.
        """
        if known.is_metric:
            return False
        is_in_pass = tracker.iteration is not None or tracker.passes.evaluation is not None
        if is_in_pass or known.is_proven:
            return tracker.was_forward
        if not tracker.was_forward:
            known.is_ahead = True
        if known.is_ahead:
            return False
        values = [*arguments[0], *arguments[1].values()]
        if not self._torch_state.is_grad_enabled():
            return len(values) > 1
        tensors = [each for each in values if isinstance(each, self._torch.Tensor)]
        with self._torch_state.unseen():
            known.is_proven = not tensors or any(each.requires_grad for each in tensors)
        known.is_ahead = not known.is_proven
        return known.is_proven

    def _outside_of_steps(
        self, loaderless: LoaderlessSteps, known: KnownModule, module: Any
    ) -> None:
        """Record which model is trained or evaluated while no loader drives steps."""
        torch_state = self._torch_state
        trained = None if torch_state.parameter is None else torch_state.parameter.get()
        loaderless.evaluates = not module.training and (
            known.is_usual
            or (bool(torch_state.trained) and known.has_parameter(trained))
            or torch_state.is_to_be_trained(known)
        )
        if not torch_state.is_grad_enabled():
            return
        if loaderless.model is not known.attrs and known.parameter is not None:
            loaderless.model = known.attrs
            loaderless.gradients.watch(known.parameter)

    def _is_on_devices_thread(self, tracker: Tracker) -> bool:
        """Return whether autograd runs this call on one of its own threads."""
        return not tracker.inside & BACKWARD and self._graph_task() != -1

    def _discover(self, tracker: Tracker, module: Any) -> KnownModule | None:
        """Discover a module at its first call, which is not inside a known call."""
        model = None if tracker.inside & AHEAD else _enclosing_forward(module, self._base)
        if model is not None:
            # The model's `forward` was called directly, and is running.
            self._adopt(type(model), "forward")
            known = self._remember(model)
            if tracker.gradients.parameter is None:
                _watch_first(tracker, known)
            self._torch_state.trained.add(model)
            self._torch_state.configuration.model_trains(model)
            tracker.passes.called(model)
            name = type(model).__name__
            tracker.partial, tracker.partial_until = model, 0
            if tracker.enter(FORWARD | PARTIAL, {"module": name}) is None:
                tracker.partial = None
            return None
        self._adopt(type(module), "__call__")
        return self._remember(module)

    def _remember(self, module: Any) -> KnownModule:
        key, known = id(module), self._known
        reference = weakref.ref(module, lambda _: known.pop(key, None))
        is_metric = is_torchmetric(module)
        kind = FORWARD if not is_metric and has_parameters(module) else LOSS
        unwrapped = module
        while type(unwrapped).__name__ == "OptimizedModule" and hasattr(unwrapped, "_orig_mod"):
            unwrapped = unwrapped._orig_mod
        attrs = SharedAttributes(module=type(unwrapped).__name__)
        known[key] = known_module = KnownModule(reference, kind, attrs, is_metric)
        if kind == FORWARD:
            with self._torch_state.unseen():
                known_module.parameter = references.first_trained(module)
        return known_module


class _InertModules:
    """Replaces `Modules` in another process, for a class that was pickled by value."""

    def enter(self, *_: Any) -> None:
        """Record nothing."""


def _watch_first(tracker: Tracker, known: KnownModule) -> None:
    """Watch the first model that a thread calls, until it calls one that it trains."""
    tracker.gradients.parameter = known.parameter
    tracker.torch_state.parameter = tracker.torch_state.parameter or known.parameter


def _inherited(owner: type, name: str) -> Callable[..., Any]:
    """Return a function that calls an inherited method.

    The method is looked up at each call, because other code may replace it.
    """

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return call


def _named_as(
    method: Callable[..., Any], name: str, defined: Callable[..., Any] | None
) -> Callable[..., Any]:
    """Return `method` under the name of the method that it replaces."""
    if defined is None:
        method.__name__ = method.__qualname__ = name
        return method
    # Show the signature and source of the original.
    return functools.wraps(defined)(method)


def _is_copied(original: Any) -> bool:
    """Return whether `original` has the body that the replacement of `Module.__call__` copies."""
    code, copied = getattr(original, "__code__", None), _wrapped_call_impl.__code__
    return code is not None and all(
        getattr(code, part) == getattr(copied, part)
        for part in ("co_code", "co_names", "co_varnames", "co_freevars")
    )


def _wrapped_call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self._compiled_call_impl is not None:
        return self._compiled_call_impl(*args, **kwargs)
    else:
        return self._call_impl(*args, **kwargs)


def _enclosing_forward(module: Any, base: type) -> Any:
    """Return the outermost module whose `forward` runs around this call; None if there is none."""
    frame: Any = sys._getframe(3)
    outermost_module = None
    while frame is not None:
        if frame.f_code.co_name == "forward":
            owner = frame.f_locals.get("self")
            if isinstance(owner, base) and owner is not module:
                outermost_module = owner
        frame = frame.f_back
    return outermost_module
