"""Record `backward`, and `recompute` inside a backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.hidden_frames import strip
from ..patches import Patches
from .health import Losses
from .kinds import BACKWARD, GRAD, LOAD, PARTIAL, RECOMPUTE
from .tensor_references import references
from .torch_state import TorchState
from .tracker import Tracker
from .trackers import Trackers
from .unclosed_phases import end_partial_forward, fail_step


class Autograd:
    """Replaces `torch.autograd.grad` and `torch.autograd.backward` (used by `Tensor.backward`)."""

    def __init__(
        self, trackers: Trackers, torch_state: TorchState, losses: Losses | None = None
    ) -> None:
        """`losses` marks the value that `backward` is called on."""
        self._trackers, self._torch_state = trackers, torch_state
        self._losses = losses

    def install(self, patches: Patches, name: str) -> None:
        """Hook `backward` or `grad`, by `name`. Raises AttributeError if this torch lacks it."""
        import torch  # noqa: PLC0415

        kind = BACKWARD if name == "backward" else BACKWARD | GRAD
        patches.replace(torch.autograd, name, self._wrap(getattr(torch.autograd, name), kind))

    def _wrap(self, original: Any, kind: int) -> Any:
        import functools  # noqa: PLC0415

        import torch  # noqa: PLC0415

        trackers = self._trackers
        is_compiling = torch.compiler.is_dynamo_compiling
        graph_task = self._torch_state.graph_task
        tracing = getattr(torch._guards, "TracingContext", None)
        try_get = getattr(tracing, "try_get", _nothing)

        accumulates = kind == BACKWARD
        losses = self._losses if accumulates else None

        def is_tracing() -> bool:
            # While a model is being compiled, a graph of its backward is traced.
            return try_get() is not None

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            begun = now()
            try:
                tracker = trackers.t
                inside = tracker.inside
                if tracker.is_plain and inside == tracker.base:
                    tracker.backwards += 1
                    phase = tracker.backward = tracker.enter_plain(kind, "backward", None, begun)
                    if tracker.gradients.seeks_parameter and args:
                        _seek(tracker, args[0])
                elif inside & (BACKWARD | LOAD) or graph_task() != -1 or (inside and is_tracing()):
                    return original(*args, **kwargs)
                else:
                    if tracker.gradients.seeks_parameter and args:
                        _seek(tracker, args[0])
                    phase = _enter(tracker, kind, begun)
                if losses is not None:
                    losses.mark(tracker, args[0] if args else kwargs.get("tensors"), phase)
                if phase is None:
                    return original(*args, **kwargs)
                try:
                    result = original(*args, **kwargs)
                except BaseException as error:
                    tracker.backward = None
                    tracker.exit(phase, kind, error)
                    raise
                end = now()
                tracker.backward = None
                if accumulates and tracker.iteration is not None:
                    if tracker.is_plain:
                        tracker.iteration.was_backward = True
                    if tracker.watches_gradients:
                        tracker.watch_gradients()
                tracker.exit_plain(phase, kind, end)
                return result
            except BaseException as error:
                strip(error)
                raise

        return backward


def _enter(tracker: Tracker, kind: int, begun: int) -> Any:
    try:
        if kind == BACKWARD and tracker.iteration is None:
            tracker.loaderless.gradients.backward_begins()
            tracker.loaderless.backward_begins()
        if tracker.inside & PARTIAL:
            end_partial_forward(tracker)
        if tracker.stepping is not None and not tracker.stepping.has_closure:
            fail_step(tracker)
    except BaseException as error:
        tracker.failed(error)
    tracker.backwards += 1
    tracker.training_begins(kind)
    phase = tracker.backward = tracker.enter(kind, None, None, begun)
    return phase


def _seek(tracker: Tracker, tensors: Any) -> None:
    gradients = tracker.gradients
    try:
        with tracker.torch_state.unseen():
            parameter = references.of_gradients(tensors)
            gradients.watch(parameter)
            gradients.seeks_parameter = parameter is None
            if parameter is not None and tracker.compiled is not None:
                tracker.compiled.version = parameter.get()._version
    except Exception as error:
        record_error("torch", error)


class Checkpoints:
    """Records the recomputation of activation checkpointing, on whichever thread it runs.

    The recomputation runs inside `backward`. The functions that programs import (`checkpoint`,
    `checkpoint_sequential`) are unchanged; the functions that they look up at each call are
    replaced.
    """

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches) -> None:
        """Hook `use_reentrant=True`. Raises AttributeError if torch has changed."""
        import torch  # noqa: PLC0415
        from torch.utils import checkpoint  # noqa: PLC0415

        trackers, graph_task = self._trackers, torch._C._current_graph_task_id
        reentrant = checkpoint.CheckpointFunction.forward

        def forward(ctx: Any, run_function: Any, *args: Any) -> Any:
            try:
                return reentrant(ctx, Recomputed(trackers, graph_task, run_function), *args)
            except BaseException as error:
                strip(error)
                raise

        patches.replace(checkpoint.CheckpointFunction, "forward", staticmethod(forward))

    def install_other(self, patches: Patches) -> None:
        """Hook `use_reentrant=False`. Raises AttributeError if torch has changed."""
        import torch  # noqa: PLC0415
        from torch.utils import checkpoint  # noqa: PLC0415

        trackers, graph_task = self._trackers, torch._C._current_graph_task_id
        name = "_checkpoint_without_reentrant_generator"
        if hasattr(checkpoint, f"{name}_impl"):
            name = f"{name}_impl"  # from torch 2.13 on
        generator = getattr(checkpoint, name)

        def without_reentrant(function: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return generator(Recomputed(trackers, graph_task, function), *args, **kwargs)
            except BaseException as error:
                strip(error)
                raise

        patches.replace(checkpoint, name, without_reentrant)


class Recomputed:
    """A checkpointed function; a call to it inside a backward pass is recorded as `recompute`."""

    def __init__(self, trackers: Trackers, graph_task: Callable[[], int], function: Any) -> None:
        self._trackers = trackers
        self._function = function
        self._graph_task = graph_task
        self._caller: Any = trackers.t
        """The tracker of the thread that runs the forward pass, and also calls `backward`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the function's result."""
        try:
            tracker = self._trackers.t
            if self._graph_task() == -1 or tracker.inside & RECOMPUTE:
                return self._function(*args, **kwargs)
            phase = tracker.enter(RECOMPUTE, None, self._caller.backward)
            if phase is None:
                return self._function(*args, **kwargs)
            try:
                result = self._function(*args, **kwargs)
            except BaseException as error:
                # Torch raises this exception to stop as soon as enough is computed.
                is_stop = type(error).__name__ == "_StopRecomputationError"
                tracker.exit(phase, RECOMPUTE, None if is_stop else error)
                raise
            tracker.exit(phase, RECOMPUTE)
            return result
        except BaseException as error:
            strip(error)
            raise


def _nothing() -> None:
    pass
