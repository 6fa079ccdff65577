"""The phases of eager TensorFlow in one thread. docs/keras.md defines the rules."""

from __future__ import annotations

import threading
from typing import Any

from ...session.errors import record_error
from ...tracing.phase import Phase
from ...tracing.state import state
from ..open_phase import close_phase, drop_phase, open_phase
from .passes import DatasetPasses

NAME = "tensorflow"
LOAD, FORWARD, BACKWARD, OPTIMIZER, FUNCTION = 1, 2, 4, 8, 16
_NAMES = {
    LOAD: "data_load",
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer_step",
    FUNCTION: "forward",
}
_INSIDE = {
    LOAD: LOAD | FUNCTION | OPTIMIZER,
    FORWARD: LOAD | FORWARD | BACKWARD | OPTIMIZER | FUNCTION,
    BACKWARD: LOAD | BACKWARD | OPTIMIZER | FUNCTION,
    OPTIMIZER: LOAD | OPTIMIZER | FUNCTION,
    FUNCTION: LOAD | FORWARD | BACKWARD | OPTIMIZER | FUNCTION,
}
"""The kinds of phases in which one of a given kind is not recorded."""
_FOREIGN = frozenset({"_DummyThread", "_MirroredReplicaThread"})
"""The classes of threads that the program did not start."""


def _is_program_thread() -> bool:
    """Return whether the program started this thread.

    TensorFlow calls Python functions of a dataset in threads of its own, and those of a
    MirroredStrategy in a thread for each replica. Python gives a thread that it did not start a
    `_DummyThread` as soon as that thread is asked for, for example by a call of `logging`.
    """
    found = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return found is not None and type(found).__name__ not in _FOREIGN


class _Thread(threading.local):
    """The open phases of a thread."""

    def __init__(self) -> None:
        self.inside = 0
        """The kinds of the open phases, as bits."""
        self.tape: Any = None
        """The tape whose block is the open `forward`, with that phase."""
        self.passes = DatasetPasses()
        self.is_recorded = _is_program_thread()


thread = _Thread()


def reset() -> None:
    """Forget the state of the calling thread, the only one of a forked child."""
    thread.__init__()  # type: ignore[misc]


def begin(kind: int, attrs: dict[str, Any] | None = None) -> Phase | None:
    """Open a phase of a kind; return None if it is part of another. Raises nothing."""
    try:
        if not state.recording or thread.inside & _INSIDE[kind] or not thread.is_recorded:
            return None
        if kind == OPTIMIZER:
            thread.passes.stepping()
        phase = open_phase(NAME, _NAMES[kind], attrs)
        if phase is not None:
            phase._before = thread.inside
            thread.inside |= kind
        return phase
    except Exception as error:
        record_error(NAME, error)
        return None


def end(phase: Phase | None, error: BaseException | None = None) -> None:
    """Close a phase that `begin` opened. Raises nothing."""
    if phase is not None:
        thread.inside = phase._before
        close_phase(NAME, phase, error)


def drop(phase: Phase | None) -> None:
    """Discard a phase that `begin` opened. Raises nothing."""
    if phase is not None:
        thread.inside = phase._before
        drop_phase(NAME, phase)
