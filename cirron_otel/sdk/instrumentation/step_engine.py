"""The interface between the loops of frameworks and torch's hooks, which record the phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..tracing.phase import Phase
from .iteration import Iteration


class StepEngine(Protocol):
    """The interface of torch's hooks (`torch.tracker.Tracker`) that a loop uses in its thread."""

    loop: Any
    """The TrainingLoop that determines the steps of this thread, or None."""
    is_plain: bool
    context: Any
    inside: int
    """The kinds of the open phases; 0 if none is open."""

    def loop_begins(self, loop: Any) -> None:
        """End the passes and steps that were inferred, and leave steps to `loop`."""

    def loop_ends(self) -> None:
        """Infer passes and steps again."""

    def turn_over(self) -> bool:
        """Close the open step and open the next; return False if a decision is needed."""

    def opened(self, iteration: Iteration, context: Any) -> None:
        """Attach subsequent phases to a new step, which is current in `context`."""

    def into(self, micro: Any) -> None:
        """Attach subsequent phases to a micro step, or to the step if it is None."""

    def closed(self) -> None:
        """Attach phases to no step."""

    def settle(self, phase: Phase) -> None:
        """Finish a phase as soon as its time on the device is known."""

    def next_number(self, name: str) -> int:
        """Return the number of the next epoch or evaluation of this thread."""

    def step_ended(self) -> None:
        """Poll the device at the end of a step."""

    def is_detailed(self) -> bool | None:
        """Return whether the next step's inside is recorded; None if every step's is."""

    def accumulates(self, is_accumulating: bool, *, crosses: bool) -> None:
        """Record whether the open step's gradients wait for another batch.

        With `crosses`, that batch may belong to the next pass over the loader.
        """

    def begin_inference(self, arguments: Any) -> int:
        """Begin a call that uses a batch with any number of forwards, which have no scopes.

        The forwards have no gradients. Returns the state that `end_inference` restores.
        """

    def end_inference(self, before: int) -> None:
        """End a call that `begin_inference` began."""

    @property
    def memory(self) -> Any:
        """Reads the device's memory at the end of a step; None if it is not recorded."""


_engines: list[Callable[[], StepEngine]] = []
"""The function that returns the calling thread's engine; empty if torch is not hooked."""
_close_phases: list[Callable[[Any], None]] = []
"""The function that closes the phases which an exception has left open in an engine."""


def use_engine(engine: Callable[[], StepEngine], close_phases: Callable[[Any], None]) -> None:
    """Attach the phases of torch to the steps of loops; `engine` returns a thread's tracker.

    `close_phases` closes the phases of a tracker that an exception has left open.
    """
    _engines[:] = [engine]
    _close_phases[:] = [close_phases]


def forget_engine(engine: Callable[[], StepEngine]) -> None:
    """Undo `use_engine`."""
    if engine in _engines:
        _engines.clear()
        _close_phases.clear()


def current_engine() -> StepEngine | None:
    """Return the engine of this thread; None if torch is not hooked."""
    return _engines[0]() if _engines else None


def close_phases(engine: StepEngine) -> None:
    """Close the phases that an exception has left open in an engine."""
    for close in _close_phases:
        close(engine)
