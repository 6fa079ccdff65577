"""Explanations of a difference by the first quantity that differs."""

from __future__ import annotations

from typing import Final

from ...records.digest_marks import BATCH, GRADS, LOSS, OPTIMIZER, QUANTITIES, RNG, WEIGHTS
from .comparing import Divergence

_CAUSES: Final = {
    RNG: "another seed, or an extra draw of random numbers since the previous step",
    BATCH: "the data: its content, its order, or its augmentation",
    LOSS: (
        "the forward pass: other weights at the start, another mode or dropout, other code, or a"
        " kernel with other results"
    ),
    GRADS: "the backward pass: a kernel with other results, or gradients changed after it",
    WEIGHTS: "the optimizer: its options or its state, or weights or buffers changed elsewhere",
    OPTIMIZER: "the optimizer's state or options, which take effect in the next step",
}


def implication(divergence: Divergence) -> str:
    """Return the likely cause of a difference, with the quantities that are equal."""
    if divergence.missing_from is not None:
        longer = "B" if divergence.missing_from == "A" else "A"
        return f"{divergence.missing_from} has no such step, and {longer} has"
    one, other = divergence.sides
    names = [None if each is None else each.quantity for each in (one, other)]
    if names[0] != names[1]:
        a, b = ("nothing more" if each is None else each for each in names)
        return f"the runs do different work in this step: A has {a}, and B has {b}"
    if divergence.mismatch is not None:
        return f"the runs have different tensors in this place: {divergence.mismatch}"
    equal = [each for each in QUANTITIES if each in divergence.equal]
    failed = [each for each in QUANTITIES if each in divergence.failed]
    cause = _CAUSES.get(divergence.quantity, "a cause outside the known quantities")
    if equal:
        cause += f"; {_listed(equal)} of this step {'are' if equal[1:] else 'is'} equal"
    if failed:
        cause += f"; {_listed(failed)} could not be digested"
    return cause


def _listed(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
