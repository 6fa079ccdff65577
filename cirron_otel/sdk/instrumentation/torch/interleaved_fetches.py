"""Fetches of another iterator while a training pass is open.

The other iterator may be read alongside the pass or inside it, it may be evaluated, or it may begin
to drive the steps. docs/torch.md, "Passes", defines the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...tracing.phase import Phase
from ...tracing.state import CONTEXT
from ..iteration import carry_over
from .first_batches import FirstBatches
from .one_pass import (
    OtherFetches,
    Pass,
    data_of,
    is_at_start,
    reading_frame,
    reference_to,
)

if TYPE_CHECKING:
    from ..iteration import Iteration

_MOST_SUSPENDED = 8


class InterleavedFetches(FirstBatches):
    """Decides how fetches of other iterators are recorded during one thread's training passes."""

    # --- a pass begins or goes on ---------------------------------------------------------------

    def began(self, training: Pass, iterator: Any) -> None:
        """Handle the beginning of a training pass, which may have been suspended earlier."""
        self.aside = None
        training.yields = reading_frame() is not None
        training.known_data = [data for each, data in self._suspended if each() is iterator]
        self._suspended = [pair for pair in self._suspended if pair[0]() not in (None, iterator)]

    def goes_on(self, training: Pass) -> None:
        """Handle a fetch of the iterator that drives the steps.

        Another iterator that was fetched before is now known to be read inside the pass.
        """
        other = training.other
        if other is None:
            return
        training.remember(other.iterator)
        if self._takes_turn(training, other):
            return
        self.settle(training)
        iteration = self._tracker.iteration
        if iteration is not None and iteration.is_waiting:
            iteration.go_on()

    def _takes_turn(self, training: Pass, other: OtherFetches) -> bool:
        """Give the other iterator's batch a step if its optimizer had already stepped in the step.

        From then on, each of its fetches after an optimizer step begins a step.
        """
        iteration = self._tracker.iteration
        if (
            iteration is None
            or other.at is None
            or other.is_between
            or not other.had_stepped
            or iteration.step._collected is not None
            or other.optimizers.isdisjoint(iteration.optimizers[other.optimizer_count :])
        ):
            return False
        training.turns.append(other.iterator)
        training.other = None
        self._split_step(training, iteration.cut(other.at))
        return True

    def returns(self, training: Pass) -> None:
        """Handle a fetch of the pass's own iterator while another iterator drives the steps."""
        first_batch, training.first_batch = training.first_batch, None
        if first_batch is not None:
            self._close(training, first_batch)

    def is_left(self, training: Pass, iterator: Any) -> bool:
        """Return whether a fetch of `iterator` shows that the first batch was outside the loop."""
        if training.first_batch is None or training.iterator() is iterator:
            return False
        driver = training.driver()
        return (
            bool(training.first_batch.over)
            or driver is None
            or (driver is iterator and is_at_start(iterator))
        )

    # --- another iterator -----------------------------------------------------------------------

    def fetch(self, training: Pass, iterator: Any, context: Any, current: Any) -> None:
        """Decide how to record a fetch of another iterator while `training` is open."""
        other, iteration = training.other, self._tracker.iteration
        if other is not None and other.iterator() is not iterator:
            self._takes_turn(training, other)
            other, iteration = training.other, self._tracker.iteration
        is_turn = any(each() is iterator for each in training.turns)
        if is_turn and iteration is not None and iteration.was_stepped:
            self.settle(training)
            self._passes.boundary(training, context, current)
        elif other is None or other.iterator() is not iterator:
            self._begin_other(training, iterator, context, current)
        elif iteration is None:
            pass
        elif self._has_stepped(training, other):
            self._take_over(training, iterator, other, context, current)

    def _begin_other(self, training: Pass, iterator: Any, context: Any, current: Any) -> None:
        tracker = self._tracker
        iteration = tracker.iteration
        if training.restarted is not None and self._is_loop_again(training, iterator):
            return
        training.is_simple = False
        is_known = training.knows(iterator)
        training.other = other = OtherFetches(iterator, tracker.stepped)
        if (
            iteration is None
            and training.is_decided
            and not is_known
            and training.driver is training.iterator
        ):
            self._open_between(training, other, context, current)
            iteration = tracker.iteration
        if iteration is None:
            return
        other.had_stepped = iteration.was_stepped or other.is_between
        if is_known and not training.was_driven_by(iterator):
            return
        if iteration.micros or training.scope is None or iteration.step._folded is not None:
            return
        other.at = len(iteration.children)
        other.optimizer_count = len(iteration.optimizers)
        last = tracker.last_optimizer if iteration.was_stepped else None
        other.optimizers = {*iteration.optimizers, last}
        iteration.wait()
        tracker.is_plain = False

    def _open_between(
        self, training: Pass, other: OtherFetches, context: Any, current: Any
    ) -> None:
        """Open a provisional step if there is none, for example after an evaluation."""
        self._steps.open(training, *self._steps.place_of_next(training, context, current))
        other.is_between = self._tracker.iteration is not None

    def settle(self, training: Pass) -> None:
        """Drop the provisional step unless something was trained in it."""
        other, training.other = training.other, None
        iteration = self._tracker.iteration
        if other is None or not other.is_between or iteration is None:
            return
        if not (iteration.was_stepped or iteration.was_backward):
            self._give_up(training, iteration)

    def _give_up(self, training: Pass, iteration: Any) -> None:
        self._tracker.closed()
        training.reached = max([training.reached, *[phase._until for phase in iteration.children]])
        iteration.dissolve(iteration.step._above)
        training.steps -= 1
        CONTEXT.set(carry_over(CONTEXT.get(), training.inner_context))

    def _has_stepped(self, training: Pass, other: OtherFetches) -> bool:
        """Return whether the other iterator's batch was trained on."""
        iteration: Any = self._tracker.iteration
        if not iteration.was_stepped:
            if not (iteration.was_backward and self._steps.is_changed(training)):
                return False
            iteration.stepped(None)
            return True
        return not other.had_stepped or self._tracker.stepped > other.stepped

    def _take_over(
        self, training: Pass, iterator: Any, other: OtherFetches, context: Any, current: Any
    ) -> None:
        """Let the other iterator drive the steps, from its first fetch on."""
        passes, tracker = self._passes, self._tracker
        iteration: Any = tracker.iteration
        is_divisible = other.at is not None and iteration.step._collected is None
        is_turned = training.first_batch is None and training.driver is not training.iterator
        if training.first_batch is not None:
            self.keep(training)
        if is_divisible and training.fetches == 1 and not is_turned and not other.had_stepped:
            self.suspend_first(training, iteration, other)
            if training.is_same_loader(iterator):
                self.keep(training)
            self._steps.open(training, training.inner_context, training.scope)
        elif (
            is_divisible
            and other.had_stepped
            and not is_turned
            and self._is_new(training, iterator)
        ):
            self._begin_anew(training, iterator, other)
        else:
            if is_divisible and other.had_stepped:
                self._split_step(training, iteration.cut(other.at))
            self.turn_to(training, other)
            passes.boundary(training, context, current)

    def _split_step(self, training: Pass, children: list[Phase]) -> None:
        """Move phases of the open step (`children`) into the next step of the same epoch."""
        iteration = self._tracker.iteration
        if iteration is not None and not iteration.children:
            self._give_up(training, iteration)
        self._steps.begin_with(training, children)

    def _is_new(self, training: Pass, iterator: Any) -> bool:
        """Return whether neither the iterator nor its data was trained on within this pass."""
        data = data_of(iterator)
        return not (training.knows(iterator) or any(each() is data for each in training.known_data))

    # --- another pass ---------------------------------------------------------------------------

    def _begin_anew(self, training: Pass, iterator: Any, other: OtherFetches) -> None:
        """Suspend the training pass, and begin a pass for the other iterator."""
        passes, tracker = self._passes, self._tracker
        iteration: Any = tracker.iteration
        children = iteration.cut(other.at)
        if not iteration.children:
            self._give_up(training, iteration)
        training.other = None
        self._suspended = [
            *self._suspended[-_MOST_SUSPENDED:],
            (training.iterator, reference_to(data_of(iterator))),
        ]
        inner = training.iterator
        passes.end_training()
        passes.begin_training(iterator)
        next_pass = passes.training
        if next_pass is None:
            return
        next_pass.unused = None
        next_pass.remember(inner)
        next_pass.drivers = [inner]
        if next_pass.scope is not None:
            next_pass.scope._start = children[0]._start
        self._steps.fill(children)
        next_pass.fetches, next_pass.is_decided = 2, True
        self._steps.close(next_pass)
        self._steps.open(next_pass, next_pass.inner_context, next_pass.scope)

    def _is_loop_again(self, training: Pass, iterator: Any) -> bool:
        """Return whether the inner loader, which restarts, is the program's loop.

        In that case a generator reads the outer loader: end the outer pass, and begin a pass for
        the inner loader.
        """
        data, training.restarted = training.restarted, None
        iteration = self._tracker.iteration
        if (
            data() is not data_of(iterator)
            or not training.yields
            or reading_frame() is not None
            or iteration is None
            or not iteration.is_held
            or iteration.called
            or training.scope is None
        ):
            return False
        children = iteration.cut(0)
        inner = training.iterator
        self._tracker.closed()
        iteration.dissolve(training.scope)
        self._passes.end_training()
        self._passes.begin_training(iterator)
        next_pass = self._passes.training
        if next_pass is not None:
            next_pass.remember(inner)
            if children and next_pass.scope is not None:
                next_pass.scope._start = children[0]._start
                self._steps.fill(children)
        return True

    def evaluates(self, training: Pass, iterator: Any) -> bool:
        """Return whether another iterator's batch was evaluated.

        If so, turn its fetches into an evaluation.
        """
        other, tracker = training.other, self._tracker
        if other is None or other.at is None or other.iterator() is not iterator:
            return False
        if not other.is_evaluated or tracker.stepped != other.stepped or tracker.iteration is None:
            return False
        self._evaluate(training, iterator, tracker.iteration, other.at)
        return True

    def _evaluate(self, training: Pass, iterator: Any, iteration: Iteration, at: int) -> None:
        passes = self._passes
        children = iteration.cut(at)
        training.other = None
        if training.is_single:
            self.discard_single_batch(training)
        elif not iteration.children:
            self._give_up(training, iteration)
        passes.begin_evaluation(iterator)
        evaluation: Any = passes.evaluation
        evaluation.scope._start = children[0]._start
        for phase in children:
            phase.move(evaluation.scope)
            evaluation.keep(phase)
        evaluation.was_forward = True
        evaluation.fetches += 1
        evaluation.decide()

    # --- ends -----------------------------------------------------------------------------------

    def exhausted(self, training: Pass, iterator: Any, at: int) -> None:
        """Handle the exhaustion of an iterator other than the pass's own."""
        if training.driver() is iterator:
            if training.first_batch is not None:
                training.first_batch.over = at
        elif training.knows(iterator) or (
            training.other is not None and training.other.iterator() is iterator
        ):
            training.restarted = reference_to(data_of(iterator))

    def called(self, training: Pass, *, is_trainable: bool) -> None:
        """Handle a call to a model."""
        if training.other is not None:
            training.other.was_forward = True
            training.other.was_trainable = training.other.was_trainable or is_trainable
        if training.first_batch is not None and training.first_batch.over:
            self.end_first_batch(training)

    def training_begins(self, training: Pass) -> None:
        """Handle the start of a backward pass or an optimizer step."""
        if training.other is not None:
            training.other.was_backward = True
        if training.first_batch is not None and training.first_batch.over:
            self.end_first_batch(training)
