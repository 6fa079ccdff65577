"""Record the phases of eager code: batches, tapes, gradients, models and optimizers."""

from __future__ import annotations

from typing import Any

from ...session.errors import record_error
from ..patches import Patches
from .functions import Functions
from .phases import BACKWARD, FORWARD, LOAD, NAME, OPTIMIZER, begin, drop, end, thread

ITERATORS = "tensorflow.python.data.ops.iterator_ops"
DISTRIBUTED = "tensorflow.python.distribute.input_lib"
TAPES = "tensorflow.python.eager.backprop"
OPTIMIZERS = "keras.src.optimizers.base_optimizer"
LAYERS = "keras.src.layers.layer"


class Eager:
    """Replaces the methods of eager code; inside a graph they only call the originals."""

    def __init__(self, patches: Patches, is_eager: Any, functions: Functions) -> None:
        self._patches, self._is_eager, self._functions = patches, is_eager, functions

    def iterators(self, owner: Any) -> None:
        """Hook a class of iterators over datasets."""
        for name in ("__next__", "get_next"):
            self._patches.wrap(owner, name, self._fetch)

    def tapes(self, module: Any) -> None:
        """Hook `TAPES`."""
        tape = module.GradientTape
        self._patches.wrap(tape, "gradient", self._gradient)
        self._patches.wrap(tape, "__enter__", self._enter_tape)
        self._patches.wrap(tape, "__exit__", self._exit_tape)

    def optimizers(self, module: Any) -> None:
        """Hook Keras' optimizers; torch's hooks record them if Keras runs on torch."""
        if module.backend.backend() == "tensorflow":
            self._patches.wrap(module.BaseOptimizer, "apply", self._apply)

    def layers(self, module: Any) -> None:
        """Hook Keras' layers, of which the outermost is a model."""
        if module.backend.backend() == "tensorflow":
            self._patches.wrap(module.Layer, "__call__", self._layer)

    def _fetch(self, original: Any, iterator: Any, args: Any, kwargs: Any) -> Any:
        if thread.inside & LOAD or not self._is_eager() or not thread.is_recorded:
            return original(iterator, *args, **kwargs)
        thread.passes.fetching(iterator)
        phase = begin(LOAD)
        if phase is None:
            return original(iterator, *args, **kwargs)
        try:
            result = original(iterator, *args, **kwargs)
        except BaseException as error:
            if isinstance(error, StopIteration) or type(error).__name__ == "OutOfRangeError":
                drop(phase)
                thread.passes.exhausted(iterator)
            else:
                end(phase, error)
            raise
        end(phase)
        return result

    def _gradient(self, original: Any, tape: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_eager():
            self._functions.traced += 1
            return original(tape, *args, **kwargs)
        phase = begin(BACKWARD)
        try:
            result = original(tape, *args, **kwargs)
        except BaseException as error:
            end(phase, error)
            raise
        if phase is not None:
            end(phase)
            thread.passes.trained()
        return result

    def _enter_tape(self, original: Any, tape: Any, args: Any, kwargs: Any) -> Any:
        result = original(tape, *args, **kwargs)
        if thread.tape is None and self._is_eager():
            phase = begin(FORWARD)
            if phase is not None:
                thread.tape = (tape, phase)
        return result

    def _exit_tape(self, original: Any, tape: Any, args: Any, kwargs: Any) -> Any:
        opened = thread.tape
        if opened is not None and opened[0] is tape:
            thread.tape = None
            error = args[1] if len(args) > 1 else None
            end(opened[1], error if isinstance(error, BaseException) else None)
            thread.passes.used()
        return original(tape, *args, **kwargs)

    def _apply(self, original: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_eager():
            self._functions.traced += 1
            return original(optimizer, *args, **kwargs)
        phase = begin(OPTIMIZER, {"optimizer": type(optimizer).__name__})
        try:
            result = original(optimizer, *args, **kwargs)
        except BaseException as error:
            end(phase, error)
            raise
        if phase is not None:
            end(phase)
            thread.passes.trained(is_step=True)
        return result

    def _layer(self, original: Any, layer: Any, args: Any, kwargs: Any) -> Any:
        if thread.inside or not self._is_eager() or _is_symbolic(args):
            return original(layer, *args, **kwargs)
        phase = begin(FORWARD, {"module": type(layer).__name__})
        try:
            result = original(layer, *args, **kwargs)
        except BaseException as error:
            end(phase, error)
            raise
        if phase is not None:
            end(phase)
            thread.passes.used()
        return result


def _is_symbolic(args: Any) -> bool:
    """Return whether a layer is called to build a model: its input has no values."""
    try:
        value = args
        while isinstance(value, (tuple, list, dict)) and value:
            value = next(iter(value.values())) if isinstance(value, dict) else value[0]
        return type(value).__name__ == "KerasTensor"
    except Exception as error:
        record_error(NAME, error)
        return False
