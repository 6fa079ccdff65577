"""Call functions after the import of a module, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..session.errors import record_error

OnImport = Callable[[ModuleType], None]


class ImportWatcher(MetaPathFinder):
    """A finder that asks the other finders, and wraps the loaders of the modules it watches."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[OnImport]] = {}

    def on(self, name: str, callback: OnImport) -> None:
        """Call `callback` with the module `name` once it is imported; now if it already is."""
        module = sys.modules.get(name)
        if module is not None and not _is_loading(module):
            callback(module)
            return
        self._callbacks.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def rescan(self) -> None:
        """Call the callbacks of modules that another thread was importing when `on` was called."""
        for name in list(self._callbacks):
            module = sys.modules.get(name)
            if module is not None and not _is_loading(module):
                self.notify(name, module)

    def notify(self, name: str, module: ModuleType) -> None:
        """Call the callbacks of an imported module, the first time only. Raises nothing."""
        for callback in self._callbacks.pop(name, ()):
            try:
                callback(module)
            except Exception as error:
                record_error("hooks", error)

    def remove(self) -> None:
        """Stop watching all modules."""
        self._callbacks.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders return, with its loader wrapped.

        The callbacks are not called here: a caller may only check whether the module exists.
        """
        if fullname not in self._callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _NotifyingLoader(spec.loader, self)
                return spec
        return None


class _NotifyingLoader(Loader):
    """Wraps a loader, notifies the watcher after the import, and puts the loader back."""

    def __init__(self, loader: Any, watcher: ImportWatcher) -> None:
        self._loader, self._watcher = loader, watcher

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)  # while a copy is created
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._watcher.notify(module.__name__ if spec is None else spec.name, module)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))
