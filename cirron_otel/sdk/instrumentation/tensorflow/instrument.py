"""The hooks into TensorFlow of one session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base import FrameworkHooks, HookContext, install_parts
from ..patches import Patches
from ..training_loop import end_all
from . import eager, functions
from .eager import Eager
from .functions import Functions
from .phases import NAME, reset


class TensorFlowHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once."""

    def __init__(self) -> None:
        self.patches = Patches()
        self._not_recorded: list[str] = []

    def install(self, context: HookContext) -> None:
        """Hook TensorFlow's and Keras' modules once they are imported."""
        name = "tensorflow.python.eager.context"
        context.on_import(name, lambda module: self._hook(context, module))

    def _hook(self, context: HookContext, module: Any) -> None:
        found = Functions(self.patches, module.executing_eagerly)
        phases = Eager(self.patches, module.executing_eagerly, found)
        parts: list[tuple[str, str, Callable[[Any], None]]] = [
            (functions.MODULE, "compiled functions", found.install),
            (eager.ITERATORS, "data_load", lambda each: phases.iterators(each.OwnedIterator)),
            (
                eager.DISTRIBUTED,
                "distributed data_load",
                lambda each: phases.iterators(each.DistributedIteratorBase),
            ),
            (eager.TAPES, "forward and backward", phases.tapes),
            (eager.OPTIMIZERS, "optimizer_step", phases.optimizers),
            (eager.LAYERS, "forward of models", phases.layers),
        ]
        for name, part, install in parts:
            context.on_import(name, self._installer(part, install))

    def _installer(self, part: str, install: Callable[[Any], None]) -> Callable[[Any], None]:
        def call(module: Any) -> None:
            self._not_recorded += install_parts(NAME, [(part, lambda: install(module))])

        return call

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self._not_recorded)}

    def after_fork(self) -> None:
        """In a forked child, no phase of the parent is open."""
        reset()

    def remove(self) -> None:
        """Remove every hook, and close the open scopes."""
        end_all(NAME)
        self.patches.undo()
        self.patches.restore_all_copies()
