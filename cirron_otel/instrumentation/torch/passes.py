"""Passes over loaders: which of them are epochs, which evaluations, and whose fetch begins a step.

The rules stand in docs/torch.md, "Passes" and "Steps".
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from opentelemetry.context.context import Context

from ...sdk.buffers import pressure
from ...sdk.clock import now
from ...sdk.errors import swallowed
from ...sdk.phase import LOOP_KEY, STEPS, Phase, Step, Whole, begin, make_current
from ...sdk.scope import NOWHERE
from ...sdk.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from ...sdk.traces import UNIT_DEPTH
from .iteration import UNATTRIBUTED, Iteration, new_step
from .kinds import EPOCHS, LOAD

if TYPE_CHECKING:
    from .tracker import Tracker

_KEPT = 3
"""References to an iterator that its loader keeps: the loader's, and two for looking."""
_get = CONTEXT.get
_set = CONTEXT.set
_new = Step.__new__


class Pass:
    """One pass over a loader, from its iterator's first fetch."""

    __slots__ = ("base", "by_hand", "dataset", "driver", "fetches", "held", "inner", "is_decided",
                 "is_firm", "is_simple", "is_training", "iterator", "met", "reached", "restarts",
                 "scope", "stepped", "steps", "version", "was_forward", "was_trainable",
                 "within")  # fmt: skip

    def __init__(self, iterator: Any, gone: Any, base: Any, *, is_training: bool) -> None:
        self.iterator = weakref.ref(iterator, gone)
        self.dataset = id(getattr(iterator, "_dataset", iterator))
        self.base = self.within = base
        """The context around it, and the one inside."""
        self.is_training = is_training
        self.is_firm = False
        """Whether it is an evaluation whatever happens: gradients are off where it fetches."""
        self.is_decided = False
        self.scope: Whole | None = None
        """Its epoch or evaluation; None where the epoch is somebody else's."""
        self.driver: Any = self.iterator
        """Whose fetches begin steps: its own iterator, or one that turns inside."""
        self.met: Any = None
        """Another iterator that was fetched since the driver was."""
        self.inner: set[int] = set()
        """Ids of other iterators that are fetched inside."""
        self.fetches = self.steps = 0
        self.reached = 0
        """The end of what is known to be in it."""
        self.held: list[Phase] = []
        """What an evaluation holds until it is decided."""
        self.version: int | None = None
        """Of a trained parameter, when it was last looked at."""
        self.stepped = 0
        """Optimizer steps of the thread before it."""
        self.is_simple = False
        """Whether only its own iterator, which never begins anew, makes its steps."""
        self.restarts = bool(getattr(iterator, "_persistent_workers", False))
        """Whether its iterator may begin anew."""
        self.by_hand = False
        """Whether its steps turned out to be made by hand."""
        self.was_forward = self.was_trainable = False
        """Whether a model was called, and one in training with gradients on."""

    def is_same_loader(self, iterator: Any) -> bool:
        """Whether another iterator comes from the same loader, or one of the same data."""
        return self.dataset == id(getattr(iterator, "_dataset", iterator))


class Passes:
    """The passes of one thread."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._thread = threading.get_ident()
        self.training: Pass | None = None
        self.evaluation: Pass | None = None
        self.left: tuple[Pass, Iteration, int] | None = None
        """A training pass that is over while gradients wait for an optimizer's step."""
        self._epochs = self._evaluations = 0
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

    def turn_over(self, iterator: Any) -> bool:
        """Close one step and open the next, where there is nothing to be decided; whether so.

        It does what `_close_step` and `_open_step` do, written out: with other things in the
        processor's cache between two steps, every function that is gone through costs.
        """
        begun = now()
        own, tracker = self.training, self._tracker
        iteration: Any = tracker.iteration
        step: Any = tracker.step
        context = _get()
        if (
            context is not tracker.context
            or own is None
            or own.iterator() is not iterator
            or not own.is_simple
            or not iteration.was_stepped
            or iteration.is_held
            or iteration.is_odd
            or step._collected is not None
            or state.special
        ):
            return False
        start = until = step._start
        covered = 0
        for kid in iteration.kids:
            until = kid._until
            covered += until - kid._start
        attrs = step._attrs
        if attrs is None:
            step._attrs = {UNATTRIBUTED: until - start - covered}
        else:
            attrs[UNATTRIBUTED] = until - start - covered
        step._end = step._until = own.reached = until
        own.fetches += 1
        if tracker.shared.attends:
            tracker.shared.step_over(iteration.called)
        above: Any = step._above
        following = _new(Step)
        following._name, following._index = "step", own.steps
        own.steps += 1
        following._above, following._depth = above, step._depth
        following._attrs = following._more = following._token = None
        following._stamps = following._collected = None
        following._end = following._overhead = following._until = 0
        buffers = tracker.buffers
        for following._id in buffers.ids:
            break
        else:
            following._id = buffers.next_id()
        segments: Any = state.segments
        if step._depth > UNIT_DEPTH or segments is None or above._trace.is_apart:
            following._trace = above._trace
        else:
            segments.tick -= 1
            following._trace = segments.trace
            if segments.tick < 0:
                following._start = 0
                following._place(own.within, above, again=True)
        following._thread = buffers.ident
        tracker.context = inside = Context({**context, SPAN_KEY: following, SCOPE_KEY: following})
        _set(inside)
        tracker.step = tracker.parent = following
        iteration.renew(following)
        following._start = begins = now()
        buffers.put(following)
        above._overhead += begins - begun
        return True

    def _arrange(self, iterator: Any, context: Any, current: Any) -> None:
        """Have the right scope open for a fetch of `iterator`."""
        own, others = self.training, self.evaluation
        if own is not None and own.iterator() is iterator and _again(own, iterator):
            self._end_training()
            own = None
        if others is not None and others.iterator() is iterator and _again(others, iterator):
            self._end_evaluation()
            others = None
        if others is not None and others.iterator() is iterator:
            others.fetches += 1
            self._decide_evaluation(others)
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
        if not self._tracker.shared.is_grad_enabled() or self._is_evaluating():
            if others is None or not self._is_inner(others, iterator):
                self._begin_evaluation(iterator)
        elif own is not None and self._is_inner(own, iterator):
            if own.met is not None and own.met() is iterator and self._has_stepped():
                own.driver, own.is_simple = own.met, False  # it turns
                self._boundary(own, context, current)
            else:
                own.met, own.is_simple = weakref.ref(iterator), False
        else:
            self._begin_training(iterator)

    def _is_inner(self, some: Pass, iterator: Any) -> bool:
        """Whether `iterator` is one beside, or inside, the pass that is open."""
        if some.iterator() is None or _is_idle(some):
            return False
        if id(iterator) not in some.inner:
            if some.is_same_loader(iterator) and (some.fetches > 1 or some.was_forward):
                return False
            some.inner.add(id(iterator))
        return True

    def _has_stepped(self) -> bool:
        iteration = self._tracker.iteration
        return iteration is not None and iteration.was_stepped

    def _is_evaluating(self) -> bool:
        """Whether every model that was trained so far is in evaluation mode."""
        models = self._tracker.shared.trained
        return bool(models) and not any(model.training for model in list(models))

    # --- beginning ------------------------------------------------------------------------------

    def _begin_training(self, iterator: Any) -> None:
        self._end_training()
        self._end_evaluation()
        self._tracker.bare.close()
        context = _get()
        own = Pass(iterator, self._gone(), context, is_training=True)
        own.stepped = self._tracker.stepped
        current: Any = context.get(SCOPE_KEY) or state.session
        if self._tracker.shared.owns_epoch and not by_hand(current, EPOCHS):
            own.scope = self._open(own, "epoch", self._epochs, current)
            self._epochs += 1
        self.training = own
        own.fetches = 1
        self._tracker.shared.discover()
        self._open_step(own, own.within, own.scope or current)

    def _begin_evaluation(self, iterator: Any) -> None:
        self._end_evaluation()
        tracker = self._tracker
        own = self.training
        if own is not None and own.iterator() is None:
            self._end_training()
        elif own is not None:
            self._close_step(own)
        tracker.bare.close()
        context = _get()
        others = Pass(iterator, self._gone(), context, is_training=False)
        others.is_firm = others.is_decided = not tracker.shared.is_grad_enabled()
        current = context.get(SCOPE_KEY) or state.session
        others.scope = self._open(others, "eval", self._evaluations, current)
        self._evaluations += 1
        others.fetches = 1
        self.evaluation = others
        tracker.shared.discover()

    def _open(self, some: Pass, name: str, index: int, above: Any) -> Whole:
        scope = Whole.__new__(Whole)
        begin(scope, name, index, None, above, some.base, now())
        some.within = make_current(scope, some.base)
        return scope

    def _open_step(self, own: Pass, context: Any, above: Any) -> None:
        if own.by_hand:
            _set(context)
            return
        tracker = self._tracker
        step = new_step()
        begin(step, "step", own.steps, None, above, context, now())
        own.steps += 1
        iteration = Iteration(step, tracker.settle, tracker.shared.memory)
        tracker.opened(iteration, make_current(step, context))
        tracker.is_plain = own.is_decided and tracker.context is not None

    def _gone(self) -> Any:
        """Called when an iterator is gone: by `break`, mostly."""
        reference = weakref.ref(self)

        def gone(dead: Any) -> None:
            try:
                passes = reference()
                if (
                    passes is not None
                    and threading.get_ident() == passes._thread
                    and not passes._busy
                    and not passes._tracker.inside
                ):
                    passes.end_dead(dead)
            except Exception as error:
                swallowed("torch", error)

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
        if iteration is not None and iteration.accumulates and self._is_changed(own):
            iteration.stepped(None)
            tracker.into(None)
        if iteration is not None and iteration.step._id and iteration.accumulates:
            iteration.next_micro(self.micro_of)
            tracker.into(iteration.micro)
            return
        is_ours = current is own.scope or isinstance(current, Step)
        self._close_step(own)
        if is_ours or (own.scope is None and context is own.base):
            self._open_step(own, own.within, own.scope or _scope_of(own.base))
        else:
            self._open_step(own, *self._anchored(own, context, current))

    def _is_changed(self, own: Pass) -> bool:
        """Whether somebody changed the weights by hand since the last batch.

        Looked for only where no optimizer has stepped in the pass: those change them, too.
        """
        tracker = self._tracker
        before, own.version = own.version, tracker.shared.version()
        return tracker.stepped == own.stepped and before not in (None, own.version)

    def _anchored(self, own: Pass, context: Any, current: Any) -> tuple[Any, Any]:
        """Context and scope around the next step, where the loop's own scopes are not current."""
        above = current
        while above._depth:
            if above is own.scope:
                return own.within, own.scope
            above = above._above
        return context, current

    def micro_of(self, step: Step, index: int) -> Step:
        """A micro step of a step."""
        micro = new_step()
        begin(micro, "micro_step", index, None, step, _get(), now(), is_fixed=True)
        return micro

    def undo_fetch(self, load: Phase) -> None:
        """There was no batch: the step, or micro step, that was opened for it is none."""
        own, tracker = self.training, self._tracker
        iteration = tracker.iteration
        if own is None or iteration is None:
            return
        if iteration.micro is not None and load._above is iteration.micro:
            iteration.undo_micro()
            tracker.into(None)
        elif load._above is iteration.step and not iteration.kids and not iteration.was_stepped:
            tracker.closed()
            own.steps -= 1
            iteration.dissolve(iteration.step._above)
            _set(own.within)

    def _close_step(self, own: Pass) -> None:
        tracker = self._tracker
        iteration = tracker.iteration
        if iteration is None:
            return
        tracker.closed()
        if iteration.is_by_hand:
            iteration.dissolve(iteration.step._above)
            own.by_hand = True
        else:
            iteration.close(self.micro_of)
            own.reached = max(own.reached, iteration.step._until)
            if tracker.shared.attends:
                tracker.shared.step_over(iteration.called)
        if _scope_of(_get()) is iteration.step:
            _set(own.within)

    def yield_step(self) -> None:
        """A scope by hand is the step: there is to be no other."""
        iteration = self._tracker.iteration
        self._tracker.closed()
        if self.training is not None:
            self.training.by_hand = True
        if iteration is not None:
            iteration.dissolve(iteration.step._above)

    # --- deciding -------------------------------------------------------------------------------

    def keep(self, phase: Phase) -> None:
        """A phase of the evaluation is over: it waits until that is decided."""
        others = self.evaluation
        assert others is not None  # noqa: S101 - it lies in it
        others.reached = max(others.reached, phase._until)
        if others.is_decided:
            self._tracker.settle(phase)
        else:
            others.held.append(phase)

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
        self._evaluations -= 1
        others.is_training = others.is_decided = True
        if self._tracker.shared.owns_epoch and not by_hand(scope._above, EPOCHS):
            scope._name, scope._index = "epoch", self._epochs
            self._epochs += 1
        self.training = others
        self._open_step(others, others.within, scope)
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
        self._epochs -= 1
        own.scope._name, own.scope._index = "eval", self._evaluations
        self._evaluations += 1
        if iteration is not None:
            own.reached = max([phase._until for phase in iteration.kids], default=0)
            iteration.dissolve(own.scope)
        own.is_training = False
        own.is_firm = True
        self.evaluation = own
        _set(own.within)

    def _decide_evaluation(self, others: Pass) -> None:
        others.is_decided = True
        held, others.held = others.held, []
        for phase in held:
            self._tracker.settle(phase)

    # --- ending ---------------------------------------------------------------------------------

    def exhausted(self, iterator: Any) -> None:
        """There was nothing left to fetch."""
        own, others = self.training, self.evaluation
        if others is not None and others.iterator() is iterator:
            if others.fetches <= 1:
                self.evaluation = None
                self._undo(others)
                self._evaluations -= 1
            else:
                self._end_evaluation(at=now())
        elif own is not None and own.iterator() is iterator:
            if own.fetches <= 1:
                self.training = None
                self._undo(own)
                self._epochs -= own.scope is not None
            else:
                self._end_training(at=now())

    def end_dead(self, dead: Any) -> None:
        """An iterator is gone."""
        own, others = self.training, self.evaluation
        if others is not None and others.iterator is dead:
            self._end_evaluation()
        if own is not None and own.iterator is dead:
            self._end_training()

    def end_all(self) -> None:
        """The session ends."""
        self._end_evaluation()
        self._end_training()
        self.settle_left()

    def _end_evaluation(self, at: int = 0) -> None:
        others, self.evaluation = self.evaluation, None
        if others is None:
            return
        if not others.was_forward and others.fetches <= 1 and not others.is_firm:
            self._undo(others)
            self._evaluations -= 1
        else:
            self._decide_evaluation(others)
            self._close_scope(others, at)

    def _end_training(self, at: int = 0) -> None:
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
            self._undo(own)
            self._epochs -= own.scope is not None
            return
        if not own.is_decided:
            self._decide_training(own)
            if self.evaluation is own:
                self._end_evaluation(at)
                return
        self.training = None
        iteration = tracker.iteration
        if iteration is not None and iteration.accumulates and not iteration.is_by_hand:
            self.left = own, iteration, at
            tracker.closed()
            self._leave(own, iteration.step)
            return
        self._close_step(own)
        self._close_scope(own, at)

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
            iteration.close(self.micro_of)
            own.reached = max(own.reached, iteration.step._until)
            if self._tracker.shared.attends:
                self._tracker.shared.step_over(iteration.called)
            self._close_scope(own, at)

    def _undo(self, some: Pass) -> None:
        """It was no pass at all: what it held hangs on what is around it."""
        scope = some.scope
        for phase in some.held:
            self._tracker.settle(phase)
        if scope is not None:
            scope.drop()
            scope._until = scope._start
            scope.finish()
        self._leave(some)

    def _close_scope(self, some: Pass, at: int) -> None:
        scope = some.scope
        if scope is not None:
            scope._until = max(at, some.reached, scope._start)
            scope.finish()
            if some.is_training:
                self._tracker.shared.epoch_ended(scope)
        self._leave(some)

    def _leave(self, some: Pass, step: Step | None = None) -> None:
        """Let what is around the pass be current, unless somebody else's scope is."""
        current = _get().get(SCOPE_KEY)
        if step is not None and (current is step or current is some.scope):
            _set(some.base)
        if isinstance(current, (Whole, Step)) and (current._until or not current._id):
            _set(some.base)


def _again(some: Pass, iterator: Any) -> bool:
    """Whether an iterator that is known begins anew, as those with persistent workers do."""
    return some.restarts and some.fetches > 0 and getattr(iterator, "_num_yielded", 1) == 0


def _is_idle(some: Pass) -> bool:
    """Whether nothing but its loader keeps an iterator: a loop over it was left."""
    iterator = some.iterator()
    if not (
        getattr(iterator, "_persistent_workers", False)
        or type(iterator).__module__.startswith("torchdata.")
    ):
        return False
    return sys.getrefcount(iterator) <= _KEPT


def _scope_of(context: Any) -> Any:
    return context.get(SCOPE_KEY) or state.session


def by_hand(scope: Any, names: tuple[str, ...]) -> bool:
    """Whether `scope`, or one around it, has one of the names and was opened by hand."""
    while scope._depth:
        if scope._name in names and not isinstance(scope, Phase):
            return True
        scope = scope._above
    return False
