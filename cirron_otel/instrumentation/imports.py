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

    def look_again(self) -> None:
        """Tell of modules that another thread was importing when they were asked for."""
        for name in list(self._waiting):
            module = sys.modules.get(name)
            if module is not None and not _is_loading(module):
                self.tell(name, module)

    def tell(self, name: str, module: ModuleType) -> None:
        """A module is there: told once. Raises nothing."""
        met = self._waiting.pop(name, None)
        try:
            if met is not None:
                met(module)
        except Exception as error:
            swallowed("hooks", error)

    def remove(self) -> None:
        """Wait for nothing any more."""
        self._waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, its loader wrapped.

        It may be asked for by somebody who only wants to know whether there is such a module.
        """
        if fullname not in self._waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Telling(spec.loader, self)
                return spec
        return None


class _Telling(Loader):
    """A loader that tells when it is done, and is replaced by the one it wraps."""

    def __init__(self, loader: Any, imports: Imports) -> None:
        self._loader, self._imports = loader, imports

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)  # a copy that is being made
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imports.tell(module.__name__ if spec is None else spec.name, module)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))
