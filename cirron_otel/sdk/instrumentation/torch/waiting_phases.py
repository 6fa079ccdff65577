"""Phases outside of passes that wait for an optimizer step, and the forwards that no backward uses.

docs/torch.md, "Without a loader", defines the rules.
"""

from __future__ import annotations

import weakref
from typing import Any

from ...tracing.phase import Phase
from .kinds import BACKWARD, FORWARD, LOSS, UPKEEP, ZERO_GRAD
from .pending import tensors_in

_KEY = "cirron_otel"


class WaitingPhase:
    """A phase that waits for an optimizer step."""

    __slots__ = ("accumulates", "cost_ns", "evaluates", "graph", "kind", "made", "phase")

    def __init__(
        self, phase: Phase, kind: int, graph: Any, made: int, cost_ns: int, evaluates: bool
    ) -> None:
        self.phase, self.kind = phase, kind
        self.made = made
        """The number of optimizers that were constructed before the phase ended."""
        self.graph = graph
        """A weak reference that is dead once a forward's graph is freed; None if unknown."""
        self.cost_ns = cost_ns
        """The time of the phase's hooks, which its parent has counted, ns."""
        self.evaluates = evaluates
        """Whether the phase is part of an evaluation if no backward uses it."""
        self.accumulates = False
        """Whether the phase adds to the gradients of an earlier backward pass."""

    @property
    def is_unused(self) -> bool:
        """Return whether the phase is a forward that no backward can use any more."""
        return self.graph is not None and self.graph() is None


class _Graph:
    """Is alive as long as the graph of a forward."""

    __slots__ = ("__weakref__",)


def watch_graph(output: Any) -> Any:
    """Return a weak reference that is dead once the graph of `output` is freed; None if unknown.

    The metadata of a node of a graph lives as long as the node. A tensor does not: the graph
    usually outlives the output of a model, and the output may outlive its graph.
    """
    import torch  # noqa: PLC0415

    for tensor in [output] if type(output) is torch.Tensor else tensors_in(output):
        node = tensor.grad_fn if type(tensor) is torch.Tensor else None
        if node is not None:
            graph = node.metadata[_KEY] = _Graph()
            return weakref.ref(graph)
    return None


def unused_count(waiting: list[WaitingPhase]) -> int:
    """Return the number of the first phases that do not belong to the step of a backward pass.

    The pass begins now. The phases end with a forward that it does not use, of a model whose later
    forward it uses, and with the loss of that forward. A `zero_grad` begins a step, so they do not
    contain one.
    """
    forwards = [each for each in waiting if each.kind == FORWARD]
    used = {id(each.phase._attrs) for each in forwards if not each.is_unused}
    count = 0
    for index, each in enumerate(waiting):
        if each.kind & (BACKWARD | ZERO_GRAD):
            break
        if (each.is_unused and id(each.phase._attrs) in used) or (
            each.kind == LOSS and count == index > 0
        ):
            count = index + 1
    return count


def earlier_count(waiting: list[WaitingPhase], number: int) -> int:
    """Return the number of the first phases that do not belong to a step of optimizer `number`.

    They contain a backward pass, ended before the optimizer was constructed, and the first backward
    pass after that adds nothing to their gradients.
    """
    count = sum(each.made < number for each in waiting)
    later = (each for each in waiting[count:] if each.kind == BACKWARD)
    first = next(later, None)
    is_apart = first is not None and not first.accumulates and has_backward(waiting[:count])
    return count if is_apart else 0


def has_backward(waiting: list[WaitingPhase]) -> bool:
    """Return whether a backward pass is among the phases."""
    return any(each.kind & BACKWARD for each in waiting)


def groups(waiting: list[WaitingPhase]) -> list[list[Phase]]:
    """Group phases by the batches whose gradients were accumulated.

    If no gradients were accumulated, there is one group.

    A forward pass that follows a backward pass begins a batch. Gradients are accumulated if the
    backward pass of a later batch adds to the gradients of an earlier batch.
    """
    phases: list[list[Phase]] = []
    was_backward, accumulates = True, False
    for each in waiting:
        kind = each.kind
        if was_backward and not kind & BACKWARD and not (kind & UPKEEP and phases):
            phases.append([])
            was_backward = False
        if not phases:
            phases.append([])
        accumulates = accumulates or (each.accumulates and len(phases) > 1 and not was_backward)
        phases[-1].append(each.phase)
        was_backward = was_backward or kind == BACKWARD
    if len(phases) > 1 and not accumulates:
        return [[phase for group in phases for phase in group]]
    return phases
