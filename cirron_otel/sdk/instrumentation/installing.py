"""Install and remove the hooks of a session into the frameworks that the program imports.

`training_loop` determines which of several frameworks opens the epochs and steps of a loop. Scopes
that the program opens itself take precedence over every framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ...core.config.options import Config
from ..session.errors import record_error, report_problem
from ..tracing.hidden_frames import forget_callers, hidden, hide_package, strip
from ..tracing.state import state
from . import training_loop
from .base import FrameworkHooks, HookContext, RankCallback, SessionAccess, request, requests
from .frameworks import FRAMEWORKS, LOGGERS, Framework

OnImport = Callable[[ModuleType], None]


class ImportWatcher(MetaPathFinder):
    """A finder that asks the other finders, and wraps the loaders of the modules it watches."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[OnImport]] = {}

    def on(self, name: str, callback: OnImport) -> None:
        """Call `callback` with the module `name` once it is imported, or now if it already is."""
        module = sys.modules.get(name)
        if module is not None and not _is_loading(module):
            callback(module)
            return
        self._callbacks.setdefault(name, []).append(callback)
        if module is not None:
            _when_loaded(module, partial(self.notify, name, module))
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

    @hidden
    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException as error:
            strip(error)
            raise
        self._watcher.notify(module.__name__ if spec is None else spec.name, module)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _when_loaded(module: ModuleType, callback: Callable[[], None]) -> None:
    """Call `callback` at the end of the import of `module`, which has begun without a watcher.

    A framework whose own import imports torch is loading when a session begins with torch. The
    import system clears a flag of the module's spec in the end. Raises nothing.
    """
    try:
        spec: Any = module.__spec__
        kind = type(spec)

        def get(_: Any) -> bool:
            return True

        def clear(_: Any, value: bool) -> None:
            spec.__class__ = kind
            spec._initializing = value
            if not value and sys.modules.get(spec.name) is module:
                callback()

        spec.__class__ = type(kind.__name__, (kind,), {"_initializing": property(get, clear)})
    except Exception as error:
        record_error("hooks", error)


AUTO, NONE = "auto", "none"
_NO_HOOKS = ((), (NONE,))


class Instrumentation:
    """The hooks of one session, into every framework that the program imports."""

    def __init__(
        self,
        config: Config,
        frameworks: Mapping[str, Framework] = FRAMEWORKS,
    ) -> None:
        self._config, self._frameworks = config, frameworks
        self._imports = ImportWatcher()
        self.hooks: dict[str, FrameworkHooks] = {}
        """The hooks that are installed, by the framework's name."""
        self.opens_worker: Any = None
        """Opens the session of a DataLoader worker (`torch.workers.Open`)."""
        self.before_loading: Callable[[], object] | None = None
        """Called before each DataLoader iterator is created, and so before its workers start."""
        self.process: SessionAccess | None = None
        """The session of this process, for frameworks that start processes."""
        self._rank_found: RankCallback | None = None

    @property
    def installed(self) -> list[str]:
        """The names of the frameworks that are hooked."""
        return list(self.hooks)

    def install(self) -> None:
        """Hook the imported frameworks now, and the others once they are imported.

        Raises nothing.
        """
        try:
            selection = self._config.frameworks
            names = (AUTO,) if selection is None else tuple(selection)
            known = (*self._frameworks, AUTO, NONE)
            for name in names:
                if name not in known:
                    expected = ", ".join(known)
                    report_problem("frameworks", f"{name!r} is not hooked: expected {expected}")
            for name, framework in self._frameworks.items():
                if name in names:
                    _import(framework.module)
                hook = partial(self._hook, name, framework)
                if framework.is_requested:
                    requests[framework.module] = hook
                    if framework.module in sys.modules:
                        request(framework.module)
                elif name in names or AUTO in names:
                    self._imports.on(framework.module, hook)
            for name, logger in LOGGERS.items():
                if self._captures(logger.option):
                    self._imports.on(logger.module, partial(self._hook, name, logger))
        except Exception as error:
            record_error("hooks", error)

    def _captures(self, logger: str) -> bool:
        """Return whether the scalars of a logger become marks.

        `frameworks="none"` means that nothing is hooked, so a logger must then be named.
        """
        capture = self._config.capture
        return logger in capture or (
            capture == (AUTO,) and self._config.frameworks not in _NO_HOOKS
        )

    def _hook(self, name: str, framework: Framework, _module: ModuleType) -> None:
        """Install the hooks of a framework that is imported. Raises nothing."""
        try:
            hooks = self.hooks[name] = framework.create()
            hide_package(__package__)
            hooks.install(
                HookContext(
                    config=self._config,
                    on_import=self._imports.on,
                    worker_opener=lambda: self.opens_worker,
                    remove_all=self.remove,
                    before_loading=self.before_loading,
                    epoch_ended=_epoch_ended,
                    process=self.process,
                )
            )
            if self._rank_found is not None:
                hooks.ask_rank(self._rank_found)
        except Exception as error:
            record_error("hooks", error)

    def ask_rank(self, callback: RankCallback) -> None:
        """Call `callback` once with the rank and the world size, if a framework assigns a rank.

        The callback may be called now, at the beginning of a loop, or at a flush.
        """
        self._rank_found = callback
        for hooks in self.hooks.values():
            hooks.ask_rank(callback)

    def remove(self) -> None:
        """Remove every hook, and close the open scopes that the hooks opened. Raises nothing."""
        requests.clear()
        try:
            self._imports.remove()
        except Exception as error:
            record_error("hooks", error)
        training_loop.end_all()
        while self.hooks:
            _, hooks = self.hooks.popitem()
            try:
                hooks.remove()
            except Exception as error:
                record_error("hooks", error)
        forget_callers()

    def on_flush(self) -> None:
        """Hook frameworks whose import was missed, and finish phases that have waited too long.

        Called on the flush thread, once per flush.
        """
        self._imports.rescan()
        for hooks in tuple(self.hooks.values()):
            hooks.on_flush()

    def after_fork(self) -> None:
        """In a forked child, forget the parent's open scopes. The hooks stay installed."""
        training_loop.after_fork()
        for hooks in self.hooks.values():
            hooks.after_fork()

    def health(self) -> dict[str, dict[str, Any]]:
        """Return the state of the installed hooks by framework."""
        return {name: hooks.health() for name, hooks in tuple(self.hooks.items())}


def _epoch_ended(scope: Any) -> None:
    state.epoch_ended(scope)  # the session sets it, so it is read at each call


def _import(name: str) -> None:
    """Import a framework that an option requests by name."""
    if name not in sys.modules:
        try:
            __import__(name)
        except ImportError as error:
            report_problem("frameworks", f"{name} cannot be imported, so it is not hooked: {error}")
