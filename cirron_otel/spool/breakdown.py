"""Where the time of a training's steps went, phase by phase."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .tree import TreeNode

STEP = "step"
MICRO_STEP = "micro_step"


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


@dataclass(slots=True)
class Breakdown:
    """The time of all steps of some trees; its phases and what they leave come to all of it."""

    steps: Phase
    phases: list[Phase]
    """In the order in which they were first met."""
    unattributed: Phase

    def to_json(self) -> dict[str, Any]:
        """Each with its share of the steps' time."""
        return {
            "steps": self._row(self.steps),
            "phases": [{"name": each.name, **self._row(each)} for each in self.phases],
            "unattributed": self._row(self.unattributed),
        }

    def _row(self, phase: Phase) -> dict[str, Any]:
        return {
            "times": len(phase.durations),
            "total_ns": phase.total_ns,
            "share": self.share(phase),
            "median_ns": phase.median_ns,
        }

    def share(self, phase: Phase) -> float:
        """Of the steps' time, 0 to 1."""
        return phase.total_ns / max(self.steps.total_ns, 1)


def break_down(roots: Iterable[TreeNode]) -> Breakdown:
    """The breakdown of all steps below `roots`; a micro step's phases are its step's."""
    phases: dict[str, Phase] = {}
    steps, rest = Phase(STEP), Phase("unattributed")
    for step in _steps(roots):
        left = step.duration_ns or 0
        steps.durations.append(left)
        for each in _phases(step):
            name = each.name or "?"
            taken = each.duration_ns or 0
            phases.setdefault(name, Phase(name)).durations.append(taken)
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


def _phases(step: TreeNode) -> Iterator[TreeNode]:
    for child in step.children:
        if child.name == MICRO_STEP:
            yield from child.children
        else:
            yield child


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
