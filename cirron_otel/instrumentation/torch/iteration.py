"""One step in the making: what it is shows when it is over.

While that is open its children are held: they have ended, but are not finished (see sdk.phase).
"""

from __future__ import annotations

from typing import Any

from ...sdk.phase import Intervals, Phase, Step
from .kinds import BACKWARD, FORWARD

UNATTRIBUTED = "unattributed_ns"


def new_step() -> Step:
    """A step that is not open yet."""
    step = Step.__new__(Step)
    step._inside = Intervals()
    return step


class Iteration:
    """A step, its children, and what happened in it."""

    __slots__ = (
        "called",
        "held",
        "is_held",
        "memory",
        "micro",
        "micros",
        "optimizers",
        "settle",
        "step",
        "was_backward",
        "was_stepped",
    )  # fmt: skip

    def __init__(self, step: Step, settle: Any, memory: Any = None) -> None:
        """`settle` finishes a phase as soon as nothing else keeps it; `memory` reads a device's."""
        self.step = step
        self.settle = settle
        self.memory = memory
        if memory is not None:
            memory.begin(step)
        self.held: list[Phase] = []
        self.is_held = True
        self.micro: Step | None = None
        """The micro step that is open."""
        self.micros = 0
        self.optimizers: set[int] = set()
        """Ids of the optimizers that stepped in it."""
        self.called = False
        """Whether a model was called in it."""
        self.was_backward = False
        """Since the last fetch."""
        self.was_stepped = False

    def add(self, phase: Phase, kind: int) -> None:
        """A phase that lies directly in the step, or in its open micro step, is over."""
        if kind == BACKWARD:
            self.was_backward = True
        elif kind == FORWARD:
            self.called = True
        above: Any = phase._above
        above._inside.append((phase._start, phase._until))
        if phase._stamps is not None:
            self.stamp(phase._stamps)
        if self.is_held:
            self.held.append(phase)
        else:
            self.settle(phase)

    def stamp(self, stamps: Any) -> None:
        """The step spans, on the device's stream, what its children do."""
        step = self.step
        first, last = stamps
        if step._stamps is None:
            step._stamps = [first.shared(), last.shared()]
        else:
            step._stamps[1].release()
            step._stamps[1] = last.shared()

    def stepped(self, optimizer: Any) -> None:
        """An optimizer steps, or would have."""
        self.was_stepped = True
        self.optimizers.add(id(optimizer))
        if self.micro is not None:
            self._close_micro()

    @property
    def accumulates(self) -> bool:
        """Whether a fetch now belongs to the same step."""
        return self.was_backward and not self.was_stepped

    def next_micro(self, begin: Any) -> None:
        """A further batch: `begin` opens a micro step of a step, by its index."""
        if not self.micros:
            self.split(begin, [self.held])
        else:
            self._close_micro()
        self.micro = begin(self.step, self.micros)
        self.micros += 1
        self.was_backward = False

    def split(self, begin: Any, groups: list[list[Phase]]) -> None:
        """Make micro steps of children that were held: one of each group."""
        for group in groups:
            micro = begin(self.step, self.micros)
            self.micros += 1
            micro._start = group[0]._start
            for phase in group:
                phase.move(micro)
                micro._inside.append((phase._start, phase._until))
            _close(micro, group[-1]._until)
            self.step._inside.append((micro._start, micro._until))
            self.settle(micro)
        self.release()

    def _close_micro(self) -> None:
        micro, self.micro = self.micro, None
        if micro is not None:
            _close(micro, micro._inside.last or micro._start)
            self.step._inside.append((micro._start, micro._until))
            self.settle(micro)

    def release(self) -> None:
        """What was held is what it is."""
        self.is_held = False
        held, self.held = self.held, []
        for phase in held:
            self.settle(phase)

    def undo_micro(self) -> None:
        """The micro step that is open is none."""
        micro, self.micro = self.micro, None
        if micro is not None:
            micro.drop()
            micro._until = micro._start
            micro.finish()
            self.micros -= 1
            self.was_backward = True  # that of the batch before

    def close(self, begin: Any) -> None:
        """The step is over: it ends with its last child."""
        if self.accumulates and self.held and not self.micros:
            self.split(begin, [self.held])
        self._close_micro()
        step = self.step
        _close(step, step._inside.last or step._start)
        if self.memory is not None:
            self.memory.end(step)
        self.release()
        self.settle(step)

    def dissolve(self, above: Any) -> None:
        """There is no step: what is in it hangs on `above`."""
        for phase in self.held:
            phase.move(above)
        self.step.drop()
        self.step._until = self.step._start
        self.release()
        self.step.finish()


def _close(step: Step, until: int) -> None:
    step._until = until
    attrs = step._attrs
    if attrs is None:
        attrs = step._attrs = {}
    attrs[UNATTRIBUTED] = step.unattributed_ns(until)
