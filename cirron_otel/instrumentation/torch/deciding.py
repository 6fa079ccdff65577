"""Changes of the decision what a pass is: an epoch becomes an evaluation, or the reverse.

docs/torch.md, "Passes", has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...sdk.state import CONTEXT
from .kinds import EPOCHS
from .one_pass import Pass, by_hand

if TYPE_CHECKING:
    from .open_passes import OpenPasses
    from .open_step import OpenStep
    from .steps import Steps


class Reclassifier:
    """Changes the kind of one thread's passes."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps

    def turn_into_training(self, others: Pass) -> None:
        """Make an epoch of an evaluation; what happens now is in its first step."""
        tracker, passes = self._tracker, self._passes
        passes.evaluation = None
        held, others.held = others.held, []
        own = passes.training
        if own is not None or others.scope is None or others.is_decided:
            # It remains an evaluation: parts of it may be sealed.
            for phase in held:
                tracker.settle(phase)
            others.is_firm = others.is_decided = True
            passes.evaluation = others
            return
        scope = others.scope
        passes.numbers.evaluations -= 1
        others.is_training = others.is_decided = True
        if tracker.shared.owns_epoch and not by_hand(scope._above, EPOCHS):
            scope._name, scope._index = "epoch", passes.numbers.epochs
            passes.numbers.epochs += 1
        passes.training = others
        self._steps.open(others, others.within, scope)
        iteration = tracker.iteration
        if iteration is None:
            return
        for phase in held:
            iteration.step._start = min(iteration.step._start, phase._start)
            phase.move(iteration.step)
            iteration.add(phase)

    def decide_training(self, own: Pass) -> None:
        """Decide about a training pass when its first batch is over and nothing was trained."""
        own.is_decided = True
        if not own.was_forward or own.was_trainable or own.scope is None:
            return
        tracker, passes = self._tracker, self._passes
        iteration = tracker.iteration
        tracker.closed()
        passes.training = None
        passes.numbers.epochs -= 1
        own.scope._name, own.scope._index = "eval", passes.numbers.evaluations
        passes.numbers.evaluations += 1
        if iteration is not None:
            own.reached = max([phase._until for phase in iteration.kids], default=0)
            iteration.dissolve(own.scope)
        own.is_training, own.pending = False, None
        own.is_firm = True
        passes.evaluation = own
        CONTEXT.set(own.within)
