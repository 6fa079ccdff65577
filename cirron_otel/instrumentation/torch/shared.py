"""What the trackers of all threads have in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...sdk.otel_span import SharedAttributes


class Shared:
    """One instrumentation's; torch is imported."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - only where it is wanted

        self.is_grad_enabled: Callable[[], bool] = torch.is_grad_enabled
        self.graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", _none)
        """Tells the backward that the calling thread is in: -1 for none."""
        self.owns_epoch = self.owns_step = True
        """Whether the names are torch's, and no other framework's."""
        self.is_over = False
        """Whether the hooks are off; somebody may hold some all the same."""
        self.detail_every = 0
        """How often a step's inside is recorded whatever happens in it; 0: always."""
        self.clock: Any = None
        """A device's; None without one."""
        self.memory: Any = None
        """Reads the device's memory at the ends of a step; None where it does not."""
        self.trained: weakref.WeakSet[Any] = weakref.WeakSet()
        """Models that were called in training and with gradients on."""
        self.parameter: Any = None
        """A weak reference to a parameter that is trained."""
        self.optimizers: dict[int, SharedAttributes] = {}
        """Attributes of the steps of those that have stepped and live, by their ids."""
        self._references: dict[int, Any] = {}
        self.optimizers_made = 0
        """The number of optimizers that were made since the hooks were installed."""
        self._numbers: dict[int, tuple[Any, int]] = {}
        """A weak reference to each of them, and its number, by the optimizer's id."""
        self.seeks_parameter = False
        """Whether one is wanted, for want of a model."""
        self.trackers: set[Any] = set()
        """Every living thread's."""
        self.gate = Gate()
        self.attends = False
        """Whether `step_over` is to be called."""
        self.step_over: Callable[[], None] = _nothing
        """Called at the end of every step."""
        self.look_for_rank: Callable[[], None] = _nothing
        """Ask torch.distributed which process this is; called where a loop begins."""
        self.has_tasks = False
        """Whether asyncio tasks have trackers of their own."""
        self.divide: Callable[[], None] = _nothing
        """Have one for each: a hook runs in an event loop."""
        self.epoch_ended: Callable[[Any], None] = _ignore
        """An epoch is over: its scope."""

    def rest(self) -> None:
        """The hooks are removed: stop looking for models and for the rank, and polling a device."""
        self.is_over = True
        self.gate.is_open = False
        self.look_for_rank = _nothing
        self.leave_device()

    def leave_device(self) -> None:
        """Stop polling a device at the end of every step."""
        self.attends, self.step_over = False, _nothing

    def threads_changed(self) -> None:
        """The set of trackers has changed: update the gate."""
        self.gate.is_shared = len(self.trackers) > 1
        self.gate.is_open = not self.is_over

    def meet(self, optimizer: Any) -> SharedAttributes:
        """Return the attributes of an optimizer that steps for the first time."""
        key, known = id(optimizer), self.optimizers
        made = known[key] = SharedAttributes(optimizer=type(optimizer).__name__)
        references = self._references

        def forget(_: Any) -> None:
            known.pop(key, None)
            references.pop(key, None)

        references[key] = weakref.ref(optimizer, forget)
        self.look_for_rank()
        return made

    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer was constructed: give it the next number."""
        self.optimizers_made += 1
        key, numbers = id(optimizer), self._numbers
        reference = weakref.ref(optimizer, lambda _: numbers.pop(key, None))
        numbers[key] = reference, self.optimizers_made

    def number_of(self, optimizer: Any) -> int:
        """The number of an optimizer, from 1 on; 0 if it was made before the hooks."""
        entry = self._numbers.get(id(optimizer))
        return 0 if entry is None else entry[1]

    def living_optimizers(self) -> list[Any]:
        """The optimizers that are alive, as far as they were seen."""
        references = [*self._references.values(), *(entry[0] for entry in self._numbers.values())]
        return [each for each in (reference() for reference in references) if each is not None]

    def is_evaluating(self) -> bool:
        """Whether every model that was trained so far is in evaluation mode."""
        models = self.trained
        return bool(models) and not any(model.training for model in list(models))

    def version(self) -> int | None:
        """How often a trained parameter was changed so far; None where none is known."""
        parameter = None if self.parameter is None else self.parameter()
        return None if parameter is None else int(parameter._version)


class Gate:
    """Whether a module's call may be an outermost one; every call of every module reads it.

    One flag for the process, since one for each thread costs ten times as much to read. The thread
    that enters a model closes it, and opens it on leaving. If several threads have trackers, it
    stays open, and each call looks at its thread's tracker.
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
