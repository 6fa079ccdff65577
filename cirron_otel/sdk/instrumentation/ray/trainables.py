"""The sessions of the processes that run trials, and the iterations of class trainables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from ...session.errors import record_error
from ..base import SessionAccess
from ..patches import Patches
from .handover import ATTRIBUTE
from .reports import mark_values
from .runs import NAME, end_process, scope

_TRIAL_INFO = "__trial_info__"
_NOT_REPORTED = frozenset({
    "training_iteration", "time_total_s", "episodes_total", "timesteps_total", "node_ip",
    "hostname", "pid", "time_this_iter_s", "timestamp", "date", "time_since_restore",
    "timesteps_since_restore", "iterations_since_restore", "config", "checkpoint_dir_name",
    "trial_id", "experiment_id", "experiment_tag", "done", "should_checkpoint",
})  # fmt: skip
"""The keys that Ray itself adds to a result, `AUTO_RESULT_KEYS` among them."""


class TrainableHooks:
    """Replaces methods of `Trainable`, the class of every trial."""

    def __init__(self, patches: Patches, process: SessionAccess) -> None:
        self._patches, self._process = patches, process

    def trainable(self, trainable: Any) -> None:
        """Hook the life of a trial's process."""
        self._patches.wrap(trainable, "__init__", self._create)
        self._patches.wrap(trainable, "reset", self._reset)
        self._patches.wrap(trainable, "stop", self._stop)

    def iterations(self, trainable: Any) -> None:
        """Hook the iterations and the checkpoints of a class trainable."""
        self._patches.wrap(trainable, "train", self._train)
        self._patches.wrap(trainable, "save", _saving)
        self._patches.wrap(trainable, "restore", _loading)

    def _create(self, original: Any, trainable: Any, args: Any, kwargs: Any) -> Any:
        self._begin(args[0] if args else kwargs.get("config"), is_new=True)
        return original(trainable, *args, **kwargs)

    def _reset(self, original: Any, trainable: Any, args: Any, kwargs: Any) -> Any:
        self._begin(args[0] if args else kwargs.get("new_config"), is_new=False)
        return original(trainable, *args, **kwargs)

    def _begin(self, config: Any, *, is_new: bool) -> None:
        try:
            info = config.get(_TRIAL_INFO) if isinstance(config, Mapping) else None
            if info is None:
                return  # a trainable that the program itself creates
            handed = getattr(info, ATTRIBUTE, None) or {}
            if handed or not is_new:
                self._process.renew(handed.get("variables", {}))
            hyperparameters = {
                key: value for key, value in config.items() if not str(key).startswith("__")
            }
            attributes = {
                "ray.run": info.experiment_name,
                "ray.trial": info.trial_id,
                "ray.restart": handed.get("failures") or None,
            }
            self._process.begin(attributes, hyperparameters)
        except Exception as error:
            record_error(NAME, error)

    def _stop(self, original: Any, trainable: Any, args: Any, kwargs: Any) -> Any:
        try:
            return original(trainable, *args, **kwargs)
        finally:
            end_process(self._process)

    def _train(self, original: Any, trainable: Any, args: Any, kwargs: Any) -> Any:
        if is_function(trainable):
            iteration: Any = nullcontext()
        else:
            iteration = scope("iteration", _iteration(trainable))
        try:
            with iteration:
                result = original(trainable, *args, **kwargs)
                if not is_function(trainable):
                    mark_values(result, _NOT_REPORTED)
        except BaseException as error:
            end_process(self._process, error)
            raise
        return result


def is_function(trainable: Any) -> bool:
    """Return whether a trainable runs a function, whose reports are recorded when it makes them."""
    return any(each.__name__ == "FunctionTrainable" for each in type(trainable).__mro__)


def _iteration(trainable: Any) -> int | None:
    try:
        return int(trainable._iteration)
    except Exception as error:
        record_error(NAME, error)
        return None


def _saving(original: Any, trainable: Any, args: Any, kwargs: Any) -> Any:
    if is_function(trainable):
        return original(trainable, *args, **kwargs)
    with scope("checkpoint", operation="save"):
        return original(trainable, *args, **kwargs)


def _loading(original: Any, trainable: Any, args: Any, kwargs: Any) -> Any:
    if is_function(trainable):
        return original(trainable, *args, **kwargs)
    with scope("checkpoint", operation="load"):
        return original(trainable, *args, **kwargs)
