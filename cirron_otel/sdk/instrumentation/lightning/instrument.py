"""The hooks into Lightning of one session."""

from __future__ import annotations

from typing import Any

from ..base import FrameworkHooks, HookContext, install_parts
from ..patches import Patches
from ..training_loop import end_all
from .fabric import fabric_parts
from .lightning_loop import NAME
from .logged import value_parts
from .trainer import trainer_parts


class LightningHooks(FrameworkHooks):
    """The hooks of one session into one of Lightning's distributions."""

    def __init__(self, trainer: str | None, fabric: str | None) -> None:
        """`trainer` and `fabric` are the packages that contain the Trainer and Fabric."""
        self.patches = Patches()
        self._trainer, self._fabric = trainer, fabric
        self._not_recorded: list[str] = []

    def install(self, context: HookContext) -> None:
        """Hook the Trainer and Fabric once their packages are imported."""
        if self._trainer is not None:
            context.on_import(self._trainer, self._install_trainer)
        if self._fabric is not None:
            context.on_import(self._fabric, self._install_fabric)

    def _install_trainer(self, package: Any) -> None:
        parts = trainer_parts(self.patches, package) + value_parts(self.patches, package)
        self._not_recorded += install_parts(package.__name__, parts)

    def _install_fabric(self, package: Any) -> None:
        parts = fabric_parts(self.patches, package)
        self._not_recorded += install_parts(package.__name__, parts)

    def remove(self) -> None:
        """Remove every hook, and close the open scopes."""
        end_all(NAME)
        self.patches.undo()
        self.patches.restore_all_copies()

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self._not_recorded)}
