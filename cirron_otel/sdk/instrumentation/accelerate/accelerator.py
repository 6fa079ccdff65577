"""Record `prepare` and the checkpoints of an Accelerator, and pass on its gradient accumulation.

Epochs and steps are inferred by torch's hooks. docs/accelerate.md defines the rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...session.errors import record_error
from ...tracing.scope import Scope
from ..base import Part
from ..checkpoint_origin import (
    LOAD,
    PATH,
    SAVE,
    checkpoint_attributes,
    link_origin,
    store_origin,
)
from ..patches import Patches
from ..recording import is_recording
from ..step_engine import current_engine
from ..training_loop import current_loop

NAME = "accelerate"
_NUMBER = re.compile(r"[0-9]+(?=[^/]*$)")
"""The number in a checkpoint's name, as Accelerate finds it."""


def parts_of(module: Any, patches: Patches) -> list[Part]:
    """Return the parts of the hooks into `module`, which is `accelerate.accelerator`."""
    owner = module.Accelerator
    arounds = {
        "prepare": _prepare,
        "save_state": _save_state,
        "load_state": _load_state,
        "save_model": _save_model,
        "_do_sync": _accumulate,
    }

    def part(name: str) -> Callable[[], None]:
        return lambda: patches.wrap(owner, name, arounds[name])

    return [(name.lstrip("_"), part(name)) for name in arounds]


def _scope(name: str, attrs: dict[str, Any]) -> Scope | None:
    """Return a scope that is not open yet; None if it must not be recorded.

    It is not recorded if there is no session, or if another framework owns the training loop.
    """
    try:
        if current_loop() is not None or not is_recording():
            return None
        return Scope(name, **attrs)
    except Exception as error:
        record_error(NAME, error)
        return None


def _prepare(original: Any, accelerator: Any, args: Any, kwargs: Any) -> Any:
    scope = _scope("prepare", {"objects": len(args)})
    if scope is None:
        return original(accelerator, *args, **kwargs)
    with scope:
        return original(accelerator, *args, **kwargs)


def _save_state(original: Any, accelerator: Any, args: Any, kwargs: Any) -> Any:
    scope = _scope("checkpoint", checkpoint_attributes(SAVE, _argument(args, kwargs, "output_dir")))
    if scope is None:
        return original(accelerator, *args, **kwargs)
    with scope:
        directory = original(accelerator, *args, **kwargs)
        _saved(scope, accelerator, directory)
        return directory


def _saved(scope: Scope, accelerator: Any, directory: Any) -> None:
    """Store the session beside a checkpoint. Accelerate may have chosen the directory."""
    try:
        if isinstance(directory, (str, os.PathLike)):
            scope.set_attribute(PATH, os.fspath(directory))
            if accelerator.is_main_process:
                store_origin(directory)
    except Exception as error:
        record_error(NAME, error)


def _load_state(original: Any, accelerator: Any, args: Any, kwargs: Any) -> Any:
    directory = _argument(args, kwargs, "input_dir")
    scope = _scope("checkpoint", checkpoint_attributes(LOAD, directory))
    if scope is None:
        return original(accelerator, *args, **kwargs)
    with scope:
        result = original(accelerator, *args, **kwargs)
        _loaded(scope, accelerator, directory)
        return result


def _loaded(scope: Scope, accelerator: Any, directory: Any) -> None:
    """Link the session to the one that wrote the checkpoint."""
    try:
        if directory is None:
            directory = _latest(accelerator)
            scope.set_attribute(PATH, os.fspath(directory))
        link_origin(os.path.expanduser(directory))  # noqa: PTH111 - as Accelerate does
    except Exception as error:
        record_error(NAME, error)


def _latest(accelerator: Any) -> Path:
    """Return the directory that `load_state` loads without an argument."""
    directories = (Path(accelerator.project_dir) / "checkpoints").iterdir()
    return max(directories, key=lambda each: int(_NUMBER.findall(each.name)[0]))


def _save_model(original: Any, accelerator: Any, args: Any, kwargs: Any) -> Any:
    directory = args[1] if len(args) > 1 else kwargs.get("save_directory")
    scope = _scope("checkpoint", checkpoint_attributes(SAVE, directory))
    if scope is None:
        return original(accelerator, *args, **kwargs)
    with scope:
        return original(accelerator, *args, **kwargs)


def _accumulate(original: Any, accelerator: Any, args: Any, kwargs: Any) -> Any:
    """Decide, at the beginning of `accumulate`, whether the next batch belongs to the open step."""
    result = original(accelerator, *args, **kwargs)
    try:
        engine = current_engine()
        if engine is not None and current_loop() is None:
            gradients = accelerator.gradient_state
            engine.accumulates(
                not gradients.sync_gradients, crosses=not gradients.sync_with_dataloader
            )
    except Exception as error:
        record_error(NAME, error)
    return result


def _argument(args: Any, kwargs: Any, name: str) -> Any:
    """Return the first argument of a method, by position or by name."""
    return args[0] if args else kwargs.get(name)
