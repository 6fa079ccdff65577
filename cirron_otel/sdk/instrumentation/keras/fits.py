"""Record the epochs and steps of `fit`, and the steps of `train_on_batch`.

docs/keras.md defines the rules.
"""

from __future__ import annotations

import threading
from typing import Any

from ....semconv import LOSS
from ...session.errors import record_error
from ...tracing.mark import POINT, SUMMARY
from ...tracing.state import CONTEXT
from ...tracing.step_places import GLOBAL_STEP
from ..iteration import current_scope
from ..logged_values import is_number, passing_on
from ..patches import Patches
from ..training_loop import TrainingLoop, current_loop, is_step_open
from .configuration import record_configuration
from .logs import Logs

NAME = "keras"


class _Thread(threading.local):
    """The state of a thread's calls into Keras."""

    def __init__(self) -> None:
        self.muted = 0
        """The depth of calls of `fit` whose events are not recorded."""
        self.batch: int | None = None
        """The first batch of the open step, until its end."""
        self.trained: int | None = None
        """The number of batches that the optimizer of the open `fit` has seen."""
        self.is_validation = False
        """Whether `fit` has called the open `evaluate`."""
        self.is_checkpoint = False
        """Whether a checkpoint is being saved or loaded."""
        self.logs: dict[str, Any] | None = None
        """The logs of the open `train_on_batch`."""
        self.parent = 0
        """The id of the scope around the last `train_on_batch`."""
        self.batches = 0
        """The number of calls of `train_on_batch` in that scope."""


thread = _Thread()


def reset() -> None:
    """Forget the state of the calling thread, the only one of a forked child."""
    thread.__init__()  # type: ignore[misc]


def own_loop() -> TrainingLoop | None:
    """Return this thread's innermost loop if it is Keras' and its events are recorded."""
    loop = current_loop()
    return loop if loop is not None and loop.framework == NAME and not thread.muted else None


def install_batches(patches: Patches, trainer: Any) -> None:
    """Hook `train_on_batch` of a backend's trainer class."""
    patches.wrap(trainer, "train_on_batch", _train_on_batch)
    patches.wrap(trainer, "_flatten_metrics_in_order", _flattening)


def install_fits(patches: Patches, trainer: Any, callback_list: Any) -> None:
    """Hook `fit` of a backend's trainer class, and the events of `CallbackList` in it."""
    patches.wrap(trainer, "fit", _fit)
    for name, around in (
        ("on_train_begin", _train_begin),
        ("on_epoch_begin", _epoch_begin),
        ("on_epoch_end", _epoch_end),
        ("on_train_batch_begin", _batch_begin),
        ("on_train_batch_end", _batch_end),
    ):
        patches.wrap(callback_list, name, around)


def _fit(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    loop = None if thread.muted or own_loop() is not None else TrainingLoop.start(NAME)
    if loop is None:
        thread.muted += 1
        try:
            return original(model, *args, **kwargs)
        finally:
            thread.muted -= 1
    loop.logged = frozenset({LOSS})
    thread.batch = thread.trained = None
    try:
        result = original(model, *args, **kwargs)
    except BaseException as error:
        if thread.batch is not None and thread.trained is not None:
            loop.set_attributes(**{GLOBAL_STEP: thread.trained})
        loop.end(error)
        raise
    loop.end()
    return result


# --- the events of a fit ------------------------------------------------------------------


def _train_begin(original: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    if own_loop() is None:
        return original(handler, *args, **kwargs)
    record_configuration(handler)
    result = original(handler, *args, **kwargs)
    try:
        thread.trained = _trained(handler._model)  # a callback may have restored the optimizer
    except Exception as error:
        record_error(NAME, error)
    return result


def _trained(model: Any) -> int | None:
    """Return the number of batches that the optimizer of a model has seen before this `fit`."""
    optimizer = getattr(model, "optimizer", None)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return None if optimizer is None else int(optimizer._iterations.numpy())


def _epoch_begin(original: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is not None:
        try:
            loop.begin_epoch(int(_number(args, kwargs, "epoch")))
        except Exception as error:
            record_error(NAME, error)
    result = original(handler, *args, **kwargs)
    if loop is not None:
        loop.expect_step()
    return result


def _epoch_end(original: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(handler, *args, **kwargs)
    abandon_step(loop)
    loop.close_step()
    before = _lengths(handler)
    with passing_on(Logs(args, kwargs, 1)):
        result = original(handler, *args, **kwargs)
    _mark_logs(loop, handler, before)
    loop.end_epoch()
    return result


def _batch_begin(original: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None:
        return original(handler, *args, **kwargs)
    batch = thread.batch = None
    try:
        batch = int(_number(args, kwargs, "batch"))
        if loop.step is None or loop.step.is_begun:
            loop.expect_step(batch)
            loop.fetching()
    except Exception as error:
        record_error(NAME, error)
    result = original(handler, *args, **kwargs)
    loop.begin_step(batch)  # a callback may have evaluated, which ends a step without work
    thread.batch = batch
    return result


def _batch_end(original: Any, handler: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is not None:
        try:
            _count_batches(loop, handler, int(_number(args, kwargs, "batch")))
        except Exception as error:
            record_error(NAME, error)
    result = original(handler, *args, **kwargs)
    if loop is not None:
        loop.end_step()
    return result


def _number(args: Any, kwargs: Any, name: str) -> Any:
    return args[0] if args else kwargs[name]


def _count_batches(loop: TrainingLoop, handler: Any, last: int) -> None:
    """Record the global step, and the number of batches of a step that executes several."""
    first, thread.batch = thread.batch, None
    if first is None:
        return
    batches, attrs = 1, {}
    if last > first:
        steps = (handler.params or {}).get("steps")
        if isinstance(steps, int) and steps > first:
            last = min(last, steps - 1)
        attrs["batches"] = batches = last - first + 1
    if thread.trained is not None:
        attrs[GLOBAL_STEP] = thread.trained = thread.trained + batches
    loop.set_attributes(**attrs)


def abandon_step(loop: TrainingLoop) -> None:
    """Discard a step that found no batch: Keras begins it before it asks for one."""
    try:
        if thread.batch is None or loop.step is None:
            return
        thread.batch = None
        for phase in loop.step.children:
            phase.drop()
        loop.drop_step()
    except Exception as error:
        record_error(NAME, error)


def _lengths(handler: Any) -> dict[str, int]:
    """Return the number of values that `History` has recorded by name."""
    try:
        history = handler._history
        return {} if history is None else {k: len(v) for k, v in history.history.items()}
    except Exception as error:
        record_error(NAME, error)
        return {}


def _mark_logs(loop: TrainingLoop, handler: Any, before: dict[str, int]) -> None:
    """Mark the values that `History` has recorded since `before`."""
    try:
        history = handler._history
        for name, values in {} if history is None else history.history.items():
            if len(values) > before.get(name, 0):
                mark_value(loop, name, values[-1], POINT)
    except Exception as error:
        record_error(NAME, error)


def mark_value(loop: TrainingLoop, name: Any, value: Any, kind: str = SUMMARY) -> None:
    """Mark a metric that is a number; skip other values, such as arrays."""
    if is_number(value):
        loop.mark(str(name), value, kind)


# --- batches without a fit ----------------------------------------------------------------


def _train_on_batch(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    loop = None if is_step_open() else TrainingLoop.start(NAME)
    if loop is None:
        return original(model, *args, **kwargs)
    outer, thread.logs = thread.logs, {}
    loop.begin_step(_next_batch())
    try:
        result = original(model, *args, **kwargs)
    except BaseException as error:
        thread.logs = outer
        loop.end(error)
        raise
    logs, thread.logs = thread.logs, outer
    try:
        for name, value in (result if isinstance(result, dict) else logs or {}).items():
            mark_value(loop, name, value, POINT)
    except Exception as error:
        record_error(NAME, error)
    loop.end()
    return result


def _next_batch() -> int | None:
    """Return the number of this `train_on_batch` in the scope around it."""
    try:
        parent = current_scope(CONTEXT.get())._id
        if thread.parent != parent:
            thread.parent, thread.batches = parent, 0
        thread.batches += 1
        return thread.batches - 1
    except Exception as error:
        record_error(NAME, error)
        return None


def _flattening(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    if thread.logs is not None and args and isinstance(args[0], dict):
        thread.logs = dict(args[0])
    return original(model, *args, **kwargs)
