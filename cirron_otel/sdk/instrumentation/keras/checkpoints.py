"""Record the files that Keras saves and loads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...tracing.hidden_frames import strip
from ..open_phase import close_phase, open_phase
from ..patches import Patches
from .fits import NAME, own_loop, thread

MODULE = "keras.src.saving.saving_api"
_OPERATIONS = {
    "save_model": "save",
    "save_weights": "save",
    "load_model": "load",
    "load_weights": "load",
}


def install_checkpoints(patches: Patches, module: Any) -> None:
    """Hook the functions of `MODULE`, which the methods of a model call."""
    for name, operation in _OPERATIONS.items():
        replacement = _wrapped(getattr(module, name), operation)
        patches.replace_function((module,), name, replacement)


def _wrapped(original: Callable[..., Any], operation: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if thread.is_checkpoint:
                return original(*args, **kwargs)
            attrs = {"operation": operation, "function": original.__name__}
            loop = own_loop()
            scope: Any
            if loop is not None:
                scope = loop.open("checkpoint", **attrs)
            else:
                scope = open_phase(NAME, "checkpoint", attrs)
            thread.is_checkpoint = True
            error = None
            try:
                return original(*args, **kwargs)
            except BaseException as raised:
                error = raised
                raise
            finally:
                thread.is_checkpoint = False
                if loop is not None:
                    loop.close(scope, error)
                else:
                    close_phase(NAME, scope, error)
        except BaseException as error:
            strip(error)
            raise

    return call
