"""`backward`, and `recompute` inside it."""

from __future__ import annotations

from typing import Any

from ...sdk.errors import swallowed
from ..patches import Patches
from .compiled import find_parameter
from .kinds import BACKWARD, LOAD, PARTIAL, RECOMPUTE
from .tracker import Tracker, Trackers


class Autograd:
    """Replaces `torch.autograd.backward`, which `Tensor.backward` calls, and `grad`."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Raises AttributeError where torch has them no more."""
        import torch  # noqa: PLC0415

        for name in ("backward", "grad"):
            made = self._around(getattr(torch.autograd, name))
            patches.replace(torch.autograd, name, made)

    def _around(self, original: Any) -> Any:
        import functools  # noqa: PLC0415

        import torch  # noqa: PLC0415

        trackers = self._trackers
        is_compiling = torch.compiler.is_dynamo_compiling
        graph_task = torch._C._current_graph_task_id

        def is_tracing() -> bool:
            # A graph of the backward is made, while a model is compiled.
            return torch._guards.TracingContext.try_get() is not None

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            tracker = trackers.t
            inside = tracker.inside
            if inside & (BACKWARD | LOAD) or graph_task() != -1 or (inside and is_tracing()):
                return original(*args, **kwargs)
            if tracker.is_plain and not inside:
                tracker.backwards += 1
                phase = tracker.backward = tracker.enter_plain(BACKWARD, "backward", None)
            else:
                phase = _enter(tracker)
            if tracker.shared.seeks_parameter and args:
                _seek(tracker, args[0])
            if phase is None:
                return original(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                tracker.backward = None
                tracker.exit(phase, BACKWARD, error)
                raise
            tracker.backward = None
            if tracker.is_plain and tracker.iteration is not None:
                tracker.iteration.was_backward = True
            tracker.exit_plain(phase, BACKWARD)
            return result

        return backward


def _enter(tracker: Tracker) -> Any:
    if tracker.inside & PARTIAL:
        tracker.interrupt()
    if tracker.stepping is not None and not tracker.stepping.has_closure:
        tracker.fail_step()
    tracker.backwards += 1
    tracker.trains()
    phase = tracker.backward = tracker.enter(BACKWARD, None)
    return phase


def _seek(tracker: Tracker, tensors: Any) -> None:
    shared = tracker.shared
    try:
        shared.parameter = found = find_parameter(tensors)
        shared.seeks_parameter = found is None
        if found is not None and tracker.compiled is not None:
            tracker.compiled.version = found()._version
    except Exception as error:
        swallowed("torch", error)


class Checkpoints:
    """Activation checkpointing computes again inside `backward`, on whatever thread that runs.

    The names that people import (`checkpoint`, `checkpoint_sequential`) stay; replaced is what
    these look up when they are called.
    """

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Raises AttributeError where torch has them no more."""
        from torch.utils import checkpoint  # noqa: PLC0415

        trackers = self._trackers
        reentrant = checkpoint.CheckpointFunction.forward
        name = "_checkpoint_without_reentrant_generator"
        if hasattr(checkpoint, f"{name}_impl"):
            name = f"{name}_impl"  # from torch 2.13 on
        generator = getattr(checkpoint, name)

        def forward(ctx: Any, run_function: Any, *args: Any) -> Any:
            return reentrant(ctx, Recomputed(trackers, run_function), *args)

        def without_reentrant(function: Any, *args: Any, **kwargs: Any) -> Any:
            return generator(Recomputed(trackers, function), *args, **kwargs)

        patches.replace(checkpoint.CheckpointFunction, "forward", staticmethod(forward))
        patches.replace(checkpoint, name, without_reentrant)


class Recomputed:
    """A checkpointed function: a call of it inside a backward is a `recompute`."""

    def __init__(self, trackers: Trackers, function: Any) -> None:
        import torch  # noqa: PLC0415

        self._trackers = trackers
        self._function = function
        self._graph_task = torch._C._current_graph_task_id
        self._caller: Any = trackers.t
        """Of the thread that computes forward: it calls backward, too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's own result."""
        tracker = self._trackers.t
        if self._graph_task() == -1 or tracker.inside & RECOMPUTE:
            return self._function(*args, **kwargs)
        phase = tracker.enter(RECOMPUTE, None, self._caller.backward)
        if phase is None:
            return self._function(*args, **kwargs)
        try:
            result = self._function(*args, **kwargs)
        except BaseException as error:
            # Enough was computed: that is how torch stops early.
            is_stop = type(error).__name__ == "_StopRecomputationError"
            tracker.exit(phase, RECOMPUTE, None if is_stop else error)
            raise
        tracker.exit(phase, RECOMPUTE)
        return result
