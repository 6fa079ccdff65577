"""State that the trackers of all threads share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from ...tracing.otel_span import SharedAttributes
from .configuration import Configuration, Settings
from .tensor_references import TensorReference
from .trainings import OptimizerTrainings


class TorchState:
    """The shared state of the hooks of one session. Constructing it imports torch."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - the program has imported it

        self.is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self.graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", _none)
        """Returns the id of the backward pass that runs in the calling thread; -1 if none does."""
        self.unseen: Callable[[], Any] = getattr(torch._C, "DisableTorchFunction", nullcontext)
        """Returns a context in which no TorchFunctionMode of the program sees which properties of
        tensors are read. (`snapshots.unseen` also hides operations.)"""
        self.is_over = False
        """Whether the hooks are removed; the program may still have references to some of them."""
        self.detail_every = 0
        """The inside of one in every `detail_every` steps is recorded; 0 means every step."""
        self.clock: Any = None
        """Measures time on a device; None if there is no device."""
        self.memory: Any = None
        """Reads the device's memory at the end of a step; None if it is not recorded."""
        self.trained = TrainedModels()
        self.parameter: TensorReference | None = None
        """The parameter that a thread began to watch last. Its gradient is not read: another thread
        may replace it (`accumulation.Gradients`)."""
        self.optimizers: dict[int, SharedAttributes] = {}
        """Attributes for the steps of the live optimizers that have stepped, by optimizer id."""
        self._references: dict[int, Any] = {}
        self.trainings = OptimizerTrainings(self)
        self.optimizers_made = 0
        """The number of optimizers constructed since the hooks were installed."""
        self._numbers: dict[int, tuple[Any, int]] = {}
        """A weak reference to each constructed optimizer, and its number, by the optimizer's id."""
        self.trackers: set[Any] = set()
        """The trackers of all live threads and tasks."""
        self.gate = ModuleGate()
        self.has_step_end_hook = False
        """Whether `on_step_end` does anything; the fast paths check this instead of calling it."""
        self.on_step_end: Callable[[], None] = _nothing
        """Called at the end of every step."""
        self.poll_rank: Callable[[], None] = _nothing
        """Polls torch.distributed for the rank of this process; called when a loop begins."""
        self.has_tasks = False
        """Whether each asyncio task has its own tracker."""
        self.use_task_trackers: Callable[[], None] = _nothing
        """Gives each task a tracker; called when a hook runs in an event loop."""
        self.configuration = Configuration(is_recorded=False)
        self.epoch_ended: Callable[[Any], None] = _ignore
        """Called with the scope of an epoch that has ended."""

    def stop(self) -> None:
        """Stop looking for models and for the rank, and stop polling a device."""
        self.is_over = True
        self.gate.is_open = False
        self.poll_rank = _nothing
        self.stop_polling_device()

    def stop_polling_device(self) -> None:
        """Stop polling a device at the end of every step."""
        self.has_step_end_hook, self.on_step_end = False, _nothing

    def step_ended(self) -> None:
        """Call `on_step_end`, unless it does nothing."""
        if self.has_step_end_hook:
            self.on_step_end()

    def threads_changed(self) -> None:
        """Update the gate after a change of the set of trackers."""
        self.gate.is_shared = len(self.trackers) > 1
        self.gate.is_open = not self.is_over

    def register_optimizer(self, optimizer: Any, settings: Settings | None) -> SharedAttributes:
        """Return the attributes of an optimizer that steps for the first time.

        `settings` are those of the loader of the open pass, if there is one.
        """
        self.configuration.optimizer_steps(optimizer, settings)
        key, known = id(optimizer), self.optimizers
        attrs = known[key] = SharedAttributes(optimizer=type(optimizer).__name__)
        references = self._references

        def forget(_: Any) -> None:
            known.pop(key, None)
            references.pop(key, None)

        references[key] = weakref.ref(optimizer, forget)
        self.poll_rank()
        return attrs

    def optimizer_made(self, optimizer: Any) -> None:
        """Assign the next number to a newly constructed optimizer."""
        self.optimizers_made += 1
        key, numbers = id(optimizer), self._numbers
        reference = weakref.ref(optimizer, lambda _: numbers.pop(key, None))
        numbers[key] = reference, self.optimizers_made

    def number_of(self, optimizer: Any) -> int:
        """Return the optimizer's number, counting from 1.

        Returns 0 if it was constructed before the hooks were installed.
        """
        entry = self._numbers.get(id(optimizer))
        return 0 if entry is None else entry[1]

    def living_optimizers(self) -> list[Any]:
        """Return the known optimizers that are still alive."""
        references = [*self._references.values(), *(entry[0] for entry in self._numbers.values())]
        return [each for each in (reference() for reference in references) if each is not None]

    def is_optimized(self, parameter: Any) -> bool:
        """Return whether an optimizer of `torch.optim` contains a parameter."""
        return any(
            each is parameter
            for optimizer in self.living_optimizers()
            for group in optimizer.param_groups
            for each in group["params"]
        )

    def is_to_be_trained(self, model: Any) -> bool:
        """Return whether an optimizer trains a called model (`modules.KnownModule`)."""
        if model.parameter is None or model.without_optimizer == self.optimizers_made:
            return False
        if self.is_optimized(model.parameter.get()):
            return True
        model.without_optimizer = self.optimizers_made
        return False

    def is_evaluating(self) -> bool:
        """Return whether every model that was trained so far is in evaluation mode."""
        models = self.trained
        return bool(models) and not any(model.training for model in models)


class TrainedModels:
    """The live models that were called in training mode with gradients on.

    Their order is that of their first call, which is the same in each run of a program; that of a
    `WeakSet` depends on addresses.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._references)

    def __iter__(self) -> Iterator[Any]:
        references = list(self._references.values())
        return (model for model in [each() for each in references] if model is not None)

    def add(self, model: Any) -> None:
        """Add a model, unless it has been added before."""
        key, references = id(model), self._references
        if key not in references:
            references[key] = weakref.ref(model, lambda _: references.pop(key, None))


class ModuleGate:
    """Whether a call to a module may be an outermost call; every module call reads this flag.

    There is one flag for the process, because a flag for each thread is ten times as expensive to
    read. The thread that enters a model closes the gate, and opens it on leaving. If several
    threads have trackers, the gate stays open, and each call checks its thread's tracker.
    """

    __slots__ = ("is_open", "is_shared")

    def __init__(self) -> None:
        self.is_open = self.is_shared = False


def _none() -> int:
    return -1


def _nothing() -> None:
    pass


def _ignore(_: Any) -> None:
    pass
