"""The phases, steps and passes of one thread, as the hooks and other frameworks' loops use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...tracing.phase import Phase
from .kinds import EPOCHS, FORWARD, LOAD, NO_FORWARD, OPTIMIZER
from .open_phases import OpenPhases

if TYPE_CHECKING:
    from ..training_loop import TrainingLoop


class _Untrained:
    """The model of a call without gradients, as the passes see it."""

    training = False


_UNTRAINED = _Untrained()


class Tracker(OpenPhases):
    """The phases, steps and passes of one thread; only `before_fetch` may raise."""

    __slots__ = ()

    # --- loops of other frameworks (`training_loop.StepEngine`) ----------------------------------

    def loop_begins(self, loop: TrainingLoop) -> None:
        """End the passes and steps that were inferred, and leave steps to `loop`."""
        if self.open is None:
            self.passes.loop_begins()
        self.loop = loop

    def loop_ends(self) -> None:
        """Infer passes and steps again."""
        self.loop = None

    def turn_over(self) -> bool:
        """Close the open step and open the next; return False if a decision is needed."""
        return self.steps.turn_over(None)

    def next_number(self, name: str) -> int:
        """Return the number of the next epoch or evaluation of this thread."""
        numbers = self.passes.numbers
        if name in EPOCHS:
            numbers.epochs += 1
            return numbers.epochs - 1
        numbers.evaluations += 1
        return numbers.evaluations - 1

    def step_ended(self) -> None:
        """Poll the device at the end of a step."""
        self.torch_state.step_ended()

    def is_detailed(self) -> bool | None:
        """Return whether the next step's inside is recorded; None if every step's is."""
        every = self.torch_state.detail_every
        if not every:
            return None
        self.steps_begun += 1
        return (self.steps_begun - 1) % every == 0

    def accumulates(self, is_accumulating: bool, *, crosses: bool) -> None:
        """Record whether the open step's gradients wait for another batch.

        With `crosses`, that batch may belong to the next pass over the loader.
        """
        self.accumulating = self.step if is_accumulating else None
        self.crosses = crosses

    def begin_inference(self, arguments: Any) -> int:
        """Begin a call that uses a batch with any number of forwards, which have no scopes.

        Returns the state that `end_inference` restores.
        """
        before = self.inside
        try:
            if not before & NO_FORWARD:
                self.passes.called(_UNTRAINED, arguments)
                self.inside |= FORWARD
                gate = self.torch_state.gate
                gate.is_open = gate.is_shared
        except BaseException as error:
            self.failed(error)
        return before

    def end_inference(self, before: int) -> None:
        """End a call that `begin_inference` began."""
        try:
            if not before & NO_FORWARD:
                self.torch_state.gate.is_open = True
                self.inside = before
                self._note(FORWARD)
        except BaseException as error:
            self.failed(error)

    @property
    def last_optimizer(self) -> Any:
        """The id of the optimizer that stepped last; None if it is unknown."""
        return None if self.spare is None else self.spare.optimizer

    @property
    def memory(self) -> Any:
        """Reads the device's memory at the end of a step; None if it is not recorded."""
        return self.torch_state.memory

    # --- fetches --------------------------------------------------------------------------------

    def before_fetch(self, iterator: Any) -> Phase | None:
        """Open the `data_load` of a fetch that begins now, in the step that it belongs to."""
        passes = self.passes
        passes.is_busy = True
        try:
            return self.enter(LOAD, None) if passes.arrange(iterator) else None
        finally:
            passes.is_busy = False

    def fetched(self, load: Phase, batch: Any) -> None:
        """Record the batch that a fetch returned."""
        try:
            self.passes.prefetching.fetched(load, batch)
        except BaseException as error:
            self.failed(error)

    def watch_gradients(self) -> None:
        """Record the gradients that a backward pass in a step has left. Raises nothing."""
        try:
            self.gradients.backward_ended(is_read=True)
        except BaseException as error:
            self.failed(error)

    def training_begins(self, kind: int = OPTIMIZER) -> None:
        """Handle the start of a backward pass or an optimizer step."""
        try:
            self.passes.training_begins(kind)
        except BaseException as error:
            self.failed(error)
