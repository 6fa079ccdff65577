"""Decide whether a batch adds to the gradients of the batch before it, if no optimizer steps.

It does not if the gradients were removed in between, or the weights were changed: the batch then
begins a step. Its fetch does not show this yet, but its backward pass does.
docs/torch.md, "Steps", defines the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .one_pass import Pass

if TYPE_CHECKING:
    from ..iteration import Iteration
    from .open_step import OpenPasses, OpenStep
    from .steps import Steps


class NextBatches:
    """Decides about batches of one thread's passes in which no optimizer has stepped."""

    def __init__(self, tracker: OpenStep, passes: OpenPasses, steps: Steps) -> None:
        self._tracker, self._passes, self._steps = tracker, passes, steps
        self._ends: list[tuple[Any, Any, bool]] = []
        """Scopes that were open before an undecided fetch, their ends on a device's stream, and
        whether each is the step."""

    def is_updated(self, training: Pass) -> bool:
        """Return whether the weights were changed, or the gradients removed, since the backward.

        Only if no optimizer has stepped in the pass.
        """
        return self._steps.is_changed(training) or self._are_removed()

    def _are_removed(self) -> bool:
        tracker = self._tracker
        return tracker.watches_gradients and tracker.gradients.are_removed()

    def waits(self, training: Pass, iteration: Iteration) -> bool:
        """Return whether the fetch that begins now stays undecided, in the open step.

        Called if the last batch had a backward pass, and nothing has used its gradients.
        """
        if training.undecided_from is not None:
            self.decide(training, adds=True)
        if (
            not self._tracker.watches_gradients
            or not iteration.was_backward
            or iteration.has_manual_step
        ):
            return False
        training.undecided_from = len(iteration.children)
        self._keep_ends(iteration)
        iteration.wait()
        self._tracker.is_plain = False
        return True

    def backward_begins(self, training: Pass) -> None:
        """Decide: the backward pass that begins now shows whether gradients are left."""
        iteration = self._tracker.iteration
        if iteration is None:
            training.undecided_from = None
            return
        is_step = self.is_updated(training) and self._is_divisible(training, iteration)
        training.removes_gradients = is_step
        self.decide(training, adds=not is_step)

    def fetch_begins(self, training: Pass, iteration: Iteration) -> None:
        """Decide: the batch had no backward pass, and its gradients may have been removed."""
        is_announced = self._tracker.accumulating is not None
        is_step = not is_announced and self.is_updated(training)
        self.decide(training, adds=not (is_step and self._is_divisible(training, iteration)))

    def _is_divisible(self, training: Pass, iteration: Iteration) -> bool:
        """Return whether no scope of the program is in the step after the undecided fetch."""
        at, scopes = training.undecided_from, iteration.step._collected
        if scopes is None or at is None or at >= len(iteration.children):
            return scopes is None
        return not scopes.open and scopes.last <= iteration.children[at]._start

    def decide(self, training: Pass, *, adds: bool) -> None:
        """Move the undecided phases into a micro step if their batch `adds`, else into a step."""
        at, training.undecided_from = training.undecided_from, None
        tracker = self._tracker
        iteration = tracker.iteration
        if at is None or iteration is None:
            return
        children = iteration.cut(at)
        self._restore_ends(adds=adds)
        if not adds:
            iteration.stepped(None)
            tracker.into(None)
            self._steps.begin_with(training, children)
            return
        iteration.next_micro(self._steps.micro_of)
        iteration.is_held = iteration.is_waiting = False
        iteration.held_from = 0
        tracker.into(iteration.micro)
        micro = iteration.micro
        if micro is not None and children:
            micro._start = children[0]._start
            for phase in children:
                phase.move(micro)
                iteration.add(phase)
        is_usual = training.is_decided and training.unused is None
        tracker.is_plain = is_usual and tracker.context is not None

    def _keep_ends(self, iteration: Iteration) -> None:
        for _, end, _ in self._ends:
            end.release()
        scopes = [each for each in (iteration.step, iteration.micro) if each is not None]
        self._ends = [
            (each, each._stamps[1].acquire(), each is iteration.step)
            for each in scopes
            if each._stamps is not None
        ]

    def _restore_ends(self, *, adds: bool) -> None:
        """Leave the undecided batch out of the micro step, and of the step unless it `adds`."""
        ends, self._ends = self._ends, []
        for scope, end, is_step in ends:
            stamps = scope._stamps
            if stamps is None or (is_step and adds):
                end.release()
            else:
                stamps[1].release()
                stamps[1] = end

    def pass_ends(self, training: Pass) -> None:
        """Decide about the last batches of a pass."""
        iteration, at = self._tracker.iteration, training.undecided_from
        if iteration is None:
            return
        if at is not None and at < len(iteration.children):
            is_removed = training.removes_gradients or self._are_removed()
            is_step = is_removed and self._is_divisible(training, iteration)
            self.decide(training, adds=not is_step)
            iteration = self._tracker.iteration
        training.undecided_from = None
        if (
            iteration is not None
            and iteration.accumulates
            and (training.removes_gradients or self.is_updated(training))
        ):
            iteration.stepped(None)
            self._tracker.into(None)
