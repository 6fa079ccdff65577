"""Passes over loaders: which of them are epochs, which evaluations, and whose fetch begins a step.

The rules stand in docs/torch.md, "Passes" and "Steps".
"""

from __future__ import annotations

import threading
import weakref
from asyncio import _get_running_loop as running_loop
from typing import TYPE_CHECKING, Any

from ...sdk.buffers import pressure
from ...sdk.clock import now
from ...sdk.phase import LOOP_KEY, STEPS, Phase, Step
from ...sdk.scope import NOWHERE
from ...sdk.state import CONTEXT, SCOPE_KEY, state
from ...sdk.unwinding import Place, keep, loop_left
from .iteration import Iteration
from .kinds import EPOCHS, LOAD
from .one_pass import Pass, again, by_hand, carried, scope_of
from .steps import Steps

if TYPE_CHECKING:
    from .tracker import Tracker

_AHEAD = 64
"""Batches that may be fetched before one is used; after more an evaluation is one."""
_get = CONTEXT.get
_set = CONTEXT.set


class Numbers:
    """How many epochs and evaluations there were: the tasks of a thread count together."""

    __slots__ = ("epochs", "evaluations")

    def __init__(self) -> None:
        self.epochs = self.evaluations = 0


class Passes:
    """The passes of one thread, or of one asyncio task."""

    def __init__(self, tracker: Tracker, numbers: Numbers) -> None:
        self._tracker = tracker
        self.steps = Steps(tracker, self)
        self._thread = threading.get_ident()
        self.training: Pass | None = None
        self.evaluation: Pass | None = None
        self.left: tuple[Pass, Iteration, int] | None = None
        """A training pass that is over while gradients wait for an optimizer's step."""
        self.numbers = numbers
        self._busy = False

    # --- fetching -------------------------------------------------------------------------------

    def before_fetch(self, iterator: Any) -> Phase | None:
        """The `data_load` of a fetch that begins now, in the step that it belongs to."""
        tracker = self._tracker
        self._busy = True
        try:
            if state.session is NOWHERE:
                pressure.first()
                if not state.recording:
                    return None
            if not tracker.shared.has_tasks and running_loop() is not None:
                tracker.shared.divide()
            context = _get()
            if self.left is not None:
                self.settle_left()
            tracker.batch = batch = context.get(LOOP_KEY)
            if batch is None and tracker.shared.owns_step:
                current: Any = context.get(SCOPE_KEY) or state.session
                iteration = tracker.iteration
                if (iteration is not None and current is iteration.step) or not by_hand(
                    current, STEPS
                ):
                    self._arrange(iterator, context, current)
            return tracker.enter(LOAD, None)
        finally:
            self._busy = False

    def _arrange(self, iterator: Any, context: Any, current: Any) -> None:
        """Have the right scope open for a fetch of `iterator`."""
        own, others = self.training, self.evaluation
        if own is not None and own.iterator() is iterator and again(own, iterator):
            self._end_training()
            own = None
        if others is not None and others.iterator() is iterator and again(others, iterator):
            self._end_evaluation()
            others = None
        if others is not None and others.iterator() is iterator:
            others.fetches += 1
            if others.was_forward or others.fetches > _AHEAD:
                others.decide()
            if self.evaluation is others:
                return
            own = self.training  # it turned out to be a training pass
        if own is not None and own.iterator() is iterator:
            self._end_evaluation()
            own.driver, own.met, own.is_simple = own.iterator, None, not own.restarts
            own.fetches += 1
            self._boundary(own, context, current)
            return
        if own is not None and own.driver() is iterator:
            self._boundary(own, context, current)
            return
        shared = self._tracker.shared
        if not shared.is_grad_enabled() or shared.is_evaluating():
            if others is None or not others.is_around(iterator):
                self._begin_evaluation(iterator)
        elif own is not None and own.is_around(iterator):
            if own.met is not None and own.met() is iterator and self._has_stepped():
                own.driver, own.is_simple = own.met, False  # it turns
                self._boundary(own, context, current)
            else:
                own.met, own.is_simple = weakref.ref(iterator), False
        else:
            self._begin_training(iterator)

    def _has_stepped(self) -> bool:
        iteration = self._tracker.iteration
        return iteration is not None and iteration.was_stepped

    # --- beginning ------------------------------------------------------------------------------

    def _begin_training(self, iterator: Any) -> None:
        self._end_evaluation()  # it may lie in the epoch
        self._end_training()
        self._tracker.bare.close()
        context = _get()
        own = Pass(iterator, self._gone(), context, self._tracker.settle, is_training=True)
        own.stepped = self._tracker.stepped
        current: Any = context.get(SCOPE_KEY) or state.session
        if self._tracker.shared.owns_epoch and not by_hand(current, EPOCHS):
            own.open("epoch", self.numbers.epochs, current)
            self.numbers.epochs += 1
        self.training = own
        own.fetches = 1
        self._tracker.shared.look_for_rank()
        self.steps.open(own, own.within, own.scope or current)

    def _begin_evaluation(self, iterator: Any) -> None:
        self._end_evaluation()
        tracker = self._tracker
        own = self.training
        if own is not None and own.iterator() is None:
            self._end_training()
        elif own is not None:
            self.steps.close(own)
        tracker.bare.close()
        context = _get()
        others = Pass(iterator, self._gone(), context, tracker.settle, is_training=False)
        others.is_firm = others.is_decided = not tracker.shared.is_grad_enabled()
        current = context.get(SCOPE_KEY) or state.session
        others.open("eval", self.numbers.evaluations, current)
        self.numbers.evaluations += 1
        others.fetches = 1
        self.evaluation = others
        tracker.shared.look_for_rank()

    def _gone(self) -> Any:
        """Called when an iterator is gone: by `break`, mostly."""
        reference = weakref.ref(self)

        def gone(dead: Any) -> None:
            passes = reference()
            try:
                if (
                    passes is not None
                    and threading.get_ident() == passes._thread
                    and not passes._busy
                    and not passes._tracker.inside
                ):
                    passes.end_dead(dead)
            except Exception as error:
                if passes is not None:
                    passes._tracker.failed(error)

        return gone

    # --- steps ----------------------------------------------------------------------------------

    def _boundary(self, own: Pass, context: Any, current: Any) -> None:
        """A fetch of the iterator that makes the steps."""
        tracker = self._tracker
        iteration = tracker.iteration
        if not own.is_decided:
            self._decide_training(own)
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

    def called(self, module: Any) -> None:
        """A model is called: that may say what the pass is."""
        if self.left is not None:
            self.settle_left()
        some = self.evaluation or self.training
        if some is not None and not (some.is_decided and some.is_training):
            some.was_forward = True
            if self._tracker.shared.is_grad_enabled() and getattr(module, "training", True):
                some.was_trainable = True

    def trains(self) -> None:
        """A backward or an optimizer step begins: the pass is one of training."""
        if self.left is not None:
            self.settle_left()
        others = self.evaluation
        if others is not None:
            if not others.is_firm:
                self._turn_into_training(others)
        elif self.training is not None and not self.training.is_decided:
            self.training.version = self._tracker.shared.version()
            self.training.was_forward = self.training.is_decided = True
            self._tracker.is_plain = self._tracker.context is not None

    def _turn_into_training(self, others: Pass) -> None:
        """What was taken for an evaluation is an epoch, and this is its first step."""
        self.evaluation = None
        held, others.held = others.held, []
        own = self.training
        if own is not None or others.scope is None or others.is_decided:
            # It goes on as what it is called: some of it may be sealed.
            for phase in held:
                self._tracker.settle(phase)
            others.is_firm = others.is_decided = True
            self.evaluation = others
            return
        scope = others.scope
        self.numbers.evaluations -= 1
        others.is_training = others.is_decided = True
        if self._tracker.shared.owns_epoch and not by_hand(scope._above, EPOCHS):
            scope._name, scope._index = "epoch", self.numbers.epochs
            self.numbers.epochs += 1
        self.training = others
        self.steps.open(others, others.within, scope)
        iteration = self._tracker.iteration
        if iteration is None:
            return
        for phase in held:
            iteration.step._start = min(iteration.step._start, phase._start)
            phase.move(iteration.step)
            iteration.add(phase)

    def _decide_training(self, own: Pass) -> None:
        """The first batch of what was taken for training is over, and nothing was trained."""
        own.is_decided = True
        if not own.was_forward or own.was_trainable or own.scope is None:
            return
        tracker = self._tracker
        iteration = tracker.iteration
        tracker.closed()
        self.training = None
        self.numbers.epochs -= 1
        own.scope._name, own.scope._index = "eval", self.numbers.evaluations
        self.numbers.evaluations += 1
        if iteration is not None:
            own.reached = max([phase._until for phase in iteration.kids], default=0)
            iteration.dissolve(own.scope)
        own.is_training = False
        own.is_firm = True
        self.evaluation = own
        _set(own.within)

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
                self.numbers.epochs -= own.scope is not None
            else:
                self._end_training(at=now())

    def end_dead(self, dead: Any) -> None:
        """An iterator is gone: its loop was left, by `break` or by an exception."""
        left = loop_left(2)
        own, others = self.training, self.evaluation
        if others is not None and others.iterator is dead:
            self._end_evaluation(left=left)
        others = self.evaluation
        is_inside = others is not None and own is not None and others.lies_in(own)
        if own is not None and own.iterator is dead and not is_inside:
            self._end_training(left=left)

    def end_all(self) -> None:
        """The session ends."""
        self._end_evaluation()
        self._end_training()
        self.settle_left()

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
                    self._end_training(left=left)

    def _end_training(self, at: int = 0, left: Place | None = None) -> None:
        own, tracker = self.training, self._tracker
        if own is None:
            return
        iteration = tracker.iteration
        if (
            not own.is_decided
            and own.fetches <= 1
            and not own.was_forward
            and iteration is not None
        ):
            # One batch was looked at, and nothing done with it.
            self.training = None
            tracker.closed()
            iteration.dissolve(iteration.step._above)
            own.undo()
            self.numbers.epochs -= own.scope is not None
            return
        if not own.is_decided:
            self._decide_training(own)
            if self.evaluation is own:
                self._end_evaluation(at, left)
                return
        self.training = None
        iteration = tracker.iteration
        if iteration is not None and iteration.accumulates and not iteration.is_by_hand:
            self.left = own, iteration, at
            if left is not None:
                keep(iteration.step, left)
                if own.scope is not None:
                    keep(own.scope, left)
            tracker.closed()
            own.leave(iteration.step)
            return
        self.steps.close(own, left)
        own.close(at, tracker.shared.epoch_ended, left)

    def step_left(self, optimizer: Any) -> Step | None:
        """The step of a pass that is over, if `optimizer` steps in it."""
        if self.left is None:
            return None
        iteration = self.left[1]
        iteration.stepped(optimizer)
        return iteration.step

    def takes(self, phase: Phase) -> bool:
        """Whether a phase that is over lies in the step of a pass that was over before."""
        if self.left is None or phase._above is not self.left[1].step:
            return False
        self.left[1].add(phase)
        return True

    def settle_left(self) -> None:
        """What comes now belongs to no pass before."""
        left, self.left = self.left, None
        if left is not None:
            own, iteration, at = left
            iteration.close(self.steps.micro_of)
            own.reached = max(own.reached, iteration.step._until)
            if self._tracker.shared.attends:
                self._tracker.shared.step_over()
            own.close(at, self._tracker.shared.epoch_ended)
