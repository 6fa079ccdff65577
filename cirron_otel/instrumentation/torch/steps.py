"""The steps of training passes: opened before a fetch, closed by the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.context.context import Context

from ...sdk.clock import now
from ...sdk.phase import Phase, Step, begin, make_current
from ...sdk.state import CONTEXT, SCOPE_KEY, SPAN_KEY, state
from ...sdk.traces import UNIT_DEPTH
from ...sdk.unwinding import Place
from .iteration import Iteration, new_step
from .one_pass import Pass, scope_of, without_step

if TYPE_CHECKING:
    from .open_passes import OpenPasses
    from .open_step import OpenStep

_get = CONTEXT.get
_set = CONTEXT.set
_new = Step.__new__


class Steps:
    """The steps of one thread's passes."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses) -> None:
        self._tracker, self._passes = tracker, passes

    def turn_over(self, iterator: Any) -> bool:  # noqa: PLR0915 - written out, see below
        """Close one step and open the next, where there is nothing to be decided; whether so.

        It does what `close` and `open` do, written out: with other things in the processor's
        cache between two steps, every function that is gone through costs. It may raise.
        """
        begun = now()
        own, tracker = self._passes.training, self._tracker
        iteration: Any = tracker.iteration
        step: Any = tracker.step
        context = _get()
        if (
            context is not tracker.context
            or own is None
            or own.iterator() is not iterator
            or not own.is_simple
            or not iteration.was_stepped
            or iteration.is_odd
            or step._collected is not None
            or state.special
        ):
            return False
        start = step._start
        until = iteration.until or start
        step._rest = until - start - iteration.covered
        step._end = step._until = own.reached = until
        own.fetches += 1
        if tracker.shared.attends:
            tracker.shared.step_over()
        above: Any = step._above
        following = _new(Step)
        following._name, following._index = "step", own.steps
        own.steps += 1
        following._above, following._depth = above, step._depth
        following._attrs = following._more = following._token = None
        following._stamps = following._collected = following._folded = following._rest = None
        following._is_known = None
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
        iteration.step, iteration.kids, iteration.optimizers = following, [], ()
        iteration.is_held = True
        iteration.covered = iteration.until = 0
        iteration.called = iteration.was_backward = iteration.was_stepped = False
        every = tracker.shared.detail_every
        if every:
            _fold(tracker, following, iteration, every)
        else:
            following._is_detailed = None
        following._start = begins = now()
        buffers.put(following)
        above._overhead += begins - begun
        return True

    def open(self, own: Pass, context: Any, above: Any) -> None:
        """Open the next step of a pass, below `above`."""
        if own.by_hand:
            _set(context)
            return
        tracker = self._tracker
        step = new_step()
        begin(step, "step", own.steps, None, above, context, now())
        own.steps += 1
        if tracker.shared.detail_every:
            step._is_detailed = tracker.steps_begun % tracker.shared.detail_every == 0
            tracker.steps_begun += 1
        iteration = Iteration(step, tracker.settle, tracker.shared.memory)
        tracker.opened(iteration, make_current(step, context))
        is_usual = own.is_decided and own.pending is None
        tracker.is_plain = is_usual and tracker.context is not None

    def close(self, own: Pass, left: Place | None = None) -> None:
        """Close the step that is open, if there is one."""
        tracker = self._tracker
        iteration = tracker.iteration
        if iteration is None:
            return
        tracker.closed()
        if iteration.is_by_hand:
            iteration.dissolve(iteration.step._above)
            own.by_hand = True
        else:
            iteration.close(self.micro_of, left)
            own.reached = max(own.reached, iteration.step._until)
            if tracker.shared.attends:
                tracker.shared.step_over()
        context = _get()
        if scope_of(context) is iteration.step:
            _set(without_step(context, iteration.step, own.within))

    def undo_fetch(self, load: Phase) -> None:
        """There was no batch: the step, or micro step, that was opened for it is none."""
        own, tracker = self._passes.training, self._tracker
        iteration = tracker.iteration
        if own is None or iteration is None:
            return
        if iteration.micro is not None and load._above is iteration.micro and not iteration.kids:
            iteration.undo_micro()
            tracker.into(None)
        elif load._above is iteration.step and not iteration.kids and not iteration.was_stepped:
            tracker.closed()
            own.steps -= 1
            tracker.steps_begun -= 1
            iteration.dissolve(iteration.step._above)
            _set(own.within)

    def around(self, own: Pass, context: Any, current: Any) -> tuple[Any, Any]:
        """Context and scope around the next step, where the loop's own scopes are not current."""
        above = current
        while above._depth:
            if above is own.scope:
                return own.within, own.scope
            above = above._above
        return context, current

    def is_changed(self, own: Pass) -> bool:
        """Whether somebody changed the weights by hand since the last batch.

        Looked for only where no optimizer has stepped in the pass: those change them, too.
        """
        tracker = self._tracker
        before, own.version = own.version, tracker.shared.version()
        return tracker.stepped == own.stepped and before not in (None, own.version)

    def micro_of(self, step: Step, index: int) -> Step:
        """A micro step of a step."""
        micro = new_step()
        begin(micro, "micro_step", index, None, step, _get(), now(), is_fixed=True)
        return micro

    def yield_step(self) -> None:
        """A scope by hand is the step: there is to be no other."""
        iteration = self._tracker.iteration
        self._tracker.closed()
        if self._passes.training is not None:
            self._passes.training.by_hand = True
        if iteration is not None:
            iteration.dissolve(iteration.step._above)


def _fold(tracker: OpenStep, step: Any, iteration: Iteration, every: int) -> None:
    """Record the phases of every `every`th step, and fold those of the others into it."""
    step._is_detailed = is_detailed = tracker.steps_begun % every == 0
    tracker.steps_begun += 1
    tracker.folds = not is_detailed and tracker.clock is None
    if tracker.folds:
        step._folded = iteration.kids
