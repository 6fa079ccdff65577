"""Record `evaluate` and `predict`. docs/keras.md defines the rules."""

from __future__ import annotations

from typing import Any

from ...session.errors import record_error
from ..logged_values import passing_on
from ..loop_scopes import EVALUATION
from ..patches import Patches
from ..training_loop import TrainingLoop
from .fits import NAME, abandon_step, mark_value, own_loop, thread
from .logs import Logs

_VALIDATION = "_use_cached_eval_dataset"
"""The argument with which `fit` calls `evaluate`."""


def install_evaluations(patches: Patches, trainer: Any, callback_list: Any) -> None:
    """Hook `evaluate` and `predict` of a backend's trainer class, and the event with the logs."""
    patches.wrap(trainer, "evaluate", _evaluation)
    patches.wrap(trainer, "predict", _evaluation)
    patches.wrap(callback_list, "on_test_end", _test_end)


def _evaluation(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if thread.muted:
        return original(model, *args, **kwargs)
    outer = own_loop()
    loop = outer or TrainingLoop.start(NAME)
    if loop is None or loop.is_open(EVALUATION):
        return original(model, *args, **kwargs)
    is_validation = bool(kwargs.get(_VALIDATION))
    if is_validation:
        abandon_step(loop)
    loop.begin_evaluation(function=original.__name__)
    was_validation, thread.is_validation = thread.is_validation, is_validation
    try:
        result = original(model, *args, **kwargs)
    except BaseException as error:
        loop.end_evaluation(error)
        if outer is None:
            loop.end(error)
        raise
    finally:
        thread.is_validation = was_validation
    loop.end_evaluation()
    if outer is None:
        loop.end()
    return result


def _test_end(original: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None or not loop.is_open(EVALUATION):
        return original(handler, *args, **kwargs)
    if not thread.is_validation:
        try:
            logs = args[0] if args else kwargs.get("logs")
            for name, value in (logs or {}).items():
                mark_value(loop, name, value)
        except Exception as error:
            record_error(NAME, error)
    prefix = "val_" if thread.is_validation else ""  # the epoch has its values under these names
    with passing_on(Logs(args, kwargs, 0, prefix)):
        return original(handler, *args, **kwargs)
