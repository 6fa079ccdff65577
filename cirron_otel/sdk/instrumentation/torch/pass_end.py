"""The end of a pass during gradient accumulation, when the last step stays open for a while.

An optimizer step after the loop belongs to this last step. So do the first batches of the next pass
if a generator reads the loader repeatedly. docs/torch.md, "Steps", defines the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...tracing.phase import Phase, Step, make_current
from ...tracing.state import CONTEXT
from ..iteration import Iteration, carry_over
from .one_pass import Pass, reading_frame

if TYPE_CHECKING:
    from .open_step import OpenPasses, OpenStep
    from .steps import Steps


class UnfinishedPass:
    """A training pass that has ended while gradients wait for an optimizer step."""

    __slots__ = ("at", "iteration", "reading_frame", "training")

    def __init__(self, training: Pass, iteration: Iteration, at: int) -> None:
        self.training, self.iteration, self.at = training, iteration, at
        self.reading_frame = reading_frame() if at else None
        """The frame that exhausted the iterator, which may read the loader again."""

    def is_read_by(self, frame: Any) -> bool:
        """Return whether the frame that exhausted the iterator reads the loader again."""
        return self.reading_frame is not None and self.reading_frame is frame


class PassEnds:
    """Decides when the unfinished passes of one thread are closed."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self.unfinished: UnfinishedPass | None = None

    # --- after the pass -------------------------------------------------------------------------

    def step(self, optimizer: Any) -> Step | None:
        """Return the last step of the unfinished pass, to which the optimizer step belongs.

        Returns None if no pass is unfinished.
        """
        if self.unfinished is None:
            return None
        iteration = self.unfinished.iteration
        iteration.stepped(optimizer)
        return iteration.step

    def takes(self, phase: Phase) -> bool:
        """Add an ended phase if it belongs to the unfinished pass; return whether it does."""
        if self.unfinished is None or phase._above is not self.unfinished.iteration.step:
            return False
        self.unfinished.iteration.add(phase)
        return True

    def settle(self) -> None:
        """Close the unfinished pass, because the next phase does not belong to it."""
        unfinished, self.unfinished = self.unfinished, None
        if unfinished is None:
            return
        training, iteration = unfinished.training, unfinished.iteration
        iteration.close(self._steps.micro_of)
        training.reached = max(training.reached, iteration.step._until)
        self._tracker.torch_state.step_ended()
        training.close(unfinished.at, self._tracker.torch_state.epoch_ended)

    # --- across the end -------------------------------------------------------------------------

    def fetch(self, iterator: Any) -> None:
        """Decide whether a fetch continues the last step, or begins another pass."""
        unfinished = self.unfinished
        if unfinished is None:
            return
        torch_state = self._tracker.torch_state
        iteration = unfinished.iteration
        is_announced = self._tracker.crosses and self._tracker.accumulating is iteration.step
        if (
            not (is_announced or unfinished.is_read_by(reading_frame()))
            or not iteration.accumulates
            or unfinished.training.scope is None
            or not torch_state.is_grad_enabled()
            or torch_state.is_evaluating()
            or self._steps.is_changed(unfinished.training)
        ):
            self.settle()
            return
        self.unfinished, training = None, unfinished.training
        training.adopt(iterator, self._passes.iterator_gone())
        training.is_crossing, training.is_simple, training.unused, training.over = (
            True,
            False,
            None,
            0,
        )
        self._passes.training = training
        inner_context = carry_over(CONTEXT.get(), training.inner_context)
        self._tracker.opened(iteration, make_current(iteration.step, inner_context))

    def is_crossed(self, training: Pass, iteration: Iteration | None) -> bool:
        """Return whether the step that crossed the end of its epoch ends at this fetch.

        In that case its epoch also ends, and the next epoch begins.
        """
        iterator = training.iterator()
        if iterator is None or (iteration is not None and iteration.accumulates):
            return False
        training.is_crossing = False
        self._passes.begin_training(iterator)
        return True
