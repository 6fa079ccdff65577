"""The hooks into Keras of one session."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..base import FrameworkHooks, HookContext, Part, install_parts
from ..patches import Patches
from ..training_loop import end_all
from . import checkpoints
from .checkpoints import install_checkpoints
from .evaluations import install_evaluations
from .fits import NAME, install_batches, install_fits, reset

_TRAINERS = {
    "keras.src.backend.tensorflow.trainer": "TensorFlowTrainer",
    "keras.src.backend.torch.trainer": "TorchTrainer",
}


class KerasHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.not_recorded: list[str] = []
        """The parts that this version of Keras does not allow to be hooked."""

    def install(self, context: HookContext) -> None:
        """Hook Keras' modules once they are imported; only the module of its backend is."""
        for module, name in _TRAINERS.items():
            context.on_import(module, partial(self._install_trainer, name))
        context.on_import(checkpoints.MODULE, self._install_checkpoints)

    def _install_trainer(self, name: str, module: Any) -> None:
        patches = self.patches

        def callback_list() -> Any:
            return module.callbacks_module.CallbackList

        def trainer() -> Any:
            return getattr(module, name)

        self._install([
            ("epochs and steps", lambda: install_fits(patches, trainer(), callback_list())),
            ("train_on_batch", lambda: install_batches(patches, trainer())),
            ("eval", lambda: install_evaluations(patches, trainer(), callback_list())),
        ])  # fmt: skip

    def _install_checkpoints(self, module: Any) -> None:
        self._install([("checkpoint", lambda: install_checkpoints(self.patches, module))])

    def _install(self, parts: list[Part]) -> None:
        self.not_recorded += install_parts(NAME, parts)
        self.patches.replace_copies()

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self.not_recorded)}

    def after_fork(self) -> None:
        """In a forked child, no call of Keras is in progress."""
        reset()

    def remove(self) -> None:
        """Remove every hook, and close the open scopes."""
        end_all(NAME)
        self.patches.undo()
        self.patches.restore_all_copies()
