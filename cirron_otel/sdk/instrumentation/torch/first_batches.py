"""The first batch of a pass, if another iterator is fetched from or an evaluation begins.

The batch may belong to the pass, or the program only inspected it. docs/torch.md, "Passes", defines
the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .one_pass import FirstBatch, OtherFetches, Pass

if TYPE_CHECKING:
    from .open_step import OpenPasses, OpenStep
    from .steps import Steps


class FirstBatches:
    """Keeps or discards the first batches of one thread's passes."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self._suspended: list[tuple[Any, Any]] = []
        """Pairs of weak references: to an iterator whose pass was suspended, and to the data of the
        iterator that took over."""
        self.aside: Any = None
        """A weak reference to an iterator whose only batch so far was fetched before an evaluation
        and not used."""

    def suspend_first(self, training: Pass, iteration: Any, other: OtherFetches) -> None:
        """Close the first step while it is undecided whether the first batch is part of it."""
        training.first_batch = FirstBatch(iteration, other.at or 0)
        self.turn_to(training, other)
        training.reached = max(training.reached, iteration.until)
        if iteration.memory is not None:
            iteration.memory.end(iteration.step)
            iteration.memory = None
        self._tracker.closed()
        self._tracker.torch_state.step_ended()

    def keep(self, training: Pass) -> None:
        """Give the pass to the other iterator: the pass's first batch was only inspected."""
        first_batch, training.first_batch = training.first_batch, None
        scope = training.scope
        if first_batch is None or scope is None:
            return
        iteration = first_batch.iteration
        children = iteration.cut(first_batch.count)
        for phase in iteration.children:
            phase.move(scope._above)
            self._tracker.settle(phase)
        iteration.children = children
        iteration.step._start = scope._start = children[0]._start
        self._close(training, first_batch)
        driver = training.driver()
        if driver is not None:
            training.adopt(driver, self._passes.iterator_gone())
        else:
            training.iterator = training.driver

    def _close(self, training: Pass, first_batch: FirstBatch) -> None:
        iteration = first_batch.iteration
        iteration.close(self._steps.micro_of)
        training.reached = max(training.reached, iteration.step._until)

    def end_first_batch(self, training: Pass) -> None:
        """End the pass: the loop has ended, and the first batch was not part of it."""
        over = training.first_batch.over if training.first_batch is not None else 0
        self.keep(training)
        self._passes.end_training(over)

    def discard_single_batch(self, training: Pass) -> None:
        """Discard a pass of a single untrained batch, because another pass begins."""
        tracker, passes = self._tracker, self._passes
        iteration = tracker.iteration
        tracker.closed()
        passes.training = None
        if iteration is not None:
            iteration.dissolve(iteration.step._above)
        training.undo()
        passes.uncount_epoch(training)

    def set_aside(self, training: Pass) -> None:
        """Set the first batch of a pass aside, because an evaluation begins after its fetch."""
        reference = None if training.was_forward else training.iterator
        self.discard_single_batch(training)
        self.aside = reference

    def resume_batch_set_aside(self) -> None:
        """Begin the pass with the batch set aside: a model is trained after the evaluation."""
        iterator, self.aside = self.aside(), None
        if iterator is None:
            return
        self._passes.begin_training(iterator)
        training = self._passes.training
        if training is not None:
            training.unused = None

    def turn_to(self, training: Pass, other: OtherFetches) -> None:
        """Let the other iterator's fetches begin the steps of a pass."""
        training.driver, training.other, training.is_simple = other.iterator, None, False
        training.remember(other.iterator)
        training.drivers = [*filter(_is_alive, training.drivers), other.iterator]


def _is_alive(reference: Any) -> bool:
    return reference() is not None
