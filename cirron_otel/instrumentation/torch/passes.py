"""Passes over loaders: which of them are epochs, which evaluations, and whose fetch begins a step.

The rules stand in docs/torch.md, "Passes" and "Steps".
"""

from __future__ import annotations

import threading
import weakref
from asyncio import _get_running_loop as running_loop
from typing import TYPE_CHECKING, Any

from ...sdk.buffers import hooks
from ...sdk.clock import now
from ...sdk.phase import LOOP_KEY, STEPS, Step
from ...sdk.scope import NO_SESSION
from ...sdk.state import CONTEXT, SCOPE_KEY, state
from ...sdk.unwinding import Place, keep, loop_left
from .ahead import Uses
from .bare import Bare
from .beside import Beside
from .deciding import Reclassifier
from .kinds import EPOCHS
from .one_pass import Pass, again, by_hand, carried, has_one_batch, scope_of
from .open_passes import Numbers, OpenPasses
from .pending import Pending
from .steps import Steps
from .tails import Tail, Tails

if TYPE_CHECKING:
    from .open_step import OpenStep

_AHEAD = 64
"""Batches that may be fetched before one is used; after more an evaluation is one."""
_get = CONTEXT.get
_set = CONTEXT.set


class Passes(OpenPasses):
    """The passes of one thread, or of one asyncio task."""

    def __init__(self, tracker: OpenStep, numbers: Numbers) -> None:
        super().__init__(numbers)
        self._tracker = tracker
        self.steps = steps = Steps(tracker, self)
        self.beside = Beside(tracker, self, steps)
        self.uses = Uses(tracker, self, steps)
        self.tails = Tails(tracker, self, steps)
        self.bare = Bare(tracker, self, steps)
        self._reclassifier = Reclassifier(tracker, self, steps)
        self._thread = threading.get_ident()
        self.is_busy = False
        """Whether a fetch is being arranged: an iterator that is gone meanwhile ends no pass."""

    # --- fetching -------------------------------------------------------------------------------

    def arrange(self, iterator: Any) -> bool:
        """Open the step that a fetch of `iterator` belongs to; False if nothing is recorded."""
        tracker = self._tracker
        if state.session is NO_SESSION:
            hooks.first()
            if not state.recording:
                return False
        if not tracker.shared.has_tasks and running_loop() is not None:
            tracker.shared.divide()
        context = _get()
        if self.tails.tail is not None:
            self.tails.fetch(iterator)
            context = _get()
        tracker.batch = batch = context.get(LOOP_KEY)
        if batch is None and tracker.shared.owns_step:
            current: Any = context.get(SCOPE_KEY) or state.session
            iteration = tracker.iteration
            if (iteration is not None and current is iteration.step) or not by_hand(current, STEPS):
                self._arrange(iterator, context, current)
        return True

    def _arrange(self, iterator: Any, context: Any, current: Any) -> None:
        """Have the right scope open for a fetch of `iterator`."""
        own, others = self.training, self.evaluation
        if own is not None and own.iterator() is iterator and again(own, iterator):
            self.end_training()
            own = None
        elif own is not None and own.lone is not None and self.beside.is_left(own, iterator):
            self.beside.end_lone(own)
            own = None
        elif own is not None and own.over and own.iterator() is not iterator:
            self.end_training()
            own = None
        if others is not None and others.iterator() is iterator and again(others, iterator):
            self._end_evaluation()
            others = None
        if others is not None and others.iterator() is iterator:
            others.fetches += 1
            if others.pending is not None:
                others.pending.is_expected = True
            if others.was_forward or others.fetches > _AHEAD:
                others.decide()
            if self.evaluation is others:
                return
            own = self.training  # it turned out to be a training pass
        if own is not None and own.iterator() is iterator:
            self._end_evaluation()
            self.beside.goes_on(own)
            self.beside.returns(own)
            own.driver, own.is_simple = own.iterator, not own.restarts
            own.fetches += 1
            self.boundary(own, context, current)
            return
        if own is not None and own.driver() is iterator:
            self.beside.goes_on(own)
            self.boundary(own, context, current)
            return
        if own is not None and self.beside.evaluates(own, iterator):
            return
        shared = self._tracker.shared
        if not shared.is_grad_enabled() or shared.is_evaluating():
            if others is None or not others.is_around(iterator):
                self.begin_evaluation(iterator)
        elif own is not None and own.is_around(iterator):
            self.beside.fetch(own, iterator, context, current)
        else:
            self.begin_training(iterator)

    # --- beginning ------------------------------------------------------------------------------

    def begin_training(self, iterator: Any) -> None:
        """Begin a training pass, and its first step."""
        self._end_evaluation()  # it may lie in the epoch
        if self.training is not None and self.training.is_single:
            self.beside.drop_single(self.training)
        self.end_training()
        self.bare.close()
        context = _get()
        own = Pass(iterator, self.gone(), context, self._tracker.settle, is_training=True)
        own.stepped = self._tracker.stepped
        own.is_only_batch = has_one_batch(iterator)
        self.beside.began(own, iterator)
        current: Any = context.get(SCOPE_KEY) or state.session
        if self._tracker.shared.owns_epoch and not by_hand(current, EPOCHS):
            own.open("epoch", self.numbers.epochs, current)
            self.numbers.epochs += 1
        self.training = own
        own.fetches = 1
        own.pending = Pending()
        self._tracker.shared.look_for_rank()
        self.steps.open(own, own.within, own.scope or current)

    def begin_evaluation(self, iterator: Any) -> None:
        """Begin an evaluation."""
        self._end_evaluation()
        tracker = self._tracker
        own = self.training
        if own is not None and own.is_single:
            self.beside.set_aside(own)
        elif own is not None and own.iterator() is None and own.lone is None:
            self.end_training()
        elif own is not None:
            self.beside.settle(own)
            if not self.uses.waits(own):
                self.steps.close(own)
        self.bare.close()
        context = _get()
        others = Pass(iterator, self.gone(), context, tracker.settle, is_training=False)
        others.is_firm = others.is_decided = not tracker.shared.is_grad_enabled()
        others.pending = None if others.is_firm else Pending()
        current = context.get(SCOPE_KEY) or state.session
        others.open("eval", self.numbers.evaluations, current)
        self.numbers.evaluations += 1
        others.fetches = 1
        self.evaluation = others
        tracker.shared.look_for_rank()

    def gone(self) -> Any:
        """Called when an iterator is gone: by `break`, mostly."""
        reference = weakref.ref(self)

        def gone(dead: Any) -> None:
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

        return gone

    # --- steps ----------------------------------------------------------------------------------

    def boundary(self, own: Pass, context: Any, current: Any) -> None:
        """A fetch of the iterator that makes the steps."""
        tracker = self._tracker
        iteration = tracker.iteration
        if own.is_crossing and self.tails.is_crossed(own, iteration):
            return
        if own.pending is not None and self.uses.stays(own, own.pending):
            return
        if not own.is_decided:
            self._reclassifier.decide_training(own)
            if self.training is not own:
                return
        if iteration is not None and iteration.accumulates and self.steps.is_changed(own):
            iteration.stepped(None)
            tracker.into(None)
        if iteration is not None and iteration.step._id and iteration.accumulates:
            iteration.next_micro(self.steps.micro_of)
            tracker.into(iteration.micro)
            return
        is_ours = current is own.scope or isinstance(current, Step)
        self.steps.close(own)
        if is_ours or (own.scope is None and context is own.base):
            within = carried(_get(), own.within)
            self.steps.open(own, within, own.scope or scope_of(own.base))
        else:
            self.steps.open(own, *self.steps.around(own, context, current))

    # --- deciding -------------------------------------------------------------------------------

    def called(self, module: Any, arguments: Any = None) -> None:
        """A model is called with these arguments: that may show what the pass is."""
        if self.tails.tail is not None:
            self.tails.settle()
        some = self.evaluation or self.training
        if some is None and self.beside.aside is not None and self._is_trainable(module):
            self.beside.take_up()
            some = self.training
        if some is None:
            return
        if some.is_training and (some.met is not None or some.lone is not None):
            self.beside.called(some, is_trainable=self._is_trainable(module))
        if some.pending is not None:
            is_trainable = self._is_trainable(module)
            self.uses.use(some, some.pending, arguments, is_trainable=is_trainable)
        if not (some.is_decided and some.is_training):
            some.was_forward = True
            some.was_trainable = some.was_trainable or self._is_trainable(module)

    def _is_trainable(self, module: Any) -> bool:
        shared = self._tracker.shared
        return bool(shared.is_grad_enabled() and getattr(module, "training", True))

    def trains(self) -> None:
        """A backward or an optimizer step begins: the pass is one of training."""
        if self.tails.tail is not None:
            self.tails.settle()
        others = self.evaluation
        if others is not None:
            if not others.is_firm:
                self._reclassifier.turn_into_training(others)
            return
        if self.training is not None and (self.training.met or self.training.lone):
            self.beside.trains(self.training)
        if self.training is not None and self.training.pending is not None:
            self.uses.trains(self.training, self.training.pending)
        if self.training is not None and not self.training.is_decided:
            self.training.version = self._tracker.shared.version()
            self.training.was_forward = self.training.is_decided = True
            is_usual = self.training.met is None and self.training.pending is None
            self._tracker.is_plain = is_usual and self._tracker.context is not None

    # --- ending ---------------------------------------------------------------------------------

    def exhausted(self, iterator: Any) -> None:
        """There was nothing left to fetch."""
        own, others = self.training, self.evaluation
        if others is not None and others.iterator() is iterator:
            if others.fetches <= 1:
                self.evaluation = None
                others.undo()
                self.numbers.evaluations -= 1
            else:
                self._end_evaluation(at=now())
        elif own is not None and own.iterator() is iterator:
            if own.fetches <= 1:
                self.training = None
                own.undo()
                self.uncount_epoch(own)
            elif not self.uses.exhausted(own, at := now()):
                self.end_training(at)
        elif own is not None:
            self.beside.exhausted(own, iterator, now())

    def end_dead(self, dead: Any) -> None:
        """An iterator is gone: its loop was left, by `break` or by an exception."""
        left = loop_left(2)
        own, others = self.training, self.evaluation
        if others is not None and others.iterator is dead:
            self._end_evaluation(left=left)
        others = self.evaluation
        if own is None or own.iterator is not dead:
            return
        if own.lone is not None and own.driver() is not None and not own.lone.over:
            self.beside.keep(own)
        elif (others is None or not others.lies_in(own)) and not self.uses.is_awaited(own):
            self.end_training(left=left)

    def end_all(self) -> None:
        """The session ends."""
        self._end_evaluation()
        self.end_training()
        self.tails.settle()
        self.bare.close()

    def _end_evaluation(self, at: int = 0, left: Place | None = None) -> None:
        others, self.evaluation = self.evaluation, None
        if others is None:
            return
        if not others.was_forward and others.fetches <= 1 and not others.is_firm:
            others.undo()
            self.numbers.evaluations -= 1
        else:
            others.decide()
            others.close(at, self._tracker.shared.epoch_ended, left)
            own = self.training
            if own is not None and others.lies_in(own):
                own.reached = max(own.reached, others.reached, at)
                if own.iterator() is None:
                    self.end_training(left=left)

    def end_training(self, at: int = 0, left: Place | None = None) -> None:
        """End the training pass, if there is one, at `at` (monotonic ns) at the earliest."""
        own, tracker = self.training, self._tracker
        if own is None:
            return
        if own.lone is not None:
            at = own.lone.over or at
            self.beside.keep(own)
        if own.met is not None:
            self.beside.settle(own)
        at = own.over or at
        iteration = tracker.iteration
        if (
            not own.is_decided
            and own.fetches <= 1
            and not own.was_trainable
            and iteration is not None
            and not (own.is_only_batch and own.was_forward and own.stepped)
        ):
            # One batch was looked at, and nothing done with it.
            self.training = None
            tracker.closed()
            iteration.dissolve(iteration.step._above)
            own.undo()
            self.uncount_epoch(own)
            return
        if not own.is_decided:
            self._reclassifier.decide_training(own)
            if self.evaluation is own:
                self._end_evaluation(at, left)
                return
        if own.pending is not None and not own.pending.was_used:
            self.uses.give_up(own)  # its batches were fetched, and that is all
        iteration = tracker.iteration
        if iteration is not None and iteration.accumulates and self.steps.is_changed(own):
            iteration.stepped(None)
            tracker.into(None)
        self.training = None
        if iteration is not None and iteration.accumulates and not iteration.is_by_hand:
            self.tails.tail = Tail(own, iteration, at)
            if left is not None:
                keep(iteration.step, left)
                if own.scope is not None:
                    keep(own.scope, left)
            tracker.closed()
            own.leave(iteration.step)
            return
        self.steps.close(own, left)
        own.close(at, tracker.shared.epoch_ended, left)
