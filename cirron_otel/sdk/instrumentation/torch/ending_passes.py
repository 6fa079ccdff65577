"""End the passes over loaders, and discard those that turn out to be none.

docs/torch.md, "Passes", defines the rules.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from ...tracing.clock import now
from ...tracing.unwinding import Place, keep, loop_left
from .interleaved_fetches import InterleavedFetches
from .loaderless import LoaderlessSteps
from .next_batches import NextBatches
from .open_step import Numbers, OpenPasses
from .pass_end import PassEnds, UnfinishedPass
from .prefetching import Prefetching
from .reclassification import Reclassifier
from .steps import Steps

if TYPE_CHECKING:
    from .open_step import OpenStep


class EndingPasses(OpenPasses):
    """The passes of one thread, or of one asyncio task, and their ends."""

    def __init__(self, tracker: OpenStep, numbers: Numbers) -> None:
        super().__init__(numbers)
        self._tracker = tracker
        self.steps = steps = Steps(tracker, self)
        self.interleaved = InterleavedFetches(tracker, self, steps)
        self.prefetching = Prefetching(tracker, self, steps)
        self.pass_ends = PassEnds(tracker, self, steps)
        self.loaderless = LoaderlessSteps(tracker, self, steps)
        self.next_batches = NextBatches(tracker, self, steps)
        self._reclassifier = Reclassifier(tracker, self, steps)
        self._thread = threading.get_ident()
        self.is_busy = False
        """Whether a fetch is being arranged; then a freed iterator does not end its pass."""

    def iterator_gone(self) -> Any:
        """Return the callback that is called when an iterator is freed, mostly after a `break`."""
        reference = weakref.ref(self)

        def iterator_gone(dead: Any) -> None:
            passes = reference()
            try:
                if (
                    passes is not None
                    and threading.get_ident() == passes._thread
                    and not passes.is_busy
                    and not passes._tracker.inside
                ):
                    passes.end_dead(dead)
            except Exception as error:
                if passes is not None:
                    passes._tracker.failed(error)

        return iterator_gone

    def exhausted(self, iterator: Any) -> None:
        """End the pass of an exhausted iterator."""
        training, evaluation = self.training, self.evaluation
        if evaluation is not None and evaluation.iterator() is iterator:
            if evaluation.fetches <= 1:
                self.evaluation = None
                evaluation.undo()
                self.numbers.evaluations -= 1
            elif not self.prefetching.is_used_later(evaluation, at := now()):
                self.end_evaluation(at)
        elif training is not None and training.iterator() is iterator:
            if training.fetches <= 1:
                self.training = None
                training.undo()
                self.uncount_epoch(training)
            elif not self.prefetching.exhausted(training, at := now()):
                self.end_training(at)
        elif training is not None:
            self.interleaved.exhausted(training, iterator, now())

    def own_pass_ended(self, own_pass: Any) -> None:
        """End the pass of a loader's generator, whose iterator may not be exhausted."""
        for loader_pass in (self.evaluation, self.training):
            if loader_pass is not None and loader_pass.iterator() is own_pass:
                loader_pass.fetches += 1
                self.exhausted(own_pass)
                return
        if self.training is not None and self.training.driver() is own_pass:
            self.exhausted(own_pass)

    def end_dead(self, dead: Any) -> None:
        """End the pass of a freed iterator, whose loop was left by `break` or an exception."""
        left = loop_left(2)
        training, evaluation = self.training, self.evaluation
        if evaluation is not None and evaluation.iterator is dead and not evaluation.over:
            self.end_evaluation(left=left)
        evaluation = self.evaluation
        if training is None or training.iterator is not dead:
            return
        if (
            training.first_batch is not None
            and training.driver() is not None
            and not training.first_batch.over
        ):
            self.interleaved.keep(training)
        elif (
            evaluation is None or not evaluation.is_within(training)
        ) and not self.prefetching.is_awaited(training):
            self.end_training(left=left)

    def loop_begins(self) -> None:
        """End the passes, because another framework determines the steps from now on."""
        self.end_evaluation()
        if self.training is not None and self.training.is_single:
            self.interleaved.discard_single_batch(self.training)
        self.end_all()
        self._tracker.torch_state.poll_rank()

    def end_all(self) -> None:
        """End every pass, because the session ends."""
        self.end_evaluation()
        self.end_training()
        self.pass_ends.settle()
        self.loaderless.close()

    def end_evaluation(self, at: int = 0, left: Place | None = None) -> None:
        """End the evaluation, if there is one, not before `at` (monotonic ns)."""
        evaluation, self.evaluation = self.evaluation, None
        if evaluation is None:
            return
        at = max(at, evaluation.over)
        if not evaluation.was_forward and evaluation.fetches <= 1 and not evaluation.is_firm:
            evaluation.undo()
            self.numbers.evaluations -= 1
        else:
            if (
                evaluation.was_backward
                and not evaluation.is_decided
                and self._reclassifier.is_trained(evaluation)
            ):
                self._reclassifier.turn_into_training(evaluation)
                if self.training is evaluation:
                    self.end_training(at, left)
                    return
                self.evaluation = None
            if not evaluation.was_forward and not evaluation.is_firm:
                self._reclassifier.turn_into_unused(evaluation)
            evaluation.decide()
            evaluation.close(at, self._tracker.torch_state.epoch_ended, left)
            training = self.training
            if training is not None and evaluation.is_within(training):
                training.reached = max(training.reached, evaluation.reached, at)
                if training.iterator() is None:
                    self.end_training(left=left)

    def end_training(self, at: int = 0, left: Place | None = None) -> None:
        """End the training pass, if there is one, not before `at` (monotonic ns)."""
        training, tracker = self.training, self._tracker
        if training is None:
            return
        if training.first_batch is not None:
            at = training.first_batch.over or at
            self.interleaved.keep(training)
        if training.other is not None:
            self.interleaved.settle(training)
        at = training.over or at
        iteration = tracker.iteration
        if (
            not training.is_decided
            and training.fetches <= 1
            and not training.was_trainable
            and iteration is not None
            and not (training.is_only_batch and training.was_forward and training.stepped)
        ):
            # One batch was fetched, and nothing was trained on it.
            self.training = None
            tracker.closed()
            iteration.dissolve(iteration.step._above)
            training.undo()
            self.uncount_epoch(training)
            return
        if not training.is_decided:
            self._reclassifier.decide_training(training)
            if self.evaluation is training:
                self.end_evaluation(at, left)
                return
        if training.unused is not None and not training.unused.was_used:
            self.prefetching.give_up(training)
            self._reclassifier.turn_into_unused(training)
        iteration = tracker.iteration
        if iteration is not None and tracker.accumulating is not None:
            iteration.waits_for_batch(tracker.accumulating)
        self.next_batches.pass_ends(training)
        iteration = tracker.iteration
        tracker.gradients.forget()
        self.training = None
        if tracker.stepped != training.stepped:
            tracker.torch_state.configuration.epoch_ended(training.settings, training.scope)
        if iteration is not None and iteration.accumulates and not iteration.has_manual_step:
            self.pass_ends.unfinished = UnfinishedPass(training, iteration, at)
            if left is not None:
                keep(iteration.step, left)
                if training.scope is not None:
                    keep(training.scope, left)
            tracker.closed()
            training.leave(iteration.step)
            return
        self.steps.close(training, left)
        training.close(at, tracker.torch_state.epoch_ended, left)
