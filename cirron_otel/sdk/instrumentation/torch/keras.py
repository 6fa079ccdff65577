"""Record `optimizer_step` for Keras on torch, which has its own optimizers."""

from __future__ import annotations

import functools
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ...tracing.state import state
from ..patches import Patches
from .kinds import LOAD, OPTIMIZER
from .optimizers import open_step
from .tracker import Tracker
from .trackers import Trackers

MODULE = "keras.src.optimizers.base_optimizer"


class KerasOptimizers:
    """Replaces `apply`, through which every Keras optimizer changes the weights."""

    def __init__(self, trackers: Trackers) -> None:
        self._trackers = trackers

    def install(self, patches: Patches, module: Any) -> None:
        """Hook `module`, which is `MODULE`, unless Keras uses another backend.

        Raises AttributeError if this Keras lacks the method.
        """
        if module.backend.backend() != "torch":
            return
        trackers, original = self._trackers, module.BaseOptimizer.apply

        @functools.wraps(original)
        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                tracker = trackers.t
                phase = begin(tracker, self) if state.recording else None
                if phase is None:
                    return original(self, *args, **kwargs)
                try:
                    result = original(self, *args, **kwargs)
                except BaseException as error:
                    end(tracker, phase, error)
                    raise
                end(tracker, phase)
                return result
            except BaseException as error:
                strip(error)
                raise

        patches.replace(module.BaseOptimizer, "apply", apply)


def begin(tracker: Tracker, optimizer: Any) -> Any:
    """Open an `optimizer_step`; return None inside another optimizer's step. Raises nothing."""
    try:
        if tracker.inside & (LOAD | OPTIMIZER):
            return None
        tracker.stepped += 1
        return open_step(tracker, optimizer)
    except Exception as error:
        record_error("torch", error)
        return None


def end(tracker: Tracker, phase: Any, error: BaseException | None = None) -> None:
    """Close an `optimizer_step`. Raises nothing."""
    try:
        tracker.was_forward = tracker.iteration is not None
        tracker.exit(phase, OPTIMIZER, error)
    except Exception as failure:
        record_error("torch", failure)
