"""Record the Trainer's epochs, steps, evaluations and logs.

docs/transformers.md defines the rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ...tracing.step_places import GLOBAL_STEP
from ..logged_values import passing_on
from ..loop_scopes import EVALUATION
from .configuration import record_configuration
from .loop import NAME, TrainerLoop, own_loop


def run(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `train` as a training loop."""
    loop = TrainerLoop.start(NAME)
    if loop is None:
        return original(trainer, *args, **kwargs)
    loop.trainers.append(trainer)
    try:
        result = original(trainer, *args, **kwargs)
    except BaseException as error:
        loop.number_unended_step()
        loop.end(error)
        raise
    loop.end()
    return result


def evaluation(function: str, original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `evaluate` or `predict`, the `function`, as an `eval` scope, in the loop or alone."""
    outer = own_loop()
    loop = outer or TrainerLoop.start(NAME)
    if loop is None or (outer is not None and outer.is_open(EVALUATION)):
        return original(trainer, *args, **kwargs)
    prefix = _datasets_prefix(function, trainer, args, kwargs)
    was = loop.datasets_prefix
    if prefix is None:
        attrs = _evaluation_attributes(loop, function, args, kwargs)
        loop.begin_evaluation(is_in_step=True, **attrs)
        loop.marked = {}
    else:
        loop.datasets_prefix = prefix
    loop.trainers.append(trainer)
    result: Any = None
    failure: BaseException | None = None
    try:
        result = original(trainer, *args, **kwargs)
        return result
    except BaseException as error:
        failure = error
        raise
    finally:
        _evaluated(loop, prefix is None, result, failure)
        loop.datasets_prefix = was
        loop.trainers.pop()
        if outer is None:
            loop.end(failure)
        failure = None


def _evaluated(
    loop: TrainerLoop, is_scope: bool, result: Any, failure: BaseException | None
) -> None:
    try:
        if is_scope:
            if failure is None:
                loop.mark_metrics(result)
            loop.end_evaluation(failure)
    except Exception as error:
        record_error(NAME, error)


def _datasets_prefix(function: str, trainer: Any, args: Any, kwargs: Any) -> str | None:
    """Return the prefix of the metrics if several datasets are evaluated, one after the other."""
    try:
        if function != "evaluate":
            return None
        dataset = args[0] if args else kwargs.get("eval_dataset")
        dataset = trainer.eval_dataset if dataset is None else dataset
        if not isinstance(dataset, dict):
            return None
        return str(args[2] if len(args) > 2 else kwargs.get("metric_key_prefix", "eval"))
    except Exception as error:
        record_error(NAME, error)
        return None


def _evaluation_attributes(
    loop: TrainerLoop, function: str, args: Any, kwargs: Any
) -> dict[str, Any]:
    attrs: dict[str, Any] = {"function": function}
    try:
        prefix = str(args[2] if len(args) > 2 else kwargs.get("metric_key_prefix", ""))
        if loop.datasets_prefix is not None and prefix.startswith(loop.datasets_prefix + "_"):
            attrs["dataset"] = prefix.removeprefix(loop.datasets_prefix + "_")
    except Exception as error:
        record_error(NAME, error)
    return attrs


def micro_step(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `training_step` as a `micro_step`, if gradients are accumulated over several."""
    try:
        is_accumulating = trainer.args.gradient_accumulation_steps > 1
    except Exception as error:
        record_error(NAME, error)
        is_accumulating = False
    loop = own_loop() if is_accumulating else None
    if loop is None or not _begin_micro_step(loop, trainer):
        return original(trainer, *args, **kwargs)
    result = original(trainer, *args, **kwargs)
    loop.end_micro_step()
    return result


def _begin_micro_step(loop: TrainerLoop, trainer: Any) -> bool:
    try:
        step = loop.step
        if step is None or step.micro is not None or trainer is not loop.trainers[0]:
            return False
        loop.begin_micro_step()
    except Exception as error:
        record_error(NAME, error)
        return False
    return True


def end_of_epoch(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `_maybe_log_save_evaluate`; the call after `on_epoch_end` is the end of the epoch.

    A call inside that call, of the method that a subclass extends or by a callback, is part of it.
    """
    loop = own_loop()
    if loop is None or not loop.is_epoch_over:
        return original(trainer, *args, **kwargs)
    loop.is_epoch_over = False
    result = original(trainer, *args, **kwargs)
    _end_epoch(loop)
    return result


def numbered(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `_run_epoch`, whose argument is the number of the epoch."""
    loop = own_loop()
    try:
        number = kwargs.get("epoch")
        if loop is not None and trainer in loop.trainers and isinstance(number, int):
            loop.last_epoch = number
            if loop.epoch is not None:
                loop.epoch.index = number
    except Exception as error:
        record_error(NAME, error)
    return original(trainer, *args, **kwargs)


def skipped(original: Any) -> Any:
    """Return a replacement of `skip_first_batches`, which a resumed training calls."""

    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        """Skip the first batches of a loader, and begin the epoch's steps after them."""
        try:
            loop = own_loop()
            try:
                if loop is not None and loop.is_in_epoch and num_batches:
                    accumulation = loop.trainers[0].args.gradient_accumulation_steps
                    loop.expect_step(num_batches // max(accumulation, 1))
                    if loop.epoch is not None:
                        loop.epoch.set_attribute("skipped_batches", num_batches)
            except Exception as error:
                record_error(NAME, error)
            return original(dataloader, num_batches)
        except BaseException as error:
            strip(error)
            raise

    return skip_first_batches


# --- events -----------------------------------------------------------------------------------


def events(original: Any) -> Any:
    """Return a replacement of `call_event`, which calls the callbacks.

    A step calls it four times or more, so the checks are written for few instructions.
    """

    @functools.wraps(original)
    def call_event(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            actions = _ACTIONS.get(args[0]) if len(args) > 2 else None
            if actions is None:
                return original(self, *args, **kwargs)
            loop = own_loop()
            if loop is None or (self is not loop.handler and not loop.is_own_handler(self)):
                return original(self, *args, **kwargs)
            before, after = actions
            if before is not None:
                try:
                    before(loop, args[2], kwargs)
                except Exception as error:
                    record_error(NAME, error)
            if kwargs and "logs" in kwargs:
                with passing_on(kwargs["logs"]):
                    result = original(self, *args, **kwargs)
            else:
                result = original(self, *args, **kwargs)
            if after is not None:
                try:
                    after(loop, args[2], kwargs)
                except Exception as error:
                    record_error(NAME, error)
            return result
        except BaseException as error:
            strip(error)
            raise

    return call_event


def _begin_training(loop: TrainerLoop, state: Any, _: dict[str, Any]) -> None:
    _end_epoch(loop)
    loop.global_step = state.global_step
    loop.last_epoch = -1  # the Trainer may begin again, with a smaller batch
    record_configuration(loop.trainers[0])


def _begin_epoch(loop: TrainerLoop, state: Any, _: dict[str, Any]) -> None:
    _end_epoch(loop)
    is_resumed_stream = loop.last_epoch < 0 and not _has_length(loop.trainers[0])
    # A stream is read from its beginning; `state.epoch` is a share of `max_steps` then.
    trained = 0 if is_resumed_stream else int(state.epoch or 0)
    loop.last_epoch = max(loop.last_epoch + 1, trained)
    loop.epoch = loop.begin_epoch(loop.last_epoch)
    loop.is_in_epoch = True
    loop.expect_step()


def _has_length(trainer: Any) -> bool:
    try:
        len(trainer.callback_handler.train_dataloader)
    except TypeError:
        return False
    return True


def _begin_step(loop: TrainerLoop, _: Any, __: dict[str, Any]) -> None:
    loop.is_step_closed = False
    loop.begin_step()


def _step_is_over(loop: TrainerLoop, state: Any, _: dict[str, Any]) -> None:
    """The callbacks may open scopes in the step; their evaluations are not part of it."""
    loop.global_step = state.global_step
    if loop.step is not None:
        loop.set_attributes(**{GLOBAL_STEP: loop.global_step})
        loop.step.is_over = True


def _end_step(loop: TrainerLoop, _: Any, __: dict[str, Any]) -> None:
    loop.is_step_closed = loop.step is None
    loop.end_step(loop.global_step)


def _close_step(loop: TrainerLoop, _: Any, __: dict[str, Any]) -> None:
    loop.is_step_closed = False
    loop.number_unended_step()
    loop.close_step()


def _epoch_is_over(loop: TrainerLoop, _: Any, __: dict[str, Any]) -> None:
    loop.is_epoch_over = True


def _end_epoch(loop: TrainerLoop) -> None:
    if loop.is_in_epoch:
        loop.number_unended_step()
        loop.end_epoch()
    loop.epoch, loop.is_in_epoch, loop.is_epoch_over = None, False, False


_Action = Callable[[TrainerLoop, Any, dict[str, Any]], None]
_ACTIONS: dict[str, tuple[_Action | None, _Action | None]] = {
    "on_train_begin": (_begin_training, None),
    "on_epoch_begin": (_begin_epoch, None),
    "on_step_begin": (_begin_step, None),
    "on_step_end": (_step_is_over, _end_step),
    "on_log": (lambda loop, _, values: loop.mark_logs(values.get("logs")), None),
    "on_epoch_end": (_close_step, _epoch_is_over),
    "on_train_end": (lambda loop, _, __: _end_epoch(loop), None),
}
"""By event: the action before the callbacks, and the action after them."""
