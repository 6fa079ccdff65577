"""Record the Trainer's checkpoints, and link a resumed run to the run that saved its checkpoint."""

from __future__ import annotations

import os
from typing import Any

from ...session.errors import record_error
from ..checkpoint_origin import (
    LOAD,
    PATH,
    SAVE,
    checkpoint_attributes,
    link_origin,
    store_origin,
)
from .loop import CHECKPOINT, NAME, TrainerLoop, own_loop


def saving_checkpoint(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `_save_checkpoint` as a `checkpoint` scope; only the outermost scope is one.

    A checkpoint's model is saved first, with its directory as an argument.
    """
    return _checkpoint(checkpoint_attributes(SAVE), original, trainer, args, kwargs)


def saving_model(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `save_model` as a `checkpoint` scope, or as part of the open one."""
    loop = own_loop()
    directory = args[0] if args else kwargs.get("output_dir")
    if loop is not None and loop.is_open(CHECKPOINT):
        result = original(trainer, *args, **kwargs)
        _note_directory(loop, trainer, directory)
        return result
    if directory is None:
        directory = getattr(getattr(trainer, "args", None), "output_dir", None)
    attrs = checkpoint_attributes(SAVE, directory)
    return _checkpoint(attrs, original, trainer, args, kwargs)


def loading(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call a method that loads a checkpoint as a `checkpoint` scope."""
    path = args[0] if args else next(iter(kwargs.values()), None)
    if path is None:
        return original(trainer, *args, **kwargs)  # there is nothing to load
    link_origin(path)
    return _checkpoint(checkpoint_attributes(LOAD, path), original, trainer, args, kwargs)


def loading_best_model(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Call `_load_best_model` as a `checkpoint` scope."""
    path = getattr(getattr(trainer, "state", None), "best_model_checkpoint", None)
    return _checkpoint(checkpoint_attributes(LOAD, path), original, trainer, args, kwargs)


def _checkpoint(attrs: dict[str, Any], original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    outer = own_loop()
    loop = outer or TrainerLoop.start(NAME)
    if loop is None or loop.is_open(CHECKPOINT):
        return original(trainer, *args, **kwargs)
    if outer is None:
        loop.trainers.append(trainer)
    scope = loop.open_inside(CHECKPOINT, **attrs)
    loop.saved_to = None
    try:
        result = original(trainer, *args, **kwargs)
    except BaseException as error:
        loop.close(scope, error)
        if outer is None:
            loop.end(error)
        raise
    if scope is not None and loop.saved_to is not None:
        scope.set_attribute(PATH, loop.saved_to)
    loop.close(scope)
    if outer is None:
        loop.end()
    return result


def _note_directory(loop: TrainerLoop, trainer: Any, directory: Any) -> None:
    """Note the directory of a checkpoint, and write the file that identifies this session."""
    try:
        if directory is None or loop.saved_to is not None:
            return
        loop.saved_to = os.fspath(directory)
        if trainer.args.should_save:
            store_origin(directory)
    except Exception as error:
        record_error(NAME, error)
