"""Assign batches to steps if they are fetched before the previous batch is used.

This happens if gradient accumulation first fetches all batches of a step, with prefetchers, and in
loops that skip batches. docs/torch.md, "Steps", defines the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...tracing.clock import now
from ...tracing.phase import Phase, begin
from ...tracing.state import CONTEXT
from ..iteration import Iteration, carry_over, current_scope, new_step
from .kinds import LOAD, NAMES
from .one_pass import Pass, reading_frame
from .pending import FetchedBatch, UnusedBatches

if TYPE_CHECKING:
    from .open_step import OpenPasses, OpenStep
    from .steps import Steps

MOST = 64
"""Number of batches that a pass may fetch before it uses the first batch."""
_get = CONTEXT.get


class Prefetching:
    """Assigns fetches to the steps that use them, for the training passes of one thread."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps

    # --- fetches --------------------------------------------------------------------------------

    def stays(self, loader_pass: Pass, unused: UnusedBatches) -> bool:
        """Return whether a fetch belongs to the open step: the previous batch was not used yet."""
        unused.is_expected = True
        if unused.used or not (unused.batches or unused.is_flat):
            return False
        if len(unused.batches) >= MOST and not unused.is_ahead:
            self._flatten(loader_pass, unused)
        if unused.is_flat:
            loader_pass.reached = now()
            return True
        return self._tracker.iteration is not None

    def fetched(self, load: Phase, batch: Any) -> None:
        """Record the batch that a fetch returned."""
        loader_pass = self._passes.evaluation or self._passes.training
        unused = loader_pass.unused if loader_pass is not None else None
        if loader_pass is None or unused is None or not unused.is_expected:
            return
        unused.is_expected = False
        if unused.is_flat:
            loader_pass.reached = max(loader_pass.reached, load._until)
            return
        unused.used = False
        unused.batches = [*unused.batches[-MOST:], FetchedBatch(load, batch)]

    def _flatten(self, loader_pass: Pass, unused: UnusedBatches) -> None:
        """Attach the fetches of the pass to the epoch, because no batch has been used so far."""
        unused.is_flat, unused.batches = True, []
        self.give_up(loader_pass)

    def give_up(self, loader_pass: Pass) -> None:
        """Dissolve the open step and move its phases to the step's parent."""
        iteration = self._tracker.iteration
        if iteration is None:
            return
        self._tracker.closed()
        loader_pass.reached = max(
            [loader_pass.reached, *[phase._until for phase in iteration.children]]
        )
        loader_pass.steps -= 1
        iteration.dissolve(iteration.step._above)
        CONTEXT.set(carry_over(_get(), loader_pass.inner_context))

    def defers_step(self, loader_pass: Pass) -> bool:
        """Return whether an evaluation begins before the open step's batch was used.

        In that case, move the fetch to the epoch; the step then begins when the batch is used.
        """
        iteration = self._tracker.iteration
        if (
            iteration is None
            or loader_pass.unused is not None
            or loader_pass.is_manual
            or iteration.micros
        ):
            return False
        children = iteration.children
        if len(children) != 1 or children[0]._name != NAMES[LOAD]:
            return False
        if iteration.step._collected is not None or iteration.was_stepped:
            return False
        self.give_up(loader_pass)
        loader_pass.unused = UnusedBatches()
        loader_pass.unused.batches = [FetchedBatch(children[0], None)]
        return True

    # --- uses -----------------------------------------------------------------------------------

    def training_begins(self, loader_pass: Pass, unused: UnusedBatches) -> None:
        """Handle the start of a backward pass or an optimizer step."""
        if not unused.used or self._tracker.iteration is None:
            self.use(loader_pass, unused, None, is_trainable=True)

    def use(
        self, loader_pass: Pass, unused: UnusedBatches, arguments: Any, *, is_trainable: bool
    ) -> None:
        """Assign a use of a batch (model call, backward pass or optimizer step) to a step."""
        if loader_pass.is_manual:
            loader_pass.unused = None
        elif not loader_pass.is_training:
            self._use_undecided(loader_pass, unused, arguments)
        elif not unused.used:
            unused.used = unused.was_used = True
            self._use_first(loader_pass, unused, arguments)
        else:
            self._use_next(loader_pass, unused, arguments, is_trainable)

    def _use_first(self, loader_pass: Pass, unused: UnusedBatches, arguments: Any) -> None:
        """Decide which batch is used, at the first use since a fetch."""
        iteration, batches = self._tracker.iteration, unused.batches
        is_only = len(batches) <= 1 and not loader_pass.over
        if not unused.is_ahead and (is_only or unused.is_flat):
            loader_pass.unused = None
        else:
            index = unused.find(arguments)
            earlier = [index for index, batch in enumerate(batches[:-1]) if batch.is_alive]
            if not earlier and not unused.is_ahead and iteration is not None:
                self._skip(loader_pass, iteration, batches)
                loader_pass.unused = None
            elif batches:
                unused.is_ahead = True
                unused.take([*earlier, len(batches) - 1][0] if index is None else index)
        if iteration is None:
            self._open(loader_pass)

    def _use_undecided(self, loader_pass: Pass, unused: UnusedBatches, arguments: Any) -> None:
        """Decide which batch is used, in a pass that is or may turn out to be an evaluation."""
        index = unused.find(arguments)
        if loader_pass.over:
            if index is None and not unused.is_current(arguments):
                if not unused.batches:
                    self._passes.end_evaluation()
                    return
                index = 0
            if index is not None:
                unused.take(index)
            return
        alive = [index for index, batch in enumerate(unused.batches) if batch.is_alive]
        if unused.used or len(alive) <= 1:
            if not unused.is_ahead:
                loader_pass.unused = None
            return
        unused.used = unused.was_used = unused.is_ahead = True
        unused.take(alive[0] if index is None else index)

    def _use_next(
        self, loader_pass: Pass, unused: UnusedBatches, arguments: Any, is_trainable: bool
    ) -> None:
        """Decide whether another use since a fetch is of the same batch or of a different one."""
        tracker = self._tracker
        iteration = tracker.iteration
        is_between = iteration is None or iteration.was_stepped
        index = unused.find(arguments)
        if index is None:
            if unused.is_current(arguments) and iteration is not None:
                return
            if loader_pass.over and is_between and not (is_trainable and unused.batches):
                self._passes.end_training()
                return
            follows = iteration is None or (iteration.was_backward and not iteration.was_stepped)
            if not unused.batches or not follows or not is_trainable:
                return
            index = 0
        unused.take(index)
        if iteration is None or iteration.was_stepped:
            self._steps.close(loader_pass)
            self._open(loader_pass)
        elif iteration.was_backward:
            iteration.next_micro(self._steps.micro_of)
            tracker.into(iteration.micro)

    def _open(self, loader_pass: Pass) -> None:
        """Open a step that begins with the use of a batch."""
        inner_context = carry_over(_get(), loader_pass.inner_context)
        self._steps.open(
            loader_pass,
            inner_context,
            loader_pass.scope or current_scope(loader_pass.outer_context),
        )

    def _skip(self, loader_pass: Pass, iteration: Iteration, batches: list[FetchedBatch]) -> None:
        """Make each fetch except the last a separate step: its batch was never used."""
        step = iteration.step
        for batch in batches[1:]:
            if batch.load not in iteration.children:
                continue
            remaining = iteration.cut(iteration.children.index(batch.load))
            skipped_step = new_step()
            begin(
                skipped_step, "step", step._index, None, step._above, _get(), now(), is_fixed=True
            )
            skipped = Iteration(skipped_step, self._tracker.settle)
            skipped_step._start = step._start
            for phase in iteration.children:
                phase.move(skipped_step)
                skipped.add(phase)
            skipped.close(self._steps.micro_of)
            iteration.children = remaining
            step._start = remaining[0]._start
            step._index = loader_pass.steps
            loader_pass.steps += 1
        iteration.is_odd = True

    # --- ends -----------------------------------------------------------------------------------

    def exhausted(self, loader_pass: Pass, at: int) -> bool:
        """Return whether the pass continues after its iterator is exhausted.

        It continues while a batch is unused. If none was used so far, it continues only if a
        generator reads the loader: a loop that has read all batches does not train on them.
        """
        unused = loader_pass.unused
        if unused is None or unused.is_flat:
            return False
        if not unused.was_used and reading_frame() is None:
            return False
        unused.batches = [batch for batch in unused.batches if batch.is_alive]
        if unused.batches:
            loader_pass.over = loader_pass.over or at
        return bool(unused.batches)

    def is_used_later(self, evaluation: Pass, at: int) -> bool:
        """Return whether an evaluation, which has used a batch, continues after its iterator."""
        unused = evaluation.unused
        return unused is not None and unused.was_used and self.exhausted(evaluation, at)

    def is_gone(self, loader_pass: Pass) -> bool:
        """Return whether no batch of an exhausted pass was used, and none is left."""
        unused = loader_pass.unused
        if unused is None or unused.was_used:
            return False
        unused.batches = [batch for batch in unused.batches if batch.is_alive]
        return not unused.batches

    def is_done(self, evaluation: Pass) -> bool:
        """Return whether all batches of an exhausted evaluation were used."""
        unused = evaluation.unused
        return unused is None or not any(batch.is_alive for batch in unused.batches)

    def is_awaited(self, loader_pass: Pass) -> bool:
        """Return whether a pass with a freed iterator has a batch that is unused or in use."""
        iteration, unused = self._tracker.iteration, loader_pass.unused
        if unused is None or not loader_pass.over:
            return False
        return bool(unused.batches) or (iteration is not None and not iteration.was_stepped)
