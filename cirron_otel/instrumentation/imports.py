"""Told when a module has been imported, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..sdk.errors import swallowed

Met = Callable[[ModuleType], None]


class Imports(MetaPathFinder):
    """A finder that finds nothing itself, and wraps the loader of what is waited for."""

    def __init__(self) -> None:
        self._waiting: dict[str, Met] = {}

    def on(self, name: str, met: Met) -> None:
        """Call `met` with the module `name` after its first import; now if that has been."""
        module = sys.modules.get(name)
        if module is not None and not _is_loading(module):
            met(module)
            return
        self._waiting[name] = met
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Wait for nothing any more."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, its loader wrapped."""
        met = self._waiting.pop(fullname, None)
        if met is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Telling(spec.loader, met)
                return spec
        return None


class _Telling(Loader):
    """A loader that tells when it is done, and is replaced by the one it wraps."""

    def __init__(self, loader: Any, met: Met) -> None:
        self._loader, self._met = loader, met

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._met(module)
        except Exception as error:
            swallowed("hooks", error)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))
