"""The end of a pass in the middle of an accumulation: the last step waits for what follows.

An optimizer's step behind the loop is its own. So are the first batches of the next pass, where a
generator reads the loader again and again. docs/torch.md, "Steps", has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...sdk.phase import Phase, Step, make_current
from ...sdk.state import CONTEXT
from .iteration import Iteration
from .one_pass import Pass, carried, reader

if TYPE_CHECKING:
    from .open_passes import OpenPasses
    from .open_step import OpenStep
    from .steps import Steps


class Tail:
    """A training pass that is over while gradients wait for an optimizer's step."""

    __slots__ = ("at", "iteration", "own", "reader")

    def __init__(self, own: Pass, iteration: Iteration, at: int) -> None:
        self.own, self.iteration, self.at = own, iteration, at
        self.reader = reader() if at else None
        """What found the pass exhausted: it may read the loader again."""


class Tails:
    """Decides about the tails of one thread's passes."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self.tail: Tail | None = None

    # --- behind the pass ------------------------------------------------------------------------

    def step(self, optimizer: Any) -> Step | None:
        """The step of a pass that is over, if `optimizer` steps in it."""
        if self.tail is None:
            return None
        iteration = self.tail.iteration
        iteration.stepped(optimizer)
        return iteration.step

    def takes(self, phase: Phase) -> bool:
        """Whether a phase that is over lies in the step of a pass that was over before."""
        if self.tail is None or phase._above is not self.tail.iteration.step:
            return False
        self.tail.iteration.add(phase)
        return True

    def settle(self) -> None:
        """The next phase belongs to no pass before."""
        tail, self.tail = self.tail, None
        if tail is None:
            return
        own, iteration = tail.own, tail.iteration
        iteration.close(self._steps.micro_of)
        own.reached = max(own.reached, iteration.step._until)
        if self._tracker.shared.attends:
            self._tracker.shared.step_over()
        own.close(tail.at, self._tracker.shared.epoch_ended)

    # --- across the end -------------------------------------------------------------------------

    def fetch(self, iterator: Any) -> None:
        """A batch is fetched: the next of the last step, or one of another pass."""
        tail = self.tail
        if tail is None:
            return
        shared = self._tracker.shared
        iteration = tail.iteration
        if (
            tail.reader is None
            or tail.reader is not reader()
            or not iteration.accumulates
            or tail.own.scope is None
            or not shared.is_grad_enabled()
            or shared.is_evaluating()
            or self._steps.is_changed(tail.own)
        ):
            self.settle()
            return
        self.tail, own = None, tail.own
        own.adopt(iterator, self._passes.gone())
        own.is_crossing, own.is_simple, own.pending, own.over = True, False, None, 0
        self._passes.training = own
        within = carried(CONTEXT.get(), own.within)
        self._tracker.opened(iteration, make_current(iteration.step, within))

    def is_crossed(self, own: Pass, iteration: Iteration | None) -> bool:
        """Whether the step that crossed the end of its epoch is over at this fetch.

        Then its epoch is over, too, and the next begins.
        """
        iterator = own.iterator()
        if iterator is None or (iteration is not None and iteration.accumulates):
            return False
        own.is_crossing = False
        self._passes.begin_training(iterator)
        return True
