"""The hooks into transformers of one session."""

from __future__ import annotations

from typing import Any

from ..base import FrameworkHooks, HookContext
from ..patches import Patches
from ..training_loop import end_all
from .trainer import NAME, TrainerHooks


class TransformersHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once."""

    def __init__(self) -> None:
        self.patches = Patches()

    def install(self, context: HookContext) -> None:
        """Hook the Trainer once its module is imported: transformers imports it lazily."""
        context.on_import("transformers.trainer", self._install)

    def _install(self, module: Any) -> None:
        TrainerHooks(self.patches).install(module.Trainer, module.CallbackHandler)
        self.patches.replace_copies()

    def remove(self) -> None:
        """Remove every hook, and close the open scopes."""
        end_all(NAME)
        self.patches.undo()
        self.patches.restore_all_copies()
