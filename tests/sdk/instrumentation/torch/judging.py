"""Compares a recorded tree with the expected one, and describes the differences."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from cirron_otel.semconv import OOM

from .loops import Loop
from .tools import Outcome
from .trees import (
    Node,
    Recorded,
    difference,
    folded,
    mark_faults,
    parse,
    time_faults,
)

BY_HAND = "manual"
"""The module of the loops in which steps are opened by hand: those need no unattributed_ns."""
OUT_OF_MEMORY = {"out_of_memory": 2}
"""The number of scopes of a loop that fail for lack of memory; each has a mark `oom`."""


def faults(loop: Loop, outcome: Outcome, recorded: Recorded) -> list[str]:
    """All that is wrong with what cirron-otel made of a loop in one rank; empty if nothing is."""
    different = difference(parse(loop.tree), recorded.root)
    found = [outcome.error, different]
    found += [f"the parent of a scope {name} is not there" for name in recorded.orphans]
    expected = outcome.marks + [OOM] * OUT_OF_MEMORY.get(loop.name, 0)
    found += mark_faults(expected, recorded.marks)
    found += time_faults(recorded.root, needs_unattributed=loop.group != BY_HAND)
    found += outcome.complaints
    return [fault for fault in found if fault]


@dataclass(frozen=True)
class Verdict:
    """What a neighbour's tree is, by what it has scopes for."""

    is_right: bool
    notes: list[str]
    """Where it is right: what is not there or otherwise, of LENIENCE. Else: what is wrong."""


def without(root: Node, changes: list[Callable[[Node], None]]) -> Node:
    """A copy of the tree with these changes made from the leaves up."""
    changed = copy.deepcopy(root)
    nodes = list(changed.walk())
    for change in changes:
        for node in reversed(nodes):
            change(node)
    return changed


def dissolve(*names: str) -> Callable[[Node], None]:
    """What hangs on scopes of these names hangs on what is around them."""

    def change(node: Node) -> None:
        below: list[Node] = []
        for child in node.children:
            below += child.children if child.name in names else [child]
        node.children = below

    return change


def _batch_is_step(node: Node) -> None:
    if node.name == "batch":
        node.name = "step"


def _unnumbered_steps(node: Node) -> None:
    if node.name == "step":
        node.index = None


def _criterion_is_forward(node: Node) -> None:
    if node.name == "loss":
        node.name = "forward"


def _bare_backward(node: Node) -> None:
    if node.name == "backward":
        node.children = [c for c in node.children if c.name not in ("recompute", "forward")]


def _no_status(node: Node) -> None:
    node.is_error = False


LENIENCE: dict[str, Callable[[Node], None]] = {
    "`batch`": _batch_is_step,
    "step numbers": _unnumbered_steps,
    "`loss`": _criterion_is_forward,
    "`micro_step`": dissolve("micro_step"),
    "`eval`": dissolve("eval"),
    "`loader_pass`": dissolve("loader_pass"),
    "`recompute`": _bare_backward,
    "status": _no_status,
}
"""What may be missing or otherwise where the rest is right: a note, and not wrong.

What `ci.batches` makes may be called batch, steps may be counted through the session, a criterion
may be a second forward, what hangs on a micro step, an evaluation or a pass without a use may hang
on what is around that, and a recomputation may be a forward or nothing.
"""


def judge(expected: Node, recorded: Node) -> Verdict:
    """Compare a neighbour's tree with what is expected, by what it has scopes for."""
    every = list(LENIENCE.values())
    wanted, found = without(expected, every), without(recorded, every)
    if folded([wanted]) != folded([found]):
        return Verdict(False, _what_is_wrong(wanted, found))
    notes = []
    for note, change in LENIENCE.items():
        others = [other for other in every if other is not change]
        if folded([without(expected, others)]) != folded([without(recorded, others)]):
            notes.append(note)
    return Verdict(True, notes)


def _what_is_wrong(expected: Node, recorded: Node) -> list[str]:
    """Numbers of scopes where these differ, else where they hang, at most four."""
    wanted, found = _names(expected), _names(recorded)
    wrong = [
        f"{found[name]} `{name}`, not {wanted[name]}"
        for name in {**wanted, **found}
        if wanted[name] != found[name]
    ]
    if not wrong:
        wanted, found = _places(expected), _places(recorded)
        wrong = [f"{count} {place}" for place, count in (found - wanted).items()]
    return (wrong or ["another order, or other numbers"])[:4]


def _names(root: Node) -> Counter[str]:
    return Counter(node.name for node in root.walk())


def _places(root: Node) -> Counter[str]:
    return Counter(
        f"`{child.name}` in `{node.name}`" for node in root.walk() for child in node.children
    )
