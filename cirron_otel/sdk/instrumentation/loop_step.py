"""The open step of a training loop that a framework runs, and its micro steps."""

from __future__ import annotations

from typing import Any

from ..flush.span_rows import UNATTRIBUTED
from ..tracing.clock import now
from ..tracing.phase import Intervals, Phase, Step, begin
from ..tracing.state import CONTEXT
from .iteration import Iteration, end_with_last_child, new_step, span

DATA_LOAD, MICRO_STEP = "data_load", "micro_step"


class LoopStep(Iteration):
    """A step of a loop. Its micro steps overlap if all their batches are fetched first."""

    __slots__ = ("direct", "inside", "is_begun", "is_over", "micro_until", "scopes_around")

    def __init__(self, step: Step, settle: Any, memory: Any, scopes_around: int = 0) -> None:
        """`scopes_around` is the number of the loop's scopes that are open around the step."""
        super().__init__(step, settle, memory)
        self.scopes_around = scopes_around
        self.is_begun = False
        """Whether the framework has begun the step; otherwise only a fetch has opened it."""
        self.is_over = False
        """Whether the step's work is over. It is still open for marks."""
        self.direct: list[Phase] = []
        """The children of the step itself, once there are micro steps."""
        self.inside = Intervals()
        """The times of phases, micro steps and scopes, including fetches for later micro steps."""
        self.micro_until = 0
        """The end of the last micro step, ns."""

    def owns(self, scope: Any) -> bool:
        """Return whether `scope` is this step or its open micro step."""
        return scope is self.step or (scope is not None and scope is self.micro)

    def begin_micro(self) -> Step:
        """Close the open micro step and open the next, which takes the oldest fetched batch."""
        if self.micro is not None:
            self._close_micro()
        for phase in self.children:
            self.inside.append((phase._start, phase._until))
        self.direct += self.children
        self.children = []
        if self.step._collected is not None:
            for interval in self.step._collected.ended_after(self.micro_until):
                self.inside.append(interval)
        self.is_odd = True
        self.micro = micro = open_micro(self.step, self.micros)
        self.micros += 1
        load = next((each for each in self.direct if each._name == DATA_LOAD), None)
        if load is not None and self.is_held:
            self.direct.remove(load)
            micro._start = min(micro._start, load._start)
            load.move(micro)
            if load._stamps is not None:
                span(micro, load._stamps)
            self.children = [load]
        return micro

    def take_micro_apart(self) -> None:
        """Discard the open micro step, and move its children to the step."""
        if self.micro is not None:
            children = self.children
            for phase in children:
                phase.move(self.step)
            self.undo_micro()
            self.children = children

    def _finish_micro(self, micro: Step, children: list[Phase]) -> None:
        """End a micro step; time in the fetches of others, or in earlier ones, is not its own.

        Neither is time in scopes between micro steps.
        """
        end_with_last_child(micro, children)
        for phase in children:
            self.inside.append((phase._start, phase._until))
        if micro._collected is not None:
            self.inside.extend(micro._collected)
        rest = micro._until - micro._start - self.inside.within(micro._start, micro._until)
        micro._attrs = {**(micro._attrs or {}), UNATTRIBUTED: max(rest, 0)}
        self.inside.append((micro._start, micro._until))
        self.micro_until = micro._until
        self.step.inside.append((micro._start, micro._until))
        if self.is_held:
            for phase in children:
                self.settle(phase)
        self.settle(micro)

    def release(self) -> None:
        """Release the held phases, in micro steps and in the step itself."""
        was_held = self.is_held
        super().release()
        direct, self.direct = self.direct, []
        for phase in direct:
            self.step.inside.append((phase._start, phase._until))
            if was_held:
                self.settle(phase)

    def close(self, begin: Any, left: Any = None) -> None:
        """Close the step at the end of its last child."""
        self.was_backward = False  # the framework determines the micro steps
        if self.micro is not None:
            self._close_micro()
        if self.direct:
            self.release()
        super().close(begin, left)


def open_micro(step: Step, index: int) -> Step:
    """Open a micro step, which does not become the current scope."""
    micro = new_step()
    begin(micro, MICRO_STEP, index, None, step, CONTEXT.get(), now(), is_fixed=True)
    return micro
