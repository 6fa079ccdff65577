"""Decide which passes over loaders are epochs or evaluations, and which fetches begin a step.

docs/torch.md, "Passes" and "Steps", defines the rules.
"""

from __future__ import annotations

from asyncio import _get_running_loop as running_loop
from typing import Any

from ...tracing.buffers import hooks
from ...tracing.phase import LOOP_KEY, STEPS, Step
from ...tracing.scope import NO_SESSION
from ...tracing.state import CONTEXT, SCOPE_KEY, state
from ..iteration import carry_over, current_scope, opened_manually
from .ending_passes import EndingPasses
from .kinds import BACKWARD, EPOCHS, GRAD, OPTIMIZER
from .one_pass import Pass, begins_again, has_one_batch, reading_frame
from .pending import UnusedBatches

_AHEAD = 64
"""Number of fetches after which an evaluation is decided even if no batch was used."""
GRADIENTS = BACKWARD | GRAD
"""The kind of `torch.autograd.grad`."""
_get = CONTEXT.get
_set = CONTEXT.set


class Passes(EndingPasses):
    """The passes of one thread, or of one asyncio task."""

    # --- fetching -------------------------------------------------------------------------------

    def arrange(self, iterator: Any) -> bool:
        """Open the step that a fetch of `iterator` belongs to; return False to record nothing."""
        tracker = self._tracker
        if state.session is NO_SESSION:
            hooks.first()
            if not state.recording:
                return False
        if not tracker.torch_state.has_tasks and running_loop() is not None:
            tracker.torch_state.use_task_trackers()
        context = _get()
        if self.pass_ends.unfinished is not None:
            self.pass_ends.fetch(iterator)
            context = _get()
        tracker.batch = batch = context.get(LOOP_KEY)
        if tracker.loop is not None:
            if batch is None:
                tracker.loop.fetching()
        elif batch is None:
            current: Any = context.get(SCOPE_KEY) or state.session
            iteration = tracker.iteration
            if (iteration is not None and current is iteration.step) or not opened_manually(
                current, STEPS
            ):
                self._arrange(iterator, context, current)
        return True

    def _arrange(self, iterator: Any, context: Any, current: Any) -> None:
        """Open the scopes that a fetch of `iterator` belongs to, and close the scopes it ends."""
        training, evaluation = self.training, self.evaluation
        if (
            training is not None
            and training.iterator() is iterator
            and begins_again(training, iterator)
        ):
            self.end_training()
            training = None
        elif (
            training is not None
            and training.first_batch is not None
            and self.interleaved.is_left(training, iterator)
        ):
            self.interleaved.end_first_batch(training)
            training = None
        elif training is not None and training.over and training.iterator() is not iterator:
            self.end_training()
            training = None
        if (
            evaluation is not None
            and evaluation.iterator() is iterator
            and begins_again(evaluation, iterator)
        ):
            self.end_evaluation()
            evaluation = None
        if evaluation is not None and evaluation.iterator() is iterator:
            evaluation.fetches += 1
            if evaluation.unused is not None:
                evaluation.unused.is_expected = True
            if evaluation.was_backward and not evaluation.is_decided:
                if self._reclassifier.is_trained(evaluation):
                    self._reclassifier.turn_into_training(evaluation)
                elif evaluation.fetches > _AHEAD:
                    evaluation.decide()
            elif evaluation.was_forward or evaluation.fetches > _AHEAD:
                evaluation.decide()
            if self.evaluation is evaluation:
                return
            training = self.training  # it was reclassified as a training pass
        if training is not None and training.iterator() is iterator:
            self.end_evaluation()
            self.interleaved.goes_on(training)
            self.interleaved.returns(training)
            training.driver, training.is_simple = training.iterator, not training.restarts
            training.fetches += 1
            self.boundary(training, context, current)
            return
        if training is not None and training.driver() is iterator:
            self.interleaved.goes_on(training)
            self.boundary(training, context, current)
            return
        if training is not None and self.interleaved.evaluates(training, iterator):
            return
        torch_state = self._tracker.torch_state
        if not torch_state.is_grad_enabled() or torch_state.is_evaluating():
            if evaluation is None or not evaluation.is_around(iterator):
                self.begin_evaluation(iterator)
        elif training is not None and training.is_around(iterator):
            self.interleaved.fetch(training, iterator, context, current)
        else:
            self.begin_training(iterator)

    # --- beginning ------------------------------------------------------------------------------

    def begin_training(self, iterator: Any) -> None:
        """Begin a training pass, and its first step."""
        self.end_evaluation()  # the evaluation may be inside the epoch
        ended = self.training
        if ended is not None and not ended.is_same_loader(iterator):
            ended = None
        if self.training is not None and self.training.is_single:
            self.interleaved.discard_single_batch(self.training)
        self.end_training()
        self.loaderless.close()
        context = _get()
        training = Pass(
            iterator, self.iterator_gone(), context, self._tracker.settle, is_training=True
        )
        training.stepped = self._tracker.stepped
        training.settings = self._tracker.torch_state.configuration.settings_of(iterator)
        self._tracker.watches_gradients = True
        with self._tracker.torch_state.unseen():
            training.is_only_batch = has_one_batch(iterator)
        self.interleaved.began(training, iterator)
        if ended is not None:  # both iterators may be read in turn from now on
            training.remember(ended.iterator)
            training.drivers = [ended.iterator]
        current: Any = context.get(SCOPE_KEY) or state.session
        if not opened_manually(current, EPOCHS):
            training.open("epoch", self.numbers.epochs, current)
            self.numbers.epochs += 1
        self.training = training
        training.fetches = 1
        training.unused = UnusedBatches()
        self._tracker.torch_state.poll_rank()
        self._tracker.torch_state.trainings.epoch_begins()
        self.steps.open(training, training.inner_context, training.scope or current)

    def begin_evaluation(self, iterator: Any) -> None:
        """Begin an evaluation."""
        self.end_evaluation()
        tracker = self._tracker
        training = self.training
        if training is not None and training.is_single:
            self.interleaved.set_aside(training)
        elif training is not None and training.iterator() is None and training.first_batch is None:
            self.end_training()
        elif training is not None:
            self.interleaved.settle(training)
            if not self.prefetching.defers_step(training):
                self.steps.close(training)
        self.loaderless.close()
        context = _get()
        evaluation = Pass(
            iterator, self.iterator_gone(), context, tracker.settle, is_training=False
        )
        evaluation.stepped = tracker.stepped
        evaluation.is_firm = evaluation.is_decided = not tracker.torch_state.is_grad_enabled()
        is_plain = evaluation.is_firm and reading_frame() is None
        evaluation.unused = None if is_plain else UnusedBatches()
        current = context.get(SCOPE_KEY) or state.session
        evaluation.open("eval", self.numbers.evaluations, current)
        self.numbers.evaluations += 1
        evaluation.fetches = 1
        self.evaluation = evaluation
        tracker.torch_state.poll_rank()

    # --- steps ----------------------------------------------------------------------------------

    def boundary(self, training: Pass, context: Any, current: Any) -> None:
        """Begin the next step, or micro step, at a fetch of the iterator that drives the steps."""
        tracker = self._tracker
        iteration = tracker.iteration
        if iteration is not None and tracker.accumulating is not None:
            iteration.waits_for_batch(tracker.accumulating)
        if training.is_crossing and self.pass_ends.is_crossed(training, iteration):
            return
        if training.unused is not None and self.prefetching.stays(training, training.unused):
            return
        if not training.is_decided:
            self._reclassifier.decide_training(training)
            if self.training is not training:
                return
        if iteration is not None and training.undecided_from is not None:
            self.next_batches.fetch_begins(training, iteration)
            if tracker.accumulating is not None:  # also after a batch without a backward
                iteration.waits_for_batch(tracker.accumulating)
        if (
            (iteration := tracker.iteration) is not None
            and iteration.accumulates
            and self.next_batches.is_updated(training)
        ):
            iteration.stepped(None)
            tracker.into(None)
        if iteration is not None and iteration.step._id and iteration.accumulates:
            if self.next_batches.waits(training, iteration):
                return
            iteration.next_micro(self.steps.micro_of)
            tracker.into(iteration.micro)
            return
        is_ours = current is training.scope or isinstance(current, Step)
        self.steps.close(training)
        if is_ours or (training.scope is None and context is training.outer_context):
            inner_context = carry_over(_get(), training.inner_context)
            self.steps.open(
                training, inner_context, training.scope or current_scope(training.outer_context)
            )
        else:
            self.steps.open(training, *self.steps.place_of_next(training, context, current))

    # --- deciding -------------------------------------------------------------------------------

    def begins_phase(self) -> None:
        """End an exhausted pass, none of whose batches can be used any more."""
        training = self.training
        if training is not None and training.over and self.prefetching.is_gone(training):
            self.end_training()

    def upkeep_begins(self) -> None:
        """End an exhausted evaluation, all of whose batches were used, ahead of other work."""
        evaluation = self.evaluation
        if evaluation is not None and evaluation.over and self.prefetching.is_done(evaluation):
            self.end_evaluation()

    def called(self, module: Any, arguments: Any = None) -> None:
        """Handle a call to a model, whose mode and arguments may show the kind of the pass."""
        if self.pass_ends.unfinished is not None:
            self.pass_ends.settle()
        if self.training is not None and self.training.over:
            self.begins_phase()
        if self.evaluation is not None and self.evaluation.over and self._is_trainable(module):
            self.end_evaluation()
        loader_pass = self.evaluation or self.training
        if (
            loader_pass is None
            and self.interleaved.aside is not None
            and self._is_trainable(module)
        ):
            self.interleaved.resume_batch_set_aside()
            loader_pass = self.training
        if loader_pass is None:
            return
        if loader_pass.is_training and (
            loader_pass.other is not None or loader_pass.first_batch is not None
        ):
            self.interleaved.called(loader_pass, is_trainable=self._is_trainable(module))
        if loader_pass.unused is not None:
            is_trainable = self._is_trainable(module)
            self.prefetching.use(
                loader_pass, loader_pass.unused, arguments, is_trainable=is_trainable
            )
        if self.evaluation is None and self.training is None:
            return  # the use was after the last batch of an evaluation
        if not (loader_pass.is_decided and loader_pass.is_training):
            loader_pass.was_forward = True
            loader_pass.was_trainable = loader_pass.was_trainable or self._is_trainable(module)

    def _is_trainable(self, module: Any) -> bool:
        torch_state = self._tracker.torch_state
        return bool(torch_state.is_grad_enabled() and getattr(module, "training", True))

    def training_begins(self, kind: int = OPTIMIZER) -> None:
        """Handle the start of a backward pass or optimizer step: the pass is a training pass.

        A backward of models in evaluation mode does not decide that, but an optimizer step does.
        """
        if self.pass_ends.unfinished is not None:
            self.pass_ends.settle()
        evaluation = self.evaluation
        if evaluation is not None and evaluation.over and evaluation.is_decided:
            self.end_evaluation()
            evaluation = None
        if evaluation is not None:
            if self._may_be_evaluation(evaluation, kind):
                self._note_backward(evaluation, kind)
            elif not evaluation.is_firm:
                self._reclassifier.turn_into_training(evaluation)
            return
        if self.training is not None and self.training.over:
            self.begins_phase()
        if self.training is not None and (self.training.other or self.training.first_batch):
            self.interleaved.training_begins(self.training)
        if self.training is not None and self.training.unused is not None:
            self.prefetching.training_begins(self.training, self.training.unused)
        training = self.training
        if training is not None and training.undecided_from is not None and kind != GRADIENTS:
            if kind == BACKWARD:
                self.next_batches.backward_begins(training)
            else:
                self.next_batches.decide(training, adds=True)
        elif training is not None and self._may_be_evaluation(training, kind):
            self._note_backward(training, kind)
        elif self.training is not None and not self.training.is_decided:
            self.training.version = self._tracker.gradients.version()
            self.training.was_forward = self.training.is_decided = True
            is_usual = self.training.other is None and self.training.unused is None
            self._tracker.is_plain = is_usual and self._tracker.context is not None

    def _may_be_evaluation(self, loader_pass: Pass, kind: int) -> bool:
        """Return whether an undecided pass stays undecided at a backward."""
        return bool(
            kind & BACKWARD
            and loader_pass.was_forward
            and not (loader_pass.was_trainable or loader_pass.is_decided)
        )

    def _note_backward(self, loader_pass: Pass, kind: int) -> None:
        if loader_pass.version is None:
            loader_pass.version = self._tracker.gradients.version()
        loader_pass.was_backward = loader_pass.was_backward or kind == BACKWARD
