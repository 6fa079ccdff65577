"""What the trackers of all threads have in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ...sdk.otel_span import Constant


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
        self.optimizers: dict[int, Constant] = {}
        """Attributes of the steps of those that have stepped and live, by their ids."""
        self._references: dict[int, Any] = {}
        self.seeks_parameter = False
        """Whether one is wanted, for want of a model."""
        self.trackers: set[Any] = set()
        """Every living thread's."""
        self.attends = False
        """Whether somebody waits for steps to be over."""
        self.discover: Callable[[], None] = _nothing
        """Look for models in what comes next."""
        self.pass_begins: Callable[[], None] = _nothing
        """The same, if there is a reason to: a training pass begins."""
        self.step_over: Callable[[bool], None] = _ignore
        """A step is over; whether a model was called in it."""
        self.look_for_rank: Callable[[], None] = _nothing
        """Ask torch.distributed which process this is; called where a loop begins."""
        self.has_tasks = False
        """Whether asyncio tasks have trackers of their own."""
        self.divide: Callable[[], None] = _nothing
        """Have one for each: a hook runs in an event loop."""
        self.epoch_ended: Callable[[Any], None] = _ignore
        """An epoch is over: its scope."""

    def rest(self) -> None:
        """Nobody looks for models any more, nor waits for steps: the hooks are taken off."""
        self.is_over = True
        self.discover = self.pass_begins = self.look_for_rank = _nothing
        self.step_over = _ignore

    def meet(self, optimizer: Any) -> Constant:
        """An optimizer steps for the first time: what it trains may be new, too."""
        key, known = id(optimizer), self.optimizers
        made = known[key] = Constant(optimizer=type(optimizer).__name__)
        self._references[key] = weakref.ref(optimizer, lambda _: known.pop(key, None))
        self.look_for_rank()
        self.discover()
        return made

    def is_evaluating(self) -> bool:
        """Whether every model that was trained so far is in evaluation mode."""
        models = self.trained
        return bool(models) and not any(model.training for model in list(models))

    def version(self) -> int | None:
        """How often a trained parameter was changed so far; None where none is known."""
        parameter = None if self.parameter is None else self.parameter()
        return None if parameter is None else int(parameter._version)


def _none() -> int:
    return -1


def _nothing() -> None:
    pass


def _ignore(_: Any) -> None:
    pass
