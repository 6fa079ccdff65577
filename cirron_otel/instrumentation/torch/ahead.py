"""Batches that are fetched before the one before them is used.

Accumulation that fetches the batches of a step first, prefetchers, and loops that skip batches.
docs/torch.md, "Steps", has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...sdk.clock import now
from ...sdk.phase import Phase, begin
from ...sdk.state import CONTEXT
from .iteration import Iteration, new_step
from .kinds import LOAD, NAMES
from .one_pass import Pass, carried, scope_of
from .pending import Batch, Pending

if TYPE_CHECKING:
    from .open_passes import OpenPasses
    from .open_step import OpenStep
    from .steps import Steps

MOST = 64
"""Batches of a pass that may be fetched before the first is used."""
_get = CONTEXT.get


class Uses:
    """Assigns fetches to the steps that use them, for the training passes of one thread."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps

    # --- fetches --------------------------------------------------------------------------------

    def stays(self, own: Pass, pending: Pending) -> bool:
        """Whether a fetch belongs to the open step: the batch before was not used yet."""
        pending.is_expected = True
        if pending.used or not (pending.batches or pending.is_flat):
            return False
        if len(pending.batches) >= MOST and not pending.is_ahead:
            self._flatten(own, pending)
        if pending.is_flat:
            own.reached = now()
            return True
        return self._tracker.iteration is not None

    def fetched(self, load: Phase, batch: Any) -> None:
        """A fetch has given a batch."""
        own = self._passes.evaluation or self._passes.training
        pending = own.pending if own is not None else None
        if own is None or pending is None or not pending.is_expected:
            return
        pending.is_expected = False
        if pending.is_flat:
            own.reached = max(own.reached, load._until)
            return
        pending.used = False
        pending.batches = [*pending.batches[-MOST:], Batch(load, batch)]

    def _flatten(self, own: Pass, pending: Pending) -> None:
        """The pass only loads, so far: its fetches hang on the epoch."""
        pending.is_flat, pending.batches = True, []
        self.give_up(own)

    def give_up(self, own: Pass) -> None:
        """The open step is none: its phases hang on what is around it."""
        iteration = self._tracker.iteration
        if iteration is None:
            return
        self._tracker.closed()
        own.reached = max([own.reached, *[phase._until for phase in iteration.kids]])
        own.steps -= 1
        iteration.dissolve(iteration.step._above)
        CONTEXT.set(carried(_get(), own.within))

    def waits(self, own: Pass) -> bool:
        """Whether the batch of the open step was not used yet, though an evaluation begins.

        The fetch hangs on the epoch then, and the step begins with the use.
        """
        iteration = self._tracker.iteration
        if iteration is None or own.pending is not None or own.by_hand or iteration.micros:
            return False
        kids = iteration.kids
        if len(kids) != 1 or kids[0]._name != NAMES[LOAD]:
            return False
        if iteration.step._collected is not None or iteration.was_stepped:
            return False
        self.give_up(own)
        own.pending = Pending()
        own.pending.batches = [Batch(kids[0], None)]
        return True

    # --- uses -----------------------------------------------------------------------------------

    def trains(self, own: Pass, pending: Pending) -> None:
        """A backward or an optimizer's step begins."""
        if not pending.used or self._tracker.iteration is None:
            self.use(own, pending, None, is_trainable=True)

    def use(self, own: Pass, pending: Pending, arguments: Any, *, is_trainable: bool) -> None:
        """A model is called, or a backward begins, in a pass whose fetches are followed."""
        if own.by_hand:
            own.pending = None
        elif not own.is_training:
            self._use_undecided(own, pending, arguments)
        elif not pending.used:
            pending.used = pending.was_used = True
            self._use_first(own, pending, arguments)
        else:
            self._use_next(own, pending, arguments, is_trainable)

    def _use_first(self, own: Pass, pending: Pending, arguments: Any) -> None:
        """The first use since a fetch."""
        iteration, batches = self._tracker.iteration, pending.batches
        is_only = len(batches) <= 1 and not own.over
        if not pending.is_ahead and (is_only or pending.is_flat):
            own.pending = None
        else:
            found = pending.find(arguments)
            earlier = [index for index, batch in enumerate(batches[:-1]) if batch.is_alive]
            if not earlier and not pending.is_ahead and iteration is not None:
                self._skip(own, iteration, batches)
                own.pending = None
            elif batches:
                pending.is_ahead = True
                pending.take([*earlier, len(batches) - 1][0] if found is None else found)
        if iteration is None:
            self._open(own)

    def _use_undecided(self, own: Pass, pending: Pending, arguments: Any) -> None:
        """A use in what may still turn out to be an evaluation."""
        found = pending.find(arguments)
        alive = [index for index, batch in enumerate(pending.batches) if batch.is_alive]
        if pending.used or len(alive) <= 1:
            own.pending = None
            return
        pending.used = pending.was_used = pending.is_ahead = True
        pending.take(alive[0] if found is None else found)

    def _use_next(self, own: Pass, pending: Pending, arguments: Any, is_trainable: bool) -> None:
        """A further use since a fetch: of the same batch, or of one that was fetched before."""
        tracker = self._tracker
        iteration = tracker.iteration
        is_between = iteration is None or iteration.was_stepped
        found = pending.find(arguments)
        if found is None:
            if pending.is_current(arguments) and iteration is not None:
                return
            if own.over and is_between and not (is_trainable and pending.batches):
                self._passes.end_training()
                return
            follows = iteration is None or (iteration.was_backward and not iteration.was_stepped)
            if not pending.batches or not follows or not is_trainable:
                return
            found = 0
        pending.take(found)
        if iteration is None or iteration.was_stepped:
            self._steps.close(own)
            self._open(own)
        elif iteration.was_backward:
            iteration.next_micro(self._steps.micro_of)
            tracker.into(iteration.micro)

    def _open(self, own: Pass) -> None:
        """Open a step that begins with a use."""
        within = carried(_get(), own.within)
        self._steps.open(own, within, own.scope or scope_of(own.base))

    def _skip(self, own: Pass, iteration: Iteration, batches: list[Batch]) -> None:
        """The batches before the last are gone without a use: each fetch is a step by itself."""
        step = iteration.step
        for batch in batches[1:]:
            if batch.load not in iteration.kids:
                continue
            rest = iteration.cut(iteration.kids.index(batch.load))
            made = new_step()
            begin(made, "step", step._index, None, step._above, _get(), now(), is_fixed=True)
            skipped = Iteration(made, self._tracker.settle)
            made._start = step._start
            for phase in iteration.kids:
                phase.move(made)
                skipped.add(phase)
            skipped.close(self._steps.micro_of)
            iteration.kids = rest
            step._start = rest[0]._start
            step._index = own.steps
            own.steps += 1
        iteration.is_odd = True

    # --- ends -----------------------------------------------------------------------------------

    def exhausted(self, own: Pass, at: int) -> bool:
        """Whether the pass goes on though its iterator is exhausted: a batch waits to be used."""
        pending = own.pending
        if pending is None or pending.is_flat:
            return False
        pending.batches = [batch for batch in pending.batches if batch.is_alive]
        if pending.batches:
            own.over = own.over or at
        return bool(pending.batches)

    def is_awaited(self, own: Pass) -> bool:
        """Whether a pass whose iterator is gone has batches left, or one in use."""
        iteration, pending = self._tracker.iteration, own.pending
        if pending is None or not own.over:
            return False
        return bool(pending.batches) or (iteration is not None and not iteration.was_stepped)
