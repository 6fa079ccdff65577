"""Mark the value that `backward` is called on as `loss`, and the norm of clipped gradients.

docs/torch.md defines which values are marked. A value on a device is copied there, and read later
by the flush thread.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from ....semconv import GRAD_NORM, LOSS
from ...session.errors import record_error
from ...snapshots.unseen import unseen
from ...tracing.clock import now
from ...tracing.coerce import coerce
from ...tracing.hidden_frames import strip
from ...tracing.hook_marks import attributes_of, hook_mark
from ...tracing.phase import Phase
from ...tracing.state import CONTEXT, state
from ..iteration import current_scope
from ..patches import Patches
from .tracker import Tracker
from .trackers import Trackers

_DEVICES = frozenset({"cpu", "cuda"})
"""The devices whose values are read without waiting; `cuda` includes ROCm."""
_MOST_SCALED = 8
_get = CONTEXT.get


class Reader:
    """Reads tensors of one number. The constructor imports torch."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415

        core = torch._C
        self._tensor = torch.Tensor
        self._is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._functions: Callable[[], int] = core._len_torch_function_stack
        self._dispatches: Callable[[], int] = core._len_torch_dispatch_stack
        self._is_profiled: Callable[[], Any] = getattr(
            core._autograd, "_profiler_enabled", _nothing
        )
        functorch = getattr(core, "_functorch", None)
        self._level: Callable[[], Any] = getattr(functorch, "maybe_current_level", _nothing)

    def read(self, value: Any) -> Any:
        """Return a float, or a `Deferred` for a value on a device; None for anything else."""
        if type(value) is not self._tensor or self._level() is not None:
            return None  # a subclass, or a value that torch.func transforms
        if self._is_profiled():
            return None  # the profile would contain the operations that read the value
        if self._functions() or self._dispatches():
            with unseen():
                return self._read(value)
        return self._read(value)

    def _read(self, value: Any) -> Any:
        if value.numel() != 1 or not value.dtype.is_floating_point:
            return None
        if value.is_cpu:
            return value.item()
        if value.device.type not in _DEVICES or self._is_capturing():
            return None
        return coerce(value.detach())

    def detached(self, value: Any) -> Any:
        """Return a tensor without its graph, or None if its value is not marked."""
        is_read = type(value) is self._tensor and self._level() is None
        if not is_read or self._is_profiled():
            return None
        with unseen():
            return value.detach() if value.numel() == 1 else None


class Losses:
    """Marks the value of each step's first backward pass, and others that are not finite."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers, self._reader = trackers, Reader()

    def mark(self, tracker: Tracker, roots: Any, phase: Phase | None) -> None:
        """Mark the value that `backward`, which `phase` records, is called on. Raises nothing."""
        try:
            if not state.recording:
                return
            begun = now()
            if isinstance(roots, (tuple, list)):
                if len(roots) != 1:
                    return
                (roots,) = roots
            health = tracker.health
            if health.scaled:
                roots = _unscaled(health.scaled, roots)
            value = self._reader.read(roots)
            if value is None:
                return
            scope = current_scope(_get()) if phase is None else phase._above
            is_first, in_step = health.losses.place(tracker.loaderless.iteration, scope)
            if is_first and not in_step:
                is_first = not tracker.loaderless.repeats_backward
            is_first = is_first and not _logs(tracker, LOSS)
            attributes = attributes_of(is_first=is_first, in_step=in_step)
            tracker.opened_ns += hook_mark(LOSS, value, attributes, begun)
        except Exception as error:
            record_error("torch", error)


class Scaling:
    """Remembers the losses that a GradScaler scales."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers, self._reader = trackers, Reader()

    def install(self, patches: Patches) -> None:
        """Replace `GradScaler.scale`. Raises AttributeError if this torch lacks it."""
        import torch  # noqa: PLC0415
        from torch.amp.grad_scaler import GradScaler  # noqa: PLC0415

        is_compiling = torch.compiler.is_dynamo_compiling

        def wrapped(original: Any) -> Any:
            @functools.wraps(original)
            def scale(scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
                if is_compiling():
                    return original(scaler, outputs, *args, **kwargs)
                try:
                    result = original(scaler, outputs, *args, **kwargs)
                except BaseException as error:
                    strip(error)
                    raise
                if result is not outputs:
                    self._scaled(outputs, result)
                return result

            return scale

        patches.replace(GradScaler, "scale", wrapped(GradScaler.scale))
        patches.wrap_in_subclasses(GradScaler, "scale", wrapped)

    def _scaled(self, outputs: Any, result: Any) -> None:
        """Remember a loss by its scaled value. Raises nothing."""
        try:
            health = self._trackers.t.health
            health.uses_scale = True
            if not isinstance(outputs, (tuple, list)):
                outputs, result = (outputs,), (result,)
            new = [
                (_reference_to(scaled), self._reader.detached(each))
                for each, scaled in zip(outputs, result, strict=False)
            ]
            health.scaled = [*health.scaled[len(new) - _MOST_SCALED :], *new][-_MOST_SCALED:]
        except Exception as error:
            record_error("torch", error)


def _reference_to(scaled: Any) -> Any:
    """Return a weak reference, or one to nothing: the losses in an iterable are not known."""
    try:
        return weakref.ref(scaled)
    except TypeError:
        return _nothing


def _unscaled(scaled: list[tuple[Any, Any]], root: Any) -> Any:
    """Return a loss ahead of its scaling; None if its scale is not known."""
    for place, (reference, value) in enumerate(scaled):
        if reference() is root:
            del scaled[place]
            return value
    return None


def _logs(tracker: Tracker, name: str) -> bool:
    """Return whether a framework's loop marks these values itself."""
    return tracker.loop is not None and name in tracker.loop.logged


class Norms:
    """Marks the norm that `clip_grad_norm_` returns."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers, self._reader = trackers, Reader()

    def marking(self, original: Any) -> Any:
        """Return a function that calls `original`, and marks its result."""
        import torch  # noqa: PLC0415

        is_compiling = torch.compiler.is_dynamo_compiling

        @functools.wraps(original)
        def clip_grad_norm(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            try:
                norm = original(*args, **kwargs)
            except BaseException as error:
                strip(error)
                raise
            self._mark(norm)
            return norm

        return clip_grad_norm

    def _mark(self, norm: Any) -> None:
        try:
            if not state.recording:
                return
            begun = now()
            value = self._reader.read(norm)
            if value is None:
                return
            tracker = self._trackers.t
            health, stepped = tracker.health, tracker.stepped
            is_first, in_step = health.norms.place(
                tracker.loaderless.iteration, current_scope(_get())
            )
            if is_first and not in_step:
                is_first = stepped != health.norms.stepped
            health.norms.stepped = stepped
            is_first = is_first and not _logs(tracker, GRAD_NORM)
            attributes = attributes_of(
                is_first=is_first, in_step=in_step, is_scaled=health.uses_scale
            )
            tracker.opened_ns += hook_mark(GRAD_NORM, value, attributes, begun)
        except Exception as error:
            record_error("torch", error)


def _nothing() -> None:
    pass
