"""The scopes around `TorchTrainer.fit`, `Tuner.fit` and `tune.run` in the driver."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ..base import SessionAccess
from ..patches import Patches
from .handover import runtime_variables
from .runs import NAME, scope
from .trials import TrialHooks

FIT, TUNE = "fit", "tune"


class _Open(threading.local):
    """The names of the open scopes of this thread."""

    def __init__(self) -> None:
        self.names: list[str] = []


_open = _Open()


class FitHooks:
    """Replaces the functions that run a training or a tuning, and their environments."""

    def __init__(self, patches: Patches, process: SessionAccess, trials: TrialHooks) -> None:
        self._patches, self._process, self._trials = patches, process, trials

    def trainer(self, trainer: Any) -> None:
        """Hook `fit` of Train's trainers."""
        self._patches.wrap(trainer, "fit", _fit)

    def tuner(self, tuner: Any) -> None:
        """Hook `Tuner.fit`."""
        self._patches.wrap(tuner, "fit", self._tune)

    def tune_run(self, module: Any) -> None:
        """Hook `tune.run`, and the copies of it in modules that imported it by name."""
        original = module.run

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return self._tuned(lambda: original(*args, **kwargs))
            except BaseException as error:
                strip(error)
                raise

        self._patches.replace_function([module], "run", run)

    def controller_environment(self, module: Any) -> None:
        """Let the controller of a training, and with it its workers, join the trace."""
        original = module.get_env_vars_to_propagate

        @functools.wraps(original)
        def get_env_vars_to_propagate() -> Any:
            try:
                return self._extended(original())
            except BaseException as error:
                strip(error)
                raise

        self._patches.replace(module, "get_env_vars_to_propagate", get_env_vars_to_propagate)

    def trial_environment(self, module: Any) -> None:
        """Let the processes of trials join the trace."""
        self._patches.wrap(module._ActorClassCache, "get", self._trial_class)

    def _tune(self, original: Any, tuner: Any, args: Any, kwargs: Any) -> Any:
        return self._tuned(lambda: original(tuner, *args, **kwargs))

    def _tuned(self, call: Callable[[], Any]) -> Any:
        if _open.names and _open.names[-1] in (TUNE, FIT):
            return call()  # Tuner.fit calls tune.run, and so does fit of Train V1
        with self._trials.running():
            return _recorded(TUNE, call)

    def _extended(self, env_vars: dict[str, str]) -> dict[str, str]:
        try:
            if _open.names:
                return runtime_variables(self._process, env_vars)
        except Exception as error:
            record_error(NAME, error)
        return env_vars

    def _trial_class(self, original: Any, cache: Any, args: Any, kwargs: Any) -> Any:
        actor_class = original(cache, *args, **kwargs)
        try:
            # The class belongs to this run of Tune, which derived it from the user's.
            options = actor_class._default_options
            runtime_env = options.get("runtime_env")
            if _open.names and runtime_env is not None:
                env_vars = runtime_variables(self._process, runtime_env.get("env_vars") or {})
                changed = {**runtime_env, "env_vars": env_vars}
                options["runtime_env"] = type(runtime_env)(**changed)
        except Exception as error:
            record_error(NAME, error)
        return actor_class


def _fit(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    attributes: dict[str, Any] = {}
    try:
        attributes["trainer"] = type(trainer).__name__
        attributes["workers"] = int(trainer.scaling_config.num_workers)
        if trainer.run_config.name is not None:
            attributes["run"] = str(trainer.run_config.name)
    except Exception as error:
        record_error(NAME, error)
    return _recorded(FIT, lambda: original(trainer, *args, **kwargs), **attributes)


def _recorded(name: str, call: Callable[[], Any], **attributes: Any) -> Any:
    _open.names.append(name)
    try:
        with scope(name, **attributes):
            return call()
    finally:
        _open.names.pop()
