"""The hooks into Accelerate of one session."""

from __future__ import annotations

from typing import Any

from ..base import FrameworkHooks, HookContext, install_parts
from ..patches import Patches
from . import accelerator
from .accelerator import NAME


class AccelerateHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.not_recorded: list[str] = []
        """The parts that this version of Accelerate does not allow to be hooked."""

    def install(self, context: HookContext) -> None:
        """Hook the class `Accelerator` once its module is imported."""
        context.on_import("accelerate.accelerator", self._install)

    def _install(self, module: Any) -> None:
        parts = accelerator.parts_of(module, self.patches)
        self.not_recorded += install_parts(NAME, parts)

    def remove(self) -> None:
        """Remove every hook."""
        self.patches.undo()

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self.not_recorded)}
