"""The comparison of two runs by digests, as text."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .text import count, printable, wrapped

if TYPE_CHECKING:
    from ...core.analysis.divergence.comparing import Divergence, RunComparison

_MOST_RANKS = 8
_LONGEST = 60


def comparison_lines(comparison: RunComparison) -> Iterator[str]:
    """Yield whether two runs are identical, and the first difference of each rank that has one."""
    first = comparison.first
    if not comparison.compared:
        yield from wrapped(_reason(comparison), "NOT COMPARED: ", "  ")
        return
    if first is None:
        yield from wrapped(_equality(comparison), "IDENTICAL: ", "  ")
        return
    yield from divergence_lines(first)
    differing = sum(each.differing for each in comparison.ranks)
    yield f"  {differing:,} of {count(comparison.compared, 'compared step')} differ"
    others = [each for each in comparison.ranks if each.first not in (None, first)]
    for each in others[:_MOST_RANKS]:
        if each.first is not None:
            yield from wrapped(place(each.first), "  then: ", "    ")
    if len(others) > _MOST_RANKS:
        yield f"  and {len(others) - _MOST_RANKS:,} more ranks: --json has them"


def divergence_lines(found: Divergence) -> Iterator[str]:
    """Yield a difference, with its values and its likely cause."""
    from ...core.analysis.divergence.implications import implication

    yield from wrapped(place(found), "DIVERGED: ", "  ")
    if found.a is not None and found.b is not None and found.has_numbers:
        yield f"  A {found.a}, B {found.b}"
    yield from wrapped(implication(found), "  suggests: ", "    ")


def place(found: Divergence) -> str:
    """Return the step, the quantity, the tensor and the distance of a difference."""
    rank = "" if found.rank is None else f" of rank {found.rank}"
    number = [
        f"{name} {printable(value)}"
        for name, value in (("epoch", found.epoch), ("index", found.index))
        if value is not None
    ]
    where = f" ({', '.join(number)})" if found.epoch is not None else ""
    tensor = "" if found.tensor is None else f" of {printable(found.tensor)[:_LONGEST]}"
    ulp = "" if found.ulp is None else f", {found.ulp:,} ULP apart"
    return f"step {found.step}{rank}{where}, {found.quantity}{tensor}{ulp}"


def _equality(comparison: RunComparison) -> str:
    ranks = comparison.ranks
    of = f" of {count(len(ranks), 'rank')}" if ranks[0].rank is not None else ""
    steps = count(comparison.compared, "step")
    if comparison.is_complete:
        return f"all {steps}{of} are equal"
    only = {"A": sum(each.only_a for each in ranks), "B": sum(each.only_b for each in ranks)}
    more = " and ".join(f"{name} has {number:,} more" for name, number in only.items() if number)
    return f"the {steps}{of} that both runs have are equal; {more}"


def _reason(comparison: RunComparison) -> str:
    """Return the reason why no step was compared."""
    has = {
        "A": any(each.only_a for each in comparison.ranks),
        "B": any(each.only_b for each in comparison.ranks),
    }
    lacking = [name for name, is_present in has.items() if not is_present]
    if not lacking:
        return "no step has digests in both runs"
    who = f"{lacking[0]} has" if len(lacking) == 1 else "the runs have"
    return f"{who} no digests of steps: record with `run --digest step`"
