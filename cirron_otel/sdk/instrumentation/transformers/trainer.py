"""Record the Trainer's epochs, steps, evaluations, logs and checkpoints.

docs/transformers.md defines the rules.
"""

from __future__ import annotations

from typing import Any

from ...session.errors import record_error
from ...tracing.mark import SUMMARY
from ..patches import Patches
from ..training_loop import EVALUATION, TrainingLoop, current_loop

NAME = "transformers"


def own_loop() -> TrainingLoop | None:
    """Return the innermost loop of this thread if it is a Trainer's."""
    loop = current_loop()
    return loop if loop is not None and loop.framework == NAME else None


class TrainerHooks:
    """Replaces the methods of `Trainer` and of its callback handler."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def install(self, trainer: Any, handler: Any) -> None:
        """Hook the class `Trainer` and its `CallbackHandler`.

        Raises AttributeError if this version of transformers lacks one of the methods.
        """
        self._patches.wrap(trainer, "train", _run)
        self._patches.wrap(trainer, "evaluate", _evaluation)
        self._patches.wrap(trainer, "predict", _evaluation)
        self._patches.wrap(trainer, "training_step", _micro_step)
        for name in ("_save_checkpoint", "save_model"):
            self._patches.wrap(trainer, name, _saving)
        for name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_best_model"):
            self._patches.wrap(trainer, name, _loading)
        self._patches.wrap(handler, "call_event", _event)


def _run(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    loop = TrainingLoop.start(NAME)
    try:
        result = original(trainer, *args, **kwargs)
    except BaseException as error:
        if loop is not None:
            loop.end(error)
        raise
    if loop is not None:
        loop.end()
    return result


def _evaluation(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    outer = own_loop()
    loop = outer or TrainingLoop.start(NAME)
    if loop is None or (outer is not None and outer.is_open(EVALUATION)):
        return original(trainer, *args, **kwargs)
    loop.begin_evaluation(function=original.__name__)
    try:
        result = original(trainer, *args, **kwargs)
    except BaseException as error:
        loop.end_evaluation(error)
        if outer is None:
            loop.end(error)
        raise
    loop.end_evaluation()
    if outer is None:
        loop.end()
    return result


def _micro_step(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    if trainer.args.gradient_accumulation_steps > 1:
        loop = own_loop()
        if loop is not None:
            loop.begin_micro_step()
    return original(trainer, *args, **kwargs)


def _saving(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    return _checkpoint("save", original, trainer, args, kwargs)


def _loading(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    return _checkpoint("load", original, trainer, args, kwargs)


def _checkpoint(operation: str, original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None or loop.is_open("checkpoint"):
        return original(trainer, *args, **kwargs)
    scope = loop.open("checkpoint", operation=operation)
    try:
        result = original(trainer, *args, **kwargs)
    except BaseException as error:
        loop.close(scope, error)
        raise
    loop.close(scope)
    return result


def _event(original: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    action = _ACTIONS.get(args[0])
    loop = own_loop() if action is not None else None
    if action is None or loop is None:
        return original(handler, *args, **kwargs)
    is_first, act = action
    if is_first:
        _act(act, loop, args[2], kwargs)
    result = original(handler, *args, **kwargs)
    if not is_first:
        _act(act, loop, args[2], kwargs)
    return result


def _act(act: Any, loop: TrainingLoop, state: Any, values: dict[str, Any]) -> None:
    try:
        act(loop, state, values)
    except Exception as error:
        record_error(NAME, error)


def _epoch_begins(loop: TrainingLoop, state: Any, _: dict[str, Any]) -> None:
    loop.begin_epoch(int(state.epoch or 0))
    loop.expect_step()


def _logged(loop: TrainingLoop, _: Any, values: dict[str, Any]) -> None:
    kind = SUMMARY if loop.is_open(EVALUATION) else "point"
    for name, value in (values.get("logs") or {}).items():
        loop.mark(name, value, kind)


_ACTIONS: dict[str, tuple[bool, Any]] = {
    "on_epoch_begin": (True, _epoch_begins),
    "on_step_begin": (True, lambda loop, _, __: loop.begin_step()),
    "on_log": (True, _logged),
    "on_substep_end": (False, lambda loop, _, __: loop.end_micro_step()),
    "on_step_end": (False, lambda loop, state, _: loop.end_step(state.global_step)),
    "on_epoch_end": (False, lambda loop, _, __: loop.end_epoch()),
}
"""By event: whether the action precedes the callbacks, and the action."""
