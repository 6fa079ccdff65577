"""Where the time of a training's steps went, phase by phase."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..semconv import MICRO_STEP
from .tree import TreeNode

STEP = "step"
OPTIMIZER_STEP = "optimizer_step"

_FEW = 4
"""Of fewer steps none is told apart as warm-up."""
_MOST_WARM_UP = 50
_PHASES = frozenset({
    "data_load", "h2d", "forward", "loss", "backward", OPTIMIZER_STEP, "zero_grad", "clip_grad",
    "scheduler_step", "collective",
})  # fmt: skip
_CLOSED = (_PHASES - {OPTIMIZER_STEP}) | {"recompute", "eval", "epoch", STEP, MICRO_STEP}

_CLOSURE_ENDS = frozenset({"backward", "clip_grad", "collective"})


def is_phase(name: str | None) -> bool:
    """Whether a scope is a phase of its step even if another scope is around it."""
    return name in _PHASES or is_checkpoint(name)


def is_checkpoint(name: str | None) -> bool:
    """Whether a scope saves or loads a checkpoint."""
    return name is not None and "checkpoint" in name.lower()


def holds_phases(name: str | None) -> bool:
    """Whether phases inside a scope count by themselves.

    They do inside an optimizer's step, which runs the closure, and inside the user's own scopes.
    They do not inside another phase: a gradient penalty's backward is a part of its forward.
    """
    return name not in _CLOSED and not is_checkpoint(name)


def ends_closure(name: str | None) -> bool:
    """Whether a phase is one of the last of an optimizer's closure."""
    return name in _CLOSURE_ENDS


@dataclass(slots=True)
class Phase:
    """A phase of steps, or what no phase of them covers."""

    name: str
    durations: list[int] = field(default_factory=list)
    """One a scope, ns; of what no phase covers one a step."""

    @property
    def total_ns(self) -> int:
        """Of all steps together."""
        return sum(self.durations)

    @property
    def median_ns(self) -> int:
        """Of one scope."""
        return round(statistics.median(self.durations)) if self.durations else 0

    @property
    def p95_ns(self) -> int:
        """95 of 100 scopes take at most this long."""
        ordered = sorted(self.durations)
        return ordered[-(-95 * len(ordered) // 100) - 1] if ordered else 0

    @property
    def max_ns(self) -> int:
        """Of the longest scope."""
        return max(self.durations, default=0)


@dataclass(slots=True)
class Breakdown:
    """The time of all steps of some trees; its phases and what they leave come to all of it."""

    steps: Phase
    phases: list[Phase]
    """In the order in which they were first met."""
    unattributed: Phase
    _warm_up: int | None = field(default=None, repr=False, compare=False)

    @property
    def warm_up(self) -> int:
        """How many of the first steps are slow because the run warms up: twice the median."""
        if self._warm_up is None:
            self._warm_up = self._count_warm_up()
        return self._warm_up

    def _count_warm_up(self) -> int:
        durations = self.steps.durations
        if len(durations) < _FEW:
            return 0
        limit = 2 * self.steps.median_ns
        most = min(len(durations) // 4, _MOST_WARM_UP)
        slow = itertools.takewhile(lambda ns: ns > limit, durations[:most])
        return sum(1 for _ in slow)

    @property
    def steady(self) -> Phase:
        """The steps after the warm-up."""
        return Phase(STEP, self.steps.durations[self.warm_up :])

    def to_json(self) -> dict[str, Any]:
        """Each with its share of the steps' time."""
        return {
            "steps": self._row(self.steps),
            "warm_up": {
                "times": self.warm_up,
                "total_ns": sum(self.steps.durations[: self.warm_up]),
            },
            "steady": self._row(self.steady),
            "phases": [{"name": each.name, **self._row(each)} for each in self.phases],
            "unattributed": self._row(self.unattributed),
        }

    def _row(self, phase: Phase) -> dict[str, Any]:
        return {
            "times": len(phase.durations),
            "total_ns": phase.total_ns,
            "share": self.share(phase),
            "median_ns": phase.median_ns,
            "p95_ns": phase.p95_ns,
            "max_ns": phase.max_ns,
        }

    def share(self, phase: Phase) -> float:
        """Of the steps' time, 0 to 1."""
        return phase.total_ns / max(self.steps.total_ns, 1)


def break_down(roots: Iterable[TreeNode]) -> Breakdown:
    """The breakdown of all steps below `roots`.

    The phases of a micro step belong to its step. A phase that holds others (`holds_phases`) counts
    without them.
    """
    phases: dict[str, Phase] = {}
    steps, rest = Phase(STEP), Phase("unattributed")
    for step in _steps(roots):
        left = step.duration_ns or 0
        steps.durations.append(left)
        for each, taken in _phases(step):
            phases.setdefault(each.name or "?", Phase(each.name or "?")).durations.append(taken)
            left -= taken
        rest.durations.append(left)
    return Breakdown(steps, list(phases.values()), rest)


def _steps(roots: Iterable[TreeNode]) -> Iterator[TreeNode]:
    """The recorded steps, in their order; what lies in one is not looked at."""
    todo = list(reversed(list(roots)))
    while todo:
        node = todo.pop()
        if node.name == STEP and node.recorded:
            yield node
        else:
            todo += reversed(node.children)


def _phases(step: TreeNode) -> Iterator[tuple[TreeNode, int]]:
    """The phases of a step, each with the time that no phase inside it takes."""
    for child in step.children:
        for top in child.children if child.name == MICRO_STEP else [child]:
            todo = [top]
            while todo:
                inner = list(_inside(phase := todo.pop()))
                yield phase, _own_time(phase, inner)
                todo += reversed(inner)


def _own_time(phase: TreeNode, inner: list[TreeNode]) -> int:
    """The time of a phase without the phases inside it, ns.

    An optimizer updates the weights when its closure has returned: after the closure's backward and
    what follows on that. The time between the phases of the closure is the trainer's, not the
    optimizer's.
    """
    duration = phase.duration_ns or 0
    is_closure = phase.name == OPTIMIZER_STEP and any(each.name == "backward" for each in inner)
    if not is_closure or phase.start_ns is None:
        return max(duration - sum(each.duration_ns or 0 for each in inner), 0)
    own, reached, is_over = 0, phase.start_ns, False
    for each in sorted(inner, key=lambda node: node.start_ns or 0):
        start = each.start_ns or 0
        if is_over and not ends_closure(each.name):
            own += max(start - reached, 0)
        is_over = ends_closure(each.name)
        reached = max(reached, start + (each.duration_ns or 0))
    return own + max(phase.start_ns + duration - reached, 0)


def _inside(phase: TreeNode) -> Iterator[TreeNode]:
    """The phases inside another one, without those inside them."""
    todo = list(reversed(phase.children)) if holds_phases(phase.name) else []
    while todo:
        node = todo.pop()
        if is_phase(node.name):
            yield node
        elif holds_phases(node.name):
            todo += reversed(node.children)


def joined(parts: Iterable[Breakdown]) -> Breakdown:
    """The breakdown of all steps of `parts`, of several ranks for example."""
    steps, rest = Phase(STEP), Phase("unattributed")
    phases: dict[str, Phase] = {}
    for part in parts:
        steps.durations += part.steps.durations
        rest.durations += part.unattributed.durations
        for each in part.phases:
            phases.setdefault(each.name, Phase(each.name)).durations.extend(each.durations)
    return Breakdown(steps, list(phases.values()), rest)
