"""The hooks into one logger during one session."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from ..base import FrameworkHooks, HookContext, Part, install_parts
from ..patches import Patches
from .links import Links


class LoggerHooks(FrameworkHooks):
    """Replaces the methods of a logger that receive scalars."""

    name = ""

    def __init__(self, module: str) -> None:
        """`module` is the name of the imported module that contains the hooked class."""
        self._module = module
        self.patches = Patches()
        self.links = Links(self.name)
        self.not_recorded: list[str] = []
        """The parts that this version of the logger does not allow to be hooked."""

    def class_named(self, name: str) -> Any:
        """Return a class of the hooked module. Raises AttributeError if it has none."""
        return getattr(sys.modules[self._module], name)

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the parts; the function of a part raises an error if the logger lacks it."""

    def install(self, context: HookContext) -> None:  # noqa: ARG002
        """Install every part. A part that fails is skipped, with one warning for each reason."""
        self.not_recorded += install_parts(self.name, self.parts())

    def remove(self) -> None:
        """Remove every hook."""
        self.patches.undo()

    def after_fork(self) -> None:
        """In a forked child, connect the logger's runs with the child's session."""
        self.links.after_fork()

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self.not_recorded)}


def argument(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], index: int, name: str, default: Any = None
) -> Any:
    """Return the argument of a call that is positional at `index`, or else called `name`."""
    return args[index] if len(args) > index else kwargs.get(name, default)
