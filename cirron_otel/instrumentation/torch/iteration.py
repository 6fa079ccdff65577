"""One step in the making: what it is shows when it is over.

While that is open its children are held: they have ended, but are not sealed (see
`sdk.phase.is_held`); those with something on a device's stream are not finished before.
"""

from __future__ import annotations

from typing import Any

from ...sdk.phase import Phase, Step
from ...sdk.span_rows import UNATTRIBUTED
from ...sdk.state import state
from ...sdk.unwinding import Place, keep
from .clock import span

MANY = 1_024
"""Children of a step that has not ended; of more, only their times are kept."""


def new_step() -> Step:
    """A step that is not open yet."""
    step = Step.__new__(Step)
    step._collected = step._folded = step._is_detailed = step._is_known = step._rest = None
    return step


class Iteration:
    """A step, its children, and what happened in it."""

    __slots__ = ("called", "covered", "held_from", "is_held", "is_odd", "kids", "memory", "micro",
                 "micros", "optimizers", "settle", "step", "until", "waits", "was_backward",
                 "was_stepped")  # fmt: skip

    def __init__(self, step: Step, settle: Any, memory: Any = None) -> None:
        """`settle` finishes a phase as soon as nothing else keeps it; `memory` reads a device's."""
        self.step = step
        self.settle = settle
        self.memory = memory
        self.kids: list[Phase] = []
        """The phases that lie directly in the step, or in its open micro step."""
        self.covered = self.until = 0
        """How long they took together, ns, and when the last of them ended."""
        self.is_odd = memory is not None
        """Whether there is more in it than phases on the host, one after the other."""
        self.is_held = True
        """Whether they wait until it is known what the step is."""
        self.held_from = 0
        """The first of them that does."""
        self.waits = False
        """Whether they wait until the next fetch, whatever happens before."""
        self.micro: Step | None = None
        """The micro step that is open."""
        self.micros = 0
        self.optimizers: Any = ()
        """Ids of the optimizers that stepped in it."""
        self.called = False
        """Whether a model was called in it."""
        self.was_backward = False
        """Since the last fetch."""
        self.was_stepped = False
        if memory is not None:
            memory.begin(step)

    def add(self, phase: Phase) -> None:
        """A phase that lies directly in the step, or in its open micro step, is over."""
        if phase._stamps is not None:
            self.stamp(phase._stamps)
        self.count(phase)
        if self.is_held:
            self.is_odd = True  # it is to be released
        else:
            self.settle(phase)

    def count(self, phase: Phase) -> None:
        """Add it to the children."""
        self.kids.append(phase)
        until = phase._until
        if phase._start < self.until:
            self.is_odd = True
        self.covered += until - phase._start
        self.until = until

    def stamp(self, stamps: Any) -> None:
        """On the device's stream, too, the step holds what its children do."""
        self.is_odd = True
        span(self.step, stamps)
        if self.micro is not None:
            span(self.micro, stamps)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer steps, or would have: it is no accumulation any more."""
        self.was_stepped = True
        self.optimizers = (*self.optimizers, id(optimizer))
        if self.micro is not None:
            self._close_micro()
        if self.is_held and not self.waits:
            self.release()
        if len(self.kids) > MANY:
            self.thin()

    def thin(self) -> None:
        """Keep of many children only when they ran: a step may last for a whole training.

        So it is if the iterator that gave the only batch is kept.
        """
        if not self.is_held and self.step._folded is None:
            inside = self.step.inside
            for phase in self.kids:
                inside.append((phase._start, phase._until))
            self.kids = []

    @property
    def accumulates(self) -> bool:
        """Whether a fetch now belongs to the same step."""
        return self.was_backward and not self.was_stepped

    @property
    def is_by_hand(self) -> bool:
        """Whether a scope directly in it was opened by hand as the step."""
        inside = self.step._collected
        return inside is not None and inside.by_hand

    def next_micro(self, begin: Any) -> None:
        """A further batch: `begin` opens a micro step of a step, by its index."""
        if not self.micros:
            self.split(begin, [self.kids])
        else:
            self._close_micro()
        self.is_odd = True
        self.micro = begin(self.step, self.micros)
        self.micros += 1
        self.was_backward = False

    def split(self, begin: Any, groups: list[list[Phase]]) -> None:
        """Make micro steps of children that were held: one of each group, in order."""
        self.kids = []
        self.is_odd = True
        for group in groups:
            micro = begin(self.step, self.micros)
            self.micros += 1
            micro._start = group[0]._start
            for phase in group:
                phase.move(micro)
                if phase._stamps is not None:
                    span(micro, phase._stamps)
            self._finish_micro(micro, group)
            for phase in group:
                self.settle(phase)
        self.is_held = False

    def _close_micro(self) -> None:
        micro, self.micro = self.micro, None
        kids, self.kids = self.kids, []
        if micro is not None:
            self._finish_micro(micro, kids)

    def _finish_micro(self, micro: Step, kids: list[Phase]) -> None:
        _close(micro, kids)
        self.step.inside.append((micro._start, micro._until))
        self.settle(micro)

    def wait(self) -> None:
        """Hold the phases from here on until `go_on`, or until the step is closed."""
        if not self.is_held:
            self.is_held, self.held_from = True, len(self.kids)
            self.step._is_known = None
        self.waits = self.is_odd = True

    def go_on(self) -> None:
        """Stop waiting for the next fetch."""
        self.waits = False
        if self.is_held and self.was_stepped:
            self.release()

    def cut(self, at: int) -> list[Phase]:
        """Take the phases from `at` on away: they belong elsewhere."""
        kids, self.kids = self.kids, self.kids[:at]
        return kids[at:]

    def release(self) -> None:
        """What was held is what it is."""
        self.is_held = self.waits = False
        self.step._is_known = True
        is_special = state.special
        kids = self.kids[self.held_from :] if self.held_from else self.kids
        self.held_from = 0
        for phase in kids:
            if phase._stamps is None and not is_special:
                phase._end = phase._until
            else:
                self.settle(phase)

    def undo_micro(self) -> None:
        """The micro step that is open is none."""
        micro, self.micro = self.micro, None
        self.kids = []
        if micro is not None:
            micro.drop()
            micro._until = micro._start
            micro.finish()
            self.micros -= 1
            self.was_backward = True  # that of the batch before

    def close(self, begin: Any, left: Place | None = None) -> None:
        """The step is over: it ends with its last child.

        `left`: an exception may have left it there. Then it waits (`sdk.unwinding`).
        """
        if self.was_backward and not self.was_stepped and self.kids and not self.micros:
            self.split(begin, [self.kids])
        if self.micro is not None:
            self._close_micro()
        step = self.step
        _close(step, self.kids)
        if self.memory is not None:
            self.memory.end(step)
        if self.is_held:
            self.release()
        if left is not None:
            keep(step, left, step._until if step._stamps is None else None)
        if step._stamps is None and left is not None:
            pass
        elif step._stamps is None and not state.special:
            step._end = step._until
        else:
            self.settle(step)

    def dissolve(self, above: Any) -> None:
        """There is no step: what is in it hangs on `above`."""
        if self.is_held:
            for phase in self.kids:
                phase.move(above)
            self.release()
        step = self.step
        step.drop()
        step._until = step._start
        self.kids = []
        if step._stamps is not None:
            step._stamps[0].release()
            step._stamps[1].release()
            step._stamps = None
        step.finish()


def _close(step: Step, kids: list[Phase]) -> None:
    """End a step with the last of its children, and say what none of them covers."""
    inside = step._collected
    start = at = step._start
    if inside is None:
        covered = 0
        for phase in kids:
            until = phase._until
            if phase._start >= at:
                covered += until - phase._start
                at = until
            elif until > at:
                covered += until - at
                at = until
        step._until = at
        rest = at - start - covered
    else:
        if inside.open:
            inside.close(step._above)
        for phase in kids:
            inside.append((phase._start, phase._until))
        step._until = at = max(inside.last, start)
        rest = step.unattributed_ns(at)
    attrs = step._attrs
    if attrs is None:
        step._attrs = {UNATTRIBUTED: rest}
    else:
        attrs[UNATTRIBUTED] = rest
