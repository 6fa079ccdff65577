"""The hooks of one session into scikit-learn, XGBoost and LightGBM."""

from __future__ import annotations

import inspect
import threading
from functools import partial
from typing import Any

from ...session.errors import record_error
from ..base import FrameworkHooks, HookContext, Part, install_parts
from ..patches import Patches
from .boosting import hook_lightgbm, hook_xgboost
from .calls import TracedMethod, finished
from .tasks import hook_joblib
from .wrapping import METHODS, add, find, forget_tracer, use_tracer

_ABSENT = object()


class SklearnHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.not_recorded: list[str] = []
        """The parts that the installed versions do not allow to be hooked."""
        self._classes: set[type] = set()
        self._lock = threading.RLock()

    def install(self, context: HookContext) -> None:
        """Hook the classes of wrapped estimators, and the modules that run them."""
        patches = self.patches
        modules: dict[str, tuple[str, Any]] = {
            "sklearn.base": ("clones", lambda module: hook_clones(patches, module)),
            "joblib.parallel": (
                "folds and workers",
                lambda module: hook_joblib(patches, module, context.worker_opener),
            ),
            "xgboost.callback": (
                "boosting rounds", lambda module: hook_xgboost(patches, module),
            ),
            "lightgbm.engine": (
                "boosting rounds", lambda module: hook_lightgbm(patches, module),
            ),
        }  # fmt: skip
        for name, (part, hook) in modules.items():
            context.on_import(name, partial(self._part, part, hook))
        use_tracer(self)

    def _part(self, part: str, hook: Any, module: Any) -> None:
        framework = module.__name__.partition(".")[0]
        parts: list[Part] = [(part, lambda: hook(module))]
        self.not_recorded += install_parts(framework, parts)
        self.patches.replace_copies()

    def trace_class(self, cls: type) -> None:
        """Let the methods of a class record the calls of traced estimators. Raises nothing."""
        if cls in self._classes:
            return
        with self._lock:
            if cls in self._classes:
                return
            self._classes.add(cls)
            for name in METHODS:
                try:
                    if inspect.getattr_static(cls, name, _ABSENT) is not _ABSENT:
                        self._replace(cls, name)
                except Exception as error:
                    record_error("wrap", error)

    def _replace(self, cls: type, name: str) -> None:
        self.patches.replace(cls, name, TracedMethod(cls, name, finished))

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self.not_recorded)}

    def remove(self) -> None:
        """Remove every hook. Raises nothing."""
        forget_tracer(self)
        self.patches.undo()
        self.patches.restore_all_copies()


def hook_clones(patches: Patches, module: Any) -> None:
    """Let the clones of traced estimators be traced, too.

    Raises AttributeError if `sklearn.base` is not as expected.
    """
    patches.wrap(module.BaseEstimator, "__sklearn_clone__", _clone)


def _clone(original: Any, estimator: Any, args: Any, kwargs: Any) -> Any:
    copy = original(estimator, *args, **kwargs)
    try:
        member = find(estimator)
        if member is not None and copy is not estimator:
            add(copy, member.step)
    except Exception as error:
        record_error("wrap", error)
    return copy
