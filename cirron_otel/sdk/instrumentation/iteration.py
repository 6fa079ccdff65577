"""A step in progress.

Until the step is classified, its children are held: they have ended, but are not sealed
(`tracing.phase.is_held`). Children with events on a device's stream are not finished before then.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context.context import Context

from ..flush.span_rows import UNATTRIBUTED
from ..tracing.phase import Phase, Step
from ..tracing.scope import Scope
from ..tracing.state import SCOPE_KEY, SPAN_KEY, state
from ..tracing.unwinding import Place, keep

_OURS = (SPAN_KEY, SCOPE_KEY)

MANY = 1_024
"""Maximum number of children retained for an open step; beyond it, only times are retained."""


def span(scope: Any, stamps: list[Any]) -> None:
    """Extend a scope's time on the stream to include a child with these start and end stamps."""
    first, last = stamps
    stamps_of_scope = scope._stamps
    if stamps_of_scope is None:
        scope._stamps = [first.acquire(), last.acquire()]
    else:
        stamps_of_scope[1].release()
        stamps_of_scope[1] = last.acquire()


def new_step() -> Step:
    """Return a step that is not open yet."""
    step = Step.__new__(Step)
    step._collected = step._folded = step._is_detailed = step._is_known = step._rest = None
    return step


class Iteration:
    """A step, its children, and the operations in it."""

    __slots__ = (
        "called",
        "children",
        "covered",
        "held_from",
        "is_held",
        "is_odd",
        "is_waiting",
        "memory",
        "micro",
        "micros",
        "optimizers",
        "settle",
        "step",
        "until",
        "was_backward",
        "was_stepped",
    )  # fmt: skip

    def __init__(self, step: Step, settle: Any, memory: Any = None) -> None:
        """`settle` finishes a phase that is not held; `memory` reads a device's memory."""
        self.step = step
        self.settle = settle
        self.memory = memory
        self.children: list[Phase] = []
        """The phases directly in the step, or in its open micro step."""
        self.covered = self.until = 0
        """The sum of the children's durations, and the end of the last child, ns."""
        self.is_odd = memory is not None
        """Whether the step contains anything but consecutive phases on the host."""
        self.is_held = True
        """Whether the children are held until the step is classified."""
        self.held_from = 0
        """The index of the first child that is held."""
        self.is_waiting = False
        """Whether the children are held until the next fetch, even if an optimizer steps."""
        self.micro: Step | None = None
        """The open micro step."""
        self.micros = 0
        self.optimizers: Any = ()
        """Ids of the optimizers that stepped in the step."""
        self.called = False
        """Whether a model was called in the step."""
        self.was_backward = False
        """Whether a backward pass ran since the last fetch."""
        self.was_stepped = False
        if memory is not None:
            memory.begin(step)

    def add(self, phase: Phase) -> None:
        """Add an ended phase, which is directly in the step or in its open micro step."""
        if phase._stamps is not None:
            self.stamp(phase._stamps)
        self.count(phase)
        if self.is_held:
            self.is_odd = True  # `release` has to settle the phase
        else:
            self.settle(phase)

    def count(self, phase: Phase) -> None:
        """Add a phase to the children, without settling it."""
        self.children.append(phase)
        until = phase._until
        if phase._start < self.until:
            self.is_odd = True
        self.covered += until - phase._start
        self.until = until

    def stamp(self, stamps: Any) -> None:
        """Extend the step's time on the device's stream to include that of a child."""
        self.is_odd = True
        span(self.step, stamps)
        if self.micro is not None:
            span(self.micro, stamps)

    def stepped(self, optimizer: Any) -> None:
        """Record that an optimizer steps, or skips its step: the accumulation is over."""
        self.was_stepped = True
        self.optimizers = (*self.optimizers, id(optimizer))
        if self.micro is not None:
            self._close_micro()
        if self.is_held and not self.is_waiting:
            self.release()
        if len(self.children) > MANY:
            self.thin()

    def thin(self) -> None:
        """Retain only the times of the children, unless the children are held.

        A step may last for the complete training run if the iterator of a single batch stays alive.
        """
        if not self.is_held and self.step._folded is None:
            inside = self.step.inside
            for phase in self.children:
                inside.append((phase._start, phase._until))
            self.children = []

    @property
    def accumulates(self) -> bool:
        """Whether the step accumulates gradients, so that a fetch now belongs to it."""
        return self.was_backward and not self.was_stepped

    def waits_for_batch(self, step: Step) -> None:
        """Continue with the next fetch if `step` is this step, even if its batch had no backward.

        Another framework has announced that the step accumulates gradients.
        """
        if step is self.step and self.called and not self.was_stepped:
            self.was_backward = True

    @property
    def has_manual_step(self) -> bool:
        """Whether the program opened a scope directly in the step that is itself a step."""
        inside = self.step._collected
        return inside is not None and inside.by_hand

    def next_micro(self, begin: Any) -> None:
        """Begin a micro step for another batch; `begin` opens it with its index."""
        if not self.micros:
            self.split(begin, [self.children])
        else:
            self._close_micro()
        self.is_odd = True
        self.micro = begin(self.step, self.micros)
        self.micros += 1
        self.was_backward = False

    def split(self, begin: Any, groups: list[list[Phase]]) -> None:
        """Move held children into micro steps, one for each group, in order."""
        self.children = []
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
        children, self.children = self.children, []
        if micro is not None:
            self._finish_micro(micro, children)

    def _finish_micro(self, micro: Step, children: list[Phase]) -> None:
        end_with_last_child(micro, children)
        self.step.inside.append((micro._start, micro._until))
        self.settle(micro)

    def wait(self) -> None:
        """Hold all later phases until `go_on` is called or the step is closed."""
        if not self.is_held:
            self.is_held, self.held_from = True, len(self.children)
            self.step._is_known = None
        self.is_waiting = self.is_odd = True

    def go_on(self) -> None:
        """Stop waiting for the next fetch."""
        self.is_waiting = False
        if self.is_held and self.was_stepped:
            self.release()

    def cut(self, at: int) -> list[Phase]:
        """Remove and return the phases from index `at` on, which belong to another scope."""
        children, self.children = self.children, self.children[:at]
        return children[at:]

    def release(self) -> None:
        """Release the held phases, because the step is classified."""
        self.is_held = self.is_waiting = False
        self.step._is_known = True
        is_special = state.special
        children = self.children[self.held_from :] if self.held_from else self.children
        self.held_from = 0
        for phase in children:
            if phase._stamps is None and not is_special:
                phase._end = phase._until
            else:
                self.settle(phase)

    def undo_micro(self) -> None:
        """Discard the open micro step."""
        micro, self.micro = self.micro, None
        self.children = []
        if micro is not None:
            micro.drop()
            micro._until = micro._start
            micro.finish()
            self.micros -= 1
            self.was_backward = True  # the backward pass of the previous batch

    def close(self, begin: Any, left: Place | None = None) -> None:
        """Close the step at the end of its last child.

        `left` is the position of a loop that an exception may have left. In that case the step
        waits (`tracing.unwinding`).
        """
        if self.was_backward and not self.was_stepped and self.children and not self.micros:
            self.split(begin, [self.children])
        if self.micro is not None:
            self._close_micro()
        step = self.step
        end_with_last_child(step, self.children)
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

    def dissolve(self, parent_scope: Any) -> None:
        """Discard the step and move its children to `parent_scope`."""
        if self.is_held:
            for phase in self.children:
                phase.move(parent_scope)
            self.release()
        step = self.step
        step.drop()
        step._until = step._start
        self.children = []
        if step._stamps is not None:
            step._stamps[0].release()
            step._stamps[1].release()
            step._stamps = None
        step.finish()


def end_with_last_child(step: Step, children: list[Phase]) -> None:
    """End a step with its last child, and record the time that no child covers."""
    inside = step._collected
    start = at = step._start
    if inside is None:
        covered = 0
        for phase in children:
            until = phase._until
            if phase._start >= at:
                covered += until - phase._start
                at = until
            elif until > at:
                covered += until - at
                at = until
        step._until = at
        unattributed = at - start - covered
    else:
        if inside.open:
            inside.close(step._above)
        for phase in children:
            inside.append((phase._start, phase._until))
        step._until = at = max(inside.last, start)
        unattributed = step.unattributed_ns(at)
    attrs = step._attrs
    if attrs is None:
        step._attrs = {UNATTRIBUTED: unattributed}
    else:
        attrs[UNATTRIBUTED] = unattributed


def carry_over(context: Any, target: Any) -> Any:
    """Return `target` with the values that other code put into `context`, such as baggage."""
    others = {key: value for key, value in context.items() if key not in _OURS}
    if others == {key: value for key, value in target.items() if key not in _OURS}:
        return target
    return Context(others | {key: target[key] for key in _OURS if key in target})


def current_scope(context: Any) -> Any:
    """Return the scope that is open in a context."""
    return context.get(SCOPE_KEY) or state.session


def without_step(context: Any, step: Any, target: Any) -> Any:
    """Return `target`, with another library's span if such a span is current inside `step`."""
    inside = carry_over(context, target)
    span = context.get(SPAN_KEY)
    if span is step or isinstance(span, Scope) or span is None:
        return inside
    return Context({**inside, SPAN_KEY: span})


def opened_manually(scope: Any, names: tuple[str, ...]) -> bool:
    """Return whether the program opened `scope`, or a scope around it, with one of `names`."""
    while scope._depth:
        if scope._name in names and not isinstance(scope, Phase):
            return True
        scope = scope._above
    return False
