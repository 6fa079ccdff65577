"""Record calls of functions that `tf.function` compiles."""

from __future__ import annotations

import weakref
from typing import Any

from ...session.errors import record_error
from ..loop_scopes import EVALUATION
from ..patches import Patches
from ..training_loop import current_loop
from .phases import FUNCTION, NAME, begin, drop, end, thread

MODULE = "tensorflow.python.eager.polymorphic_function.polymorphic_function"


class Functions:
    """Replaces `Function.__call__`; only the outermost call from eager code is recorded."""

    def __init__(self, patches: Patches, is_eager: Any) -> None:
        self._patches, self._is_eager = patches, is_eager
        self._trains: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        """Whether a function computes gradients or applies them, by function."""
        self.traced = 0
        """The number of gradients and optimizer steps that were traced into graphs."""

    def install(self, module: Any) -> None:
        """Hook `MODULE`. Raises AttributeError if this TensorFlow lacks the class."""
        module.Function.experimental_get_tracing_count  # noqa: B018
        self._patches.wrap(module.Function, "__call__", self._call)

    def _call(self, original: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if thread.inside & FUNCTION or not self._is_eager() or _runs_eagerly(function):
            return original(function, *args, **kwargs)
        phase = begin(FUNCTION, {"function": _name(function)})
        if phase is None:
            return original(function, *args, **kwargs)
        traces, traced = _traces(function), self.traced
        try:
            result = original(function, *args, **kwargs)
        except BaseException as error:
            if type(error).__name__ == "OutOfRangeError":
                drop(phase)  # a dataset that the function reads is at its end
            else:
                end(phase, error)
            raise
        try:
            self._classify(function, phase, _traces(function) > traces, self.traced > traced)
        except Exception as error:
            record_error(NAME, error)
        end(phase)
        return result

    def _classify(self, function: Any, phase: Any, compiles: bool, trains: bool) -> None:
        if compiles:
            phase._attrs = {**phase._attrs, "compiles": True}
            self._trains[function] = trains or self._trains.get(function, False)
        loop = current_loop()
        is_step = loop is not None and loop.framework == "keras" and loop.step is not None
        if is_step or (self._trains.get(function) and not _is_evaluated(loop)):
            phase._name = "train_step"
            thread.passes.trained(is_step=True)
        else:
            thread.passes.used()


def _is_evaluated(loop: Any) -> bool:
    return loop is not None and loop.framework == "keras" and loop.is_open(EVALUATION)


def _runs_eagerly(function: Any) -> bool:
    return bool(getattr(function, "_run_functions_eagerly", False))


def _name(function: Any) -> str:
    try:
        return str(getattr(function, "__name__", None) or getattr(function, "_name", "function"))
    except Exception as error:
        record_error(NAME, error)
        return "function"


def _traces(function: Any) -> int:
    try:
        return int(function.experimental_get_tracing_count())
    except Exception as error:
        record_error(NAME, error)
        return 0
