"""Change the classification of a pass: epoch, evaluation, or a pass without a use.

docs/torch.md, "Passes", defines the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...tracing.state import CONTEXT
from ..iteration import opened_manually
from .kinds import BACKWARD, EPOCHS, LOAD, NAMES, UNUSED
from .one_pass import Pass

if TYPE_CHECKING:
    from ...tracing.phase import Phase
    from .open_step import OpenPasses, OpenStep
    from .steps import Steps


class Reclassifier:
    """Changes the kind of one thread's passes."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps

    def turn_into_training(self, evaluation: Pass) -> None:
        """Turn an evaluation into an epoch, and its phases so far into the first step."""
        tracker, passes = self._tracker, self._passes
        passes.evaluation = None
        held, evaluation.held = evaluation.held, []
        training = passes.training
        if training is not None or evaluation.scope is None or evaluation.is_decided:
            # The pass remains an evaluation, because parts of it may already be sealed.
            for phase in held:
                tracker.settle(phase)
            evaluation.is_firm = evaluation.is_decided = True
            passes.evaluation = evaluation
            return
        scope = evaluation.scope
        passes.numbers.evaluations -= 1
        evaluation.is_training = evaluation.is_decided = True
        if not opened_manually(scope._above, EPOCHS):
            scope._name, scope._index = "epoch", passes.numbers.epochs
            passes.numbers.epochs += 1
        passes.training = evaluation
        self._steps.open(evaluation, evaluation.inner_context, scope)
        iteration = tracker.iteration
        if iteration is None:
            return
        batches = _batches(held)
        for phase in held:
            iteration.step._start = min(iteration.step._start, phase._start)
            if len(batches) == 1:
                phase.move(iteration.step)
                iteration.add(phase)
            elif phase._stamps is not None:
                iteration.stamp(phase._stamps)
        if len(batches) > 1:
            iteration.split(self._steps.micro_of, batches)
        iteration.was_backward = evaluation.was_backward

    def is_trained(self, loader_pass: Pass) -> bool:
        """Return whether an optimizer has stepped, or weights have changed, in a pass so far."""
        tracker = self._tracker
        version = loader_pass.version
        return tracker.stepped != loader_pass.stepped or (
            version is not None and version != tracker.gradients.version()
        )

    def turn_into_unused(self, loader_pass: Pass) -> None:
        """Decide at the end of a pass that it is neither an epoch nor an evaluation.

        None of its batches was used: it computed statistics of the data, or put them elsewhere.
        """
        scope = loader_pass.scope
        if scope is None or loader_pass.is_manual:
            return
        if loader_pass.is_training:
            self._passes.numbers.epochs -= 1
        else:
            self._passes.numbers.evaluations -= 1
        loader_pass.is_training = False
        scope._name, scope._index = UNUSED, None

    def decide_training(self, training: Pass) -> None:
        """Decide at the end of the first batch whether a training pass is really an evaluation.

        It is one if models were called, but no model in training mode with gradients on.
        """
        training.is_decided = True
        if not training.was_forward or training.was_trainable or training.scope is None:
            return
        tracker, passes = self._tracker, self._passes
        iteration = tracker.iteration
        if training.was_backward and self.is_trained(training):
            return
        tracker.closed()
        passes.training = None
        passes.numbers.epochs -= 1
        training.scope._name, training.scope._index = "eval", passes.numbers.evaluations
        passes.numbers.evaluations += 1
        training.is_training, training.unused = False, None
        training.is_decided = training.is_firm = not training.was_backward
        training.steps = 0
        if iteration is not None:
            training.reached = max([phase._until for phase in iteration.children], default=0)
            if training.was_backward:
                for phase in iteration.cut(0):
                    phase.move(training.scope)
                    training.held.append(phase)
            iteration.dissolve(training.scope)
        passes.evaluation = training
        CONTEXT.set(training.inner_context)


def _batches(phases: list[Phase]) -> list[list[Phase]]:
    """Group phases by batches: a fetch after a backward begins one."""
    batches: list[list[Phase]] = [[]]
    was_backward = False
    for phase in phases:
        if was_backward and phase._name == NAMES[LOAD]:
            batches.append([])
            was_backward = False
        was_backward = was_backward or phase._name == NAMES[BACKWARD]
        batches[-1].append(phase)
    return batches
