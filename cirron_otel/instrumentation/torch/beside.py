"""Fetches of another iterator while a training pass is open.

The other loader is read beside the pass or within it, evaluates, or takes over. docs/torch.md,
"Passes", has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...sdk.phase import Phase
from ...sdk.state import CONTEXT
from .kinds import FORWARD, NAMES, OPTIMIZER
from .one_pass import Lone, Meeting, Pass, carried, data_of, is_anew, reader, reference_to

if TYPE_CHECKING:
    from .iteration import Iteration
    from .open_passes import OpenPasses
    from .open_step import OpenStep
    from .steps import Steps

_MOST_SUSPENDED = 8


class Beside:
    """Decides about other iterators for the training passes of one thread."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self._suspended: list[tuple[Any, Any]] = []
        """Iterators whose pass was suspended, and the data that took over: weak references."""
        self.aside: Any = None
        """A weak reference to the iterator of a single batch that was fetched before an evaluation
        and not used."""

    # --- a pass begins or goes on ---------------------------------------------------------------

    def began(self, own: Pass, iterator: Any) -> None:
        """A training pass begins; it may be one that was suspended."""
        self.aside = None
        own.yields = reader() is not None
        own.known_data = [data for each, data in self._suspended if each() is iterator]
        self._suspended = [pair for pair in self._suspended if pair[0]() not in (None, iterator)]

    def goes_on(self, own: Pass) -> None:
        """The iterator that makes the steps is fetched from: others were read inside."""
        met = own.met
        if met is None:
            return
        own.remember(met.iterator)
        self.settle(own)
        iteration = self._tracker.iteration
        if iteration is not None and iteration.waits:
            iteration.go_on()

    def returns(self, own: Pass) -> None:
        """The pass's own iterator is fetched from while another makes the steps."""
        lone, own.lone = own.lone, None
        if lone is not None:
            self._close(own, lone)

    def is_left(self, own: Pass, iterator: Any) -> bool:
        """Whether a fetch of `iterator` shows that the first batch was none of the loop."""
        if own.lone is None or own.iterator() is iterator:
            return False
        driver = own.driver()
        return bool(own.lone.over) or driver is None or (driver is iterator and is_anew(iterator))

    # --- another iterator -----------------------------------------------------------------------

    def fetch(self, own: Pass, iterator: Any, context: Any, current: Any) -> None:
        """Another iterator is fetched from while `own` is open."""
        met, iteration = own.met, self._tracker.iteration
        if met is None or met.iterator() is not iterator:
            self._meet(own, iterator, context, current)
        elif iteration is None:
            pass
        elif self._has_stepped(own, met):
            self._take_over(own, iterator, met, context, current)

    def _meet(self, own: Pass, iterator: Any, context: Any, current: Any) -> None:
        tracker = self._tracker
        iteration = tracker.iteration
        if own.restarted is not None and self._is_loop_again(own, iterator):
            return
        own.is_simple = False
        is_known = own.knows(iterator)
        own.met = met = Meeting(iterator, tracker.stepped)
        if iteration is None and own.is_decided and not is_known and own.driver is own.iterator:
            self._open_between(own, met, context, current)
            iteration = tracker.iteration
        if iteration is None:
            return
        met.had_stepped = iteration.was_stepped or met.is_between
        if is_known and not own.was_driven_by(iterator):
            return
        if iteration.micros or own.scope is None or iteration.step._folded is not None:
            return
        met.at = len(iteration.kids)
        iteration.wait()
        tracker.is_plain = False

    def _open_between(self, own: Pass, met: Meeting, context: Any, current: Any) -> None:
        """Open a step, for the time being: there is none, behind an evaluation for one."""
        self._steps.open(own, *self._steps.around(own, context, current))
        met.is_between = self._tracker.iteration is not None

    def settle(self, own: Pass) -> None:
        """What was read beside the pass was no step of it."""
        met, own.met = own.met, None
        iteration = self._tracker.iteration
        if met is None or not met.is_between or iteration is None:
            return
        if not (iteration.was_stepped or iteration.was_backward):
            self._give_up(own, iteration)

    def _give_up(self, own: Pass, iteration: Any) -> None:
        self._tracker.closed()
        own.reached = max([own.reached, *[phase._until for phase in iteration.kids]])
        iteration.dissolve(iteration.step._above)
        own.steps -= 1
        CONTEXT.set(carried(CONTEXT.get(), own.within))

    def _has_stepped(self, own: Pass, met: Meeting) -> bool:
        """Whether the batch of the other iterator was trained on."""
        iteration: Any = self._tracker.iteration
        if not iteration.was_stepped:
            if not (iteration.was_backward and self._steps.is_changed(own)):
                return False
            iteration.stepped(None)
            return True
        return not met.had_stepped or self._tracker.stepped > met.stepped

    def _take_over(
        self, own: Pass, iterator: Any, met: Meeting, context: Any, current: Any
    ) -> None:
        """The other iterator makes the steps from its first fetch on."""
        passes, tracker = self._passes, self._tracker
        iteration: Any = tracker.iteration
        is_divisible = met.at is not None and iteration.step._collected is None
        is_turned = own.lone is None and own.driver is not own.iterator
        if own.lone is not None:
            self.keep(own)
        if is_divisible and own.fetches == 1 and not is_turned and not met.had_stepped:
            self._suspend_first(own, iteration, met)
            if own.is_same_loader(iterator):
                self.keep(own)
            self._steps.open(own, own.within, own.scope)
        elif is_divisible and met.had_stepped and not is_turned and self._is_new(own, iterator):
            self._begin_anew(own, iterator, met)
        else:
            if is_divisible and met.had_stepped:
                self._divide(own, iteration.cut(met.at))
            self._turn(own, met)
            passes.boundary(own, context, current)

    def _turn(self, own: Pass, met: Meeting) -> None:
        own.driver, own.met, own.is_simple = met.iterator, None, False
        own.remember(met.iterator)
        own.drivers = [*(each for each in own.drivers if each() is not None), met.iterator]

    def _divide(self, own: Pass, kids: list[Phase]) -> None:
        """These phases of the open step are a step of the same epoch by themselves."""
        steps, iteration = self._steps, self._tracker.iteration
        if iteration is not None and not iteration.kids:
            self._give_up(own, iteration)
        else:
            steps.close(own)
        steps.open(own, own.within, own.scope)
        self._fill(kids)

    def _is_new(self, own: Pass, iterator: Any) -> bool:
        """Whether neither the iterator nor its data was trained on within this pass."""
        data = data_of(iterator)
        return not (own.knows(iterator) or any(each() is data for each in own.known_data))

    # --- the first batch of a pass --------------------------------------------------------------

    def _suspend_first(self, own: Pass, iteration: Any, met: Meeting) -> None:
        """The first step is over; whether the first batch is a part of it is not known yet."""
        own.lone = Lone(iteration, met.at or 0)
        self._turn(own, met)
        own.reached = max(own.reached, iteration.until)
        if iteration.memory is not None:
            iteration.memory.end(iteration.step)
            iteration.memory = None
        self._tracker.closed()
        if self._tracker.shared.attends:
            self._tracker.shared.step_over()

    def keep(self, own: Pass) -> None:
        """The first batch was looked at before the loop: the other iterator is the pass's own."""
        lone, own.lone = own.lone, None
        scope = own.scope
        if lone is None or scope is None:
            return
        iteration = lone.iteration
        kids = iteration.cut(lone.count)
        for phase in iteration.kids:
            phase.move(scope._above)
            self._tracker.settle(phase)
        iteration.kids = kids
        iteration.step._start = scope._start = kids[0]._start
        self._close(own, lone)
        other = own.driver()
        if other is not None:
            own.adopt(other, self._passes.gone())
        else:
            own.iterator = own.driver

    def _close(self, own: Pass, lone: Lone) -> None:
        iteration = lone.iteration
        iteration.close(self._steps.micro_of)
        own.reached = max(own.reached, iteration.step._until)

    def end_lone(self, own: Pass) -> None:
        """The loop is over, and the first batch was none of it."""
        over = own.lone.over if own.lone is not None else 0
        self.keep(own)
        self._passes.end_training(over)

    def drop_single(self, own: Pass) -> None:
        """The pass is a single batch that was not trained on, and there is another pass now."""
        tracker, passes = self._tracker, self._passes
        iteration = tracker.iteration
        tracker.closed()
        passes.training = None
        if iteration is not None:
            iteration.dissolve(iteration.step._above)
        own.undo()
        passes.uncount_epoch(own)

    def set_aside(self, own: Pass) -> None:
        """An evaluation begins behind the first fetch of a pass."""
        reference = None if own.was_forward else own.iterator
        self.drop_single(own)
        self.aside = reference

    def take_up(self) -> None:
        """A model is trained behind the evaluation: the pass begins with the batch set aside."""
        iterator, self.aside = self.aside(), None
        if iterator is None:
            return
        self._passes.begin_training(iterator)
        own = self._passes.training
        if own is not None:
            own.pending = None

    # --- another pass ---------------------------------------------------------------------------

    def _begin_anew(self, own: Pass, iterator: Any, met: Meeting) -> None:
        """The other iterator has a pass of its own; this one is suspended."""
        passes, tracker = self._passes, self._tracker
        iteration: Any = tracker.iteration
        kids = iteration.cut(met.at)
        if not iteration.kids:
            self._give_up(own, iteration)
        own.met = None
        self._suspended = [
            *self._suspended[-_MOST_SUSPENDED:],
            (own.iterator, reference_to(data_of(iterator))),
        ]
        inner = own.iterator
        passes.end_training()
        passes.begin_training(iterator)
        other = passes.training
        if other is None:
            return
        other.pending = None
        other.remember(inner)
        other.drivers = [inner]
        if other.scope is not None:
            other.scope._start = kids[0]._start
        self._fill(kids)
        other.fetches, other.is_decided = 2, True
        self._steps.close(other)
        self._steps.open(other, other.within, other.scope)

    def _fill(self, kids: list[Phase]) -> None:
        """These phases, which come before, are in the step that was just opened."""
        iteration = self._tracker.iteration
        if iteration is None:
            for phase in kids:
                self._tracker.settle(phase)
            return
        iteration.step._start = kids[0]._start
        for phase in kids:
            phase.move(iteration.step)
            iteration.add(phase)
            iteration.was_stepped |= phase._name == NAMES[OPTIMIZER]
            iteration.called |= phase._name == NAMES[FORWARD]

    def _is_loop_again(self, own: Pass, iterator: Any) -> bool:
        """Whether the loader inside, which begins again, is the loop: a generator reads the other.

        The pass of the other is over then, and the loop's begins.
        """
        data, own.restarted = own.restarted, None
        iteration = self._tracker.iteration
        if (
            data() is not data_of(iterator)
            or not own.yields
            or reader() is not None
            or iteration is None
            or not iteration.is_held
            or iteration.called
            or own.scope is None
        ):
            return False
        kids = iteration.cut(0)
        inner = own.iterator
        self._tracker.closed()
        iteration.dissolve(own.scope)
        self._passes.end_training()
        self._passes.begin_training(iterator)
        other = self._passes.training
        if other is not None:
            other.remember(inner)
            if kids and other.scope is not None:
                other.scope._start = kids[0]._start
                self._fill(kids)
        return True

    def evaluates(self, own: Pass, iterator: Any) -> bool:
        """Whether the batch of another iterator was evaluated: then that is an evaluation."""
        met, tracker = own.met, self._tracker
        if met is None or met.at is None or met.iterator() is not iterator:
            return False
        if not met.is_evaluated or tracker.stepped != met.stepped or tracker.iteration is None:
            return False
        self._evaluate(own, iterator, tracker.iteration, met.at)
        return True

    def _evaluate(self, own: Pass, iterator: Any, iteration: Iteration, at: int) -> None:
        passes = self._passes
        kids = iteration.cut(at)
        own.met = None
        if own.is_single:
            self.drop_single(own)
        elif not iteration.kids:
            self._give_up(own, iteration)
        passes.begin_evaluation(iterator)
        others: Any = passes.evaluation
        others.scope._start = kids[0]._start
        for phase in kids:
            phase.move(others.scope)
            others.keep(phase)
        others.was_forward = True
        others.fetches += 1
        others.decide()

    # --- ends -----------------------------------------------------------------------------------

    def exhausted(self, own: Pass, iterator: Any, at: int) -> None:
        """Another iterator than the pass's own has nothing left."""
        if own.driver() is iterator:
            if own.lone is not None:
                own.lone.over = at
        elif own.knows(iterator) or (own.met is not None and own.met.iterator() is iterator):
            own.restarted = reference_to(data_of(iterator))

    def called(self, own: Pass, *, is_trainable: bool) -> None:
        """A model is called."""
        if own.met is not None:
            own.met.was_forward = True
            own.met.was_trainable = own.met.was_trainable or is_trainable
        if own.lone is not None and own.lone.over:
            self.end_lone(own)

    def trains(self, own: Pass) -> None:
        """A backward or an optimizer's step begins."""
        if own.met is not None:
            own.met.was_backward = True
        if own.lone is not None and own.lone.over:
            self.end_lone(own)
