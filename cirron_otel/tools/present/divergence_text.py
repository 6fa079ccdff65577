"""The comparison of two runs by digests, as text."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .formatting import count, printable, rank_list, wrapped

if TYPE_CHECKING:
    from ...core.analysis.divergence.comparing import Divergence, RunComparison
    from ...core.analysis.divergence.rank_states import ReplicaDivergence

_MOST_RANKS = 8
_LONGEST = 60


def comparison_lines(comparison: RunComparison) -> Iterator[str]:
    """Yield whether two runs are identical, and the first difference of each rank that has one."""
    first = comparison.first
    if not comparison.compared:
        yield from wrapped(_reason(comparison), "NOT COMPARED: ", "  ")
        return
    if first is None:
        yield from wrapped(_equality(comparison), _headline(comparison), "  ")
        return
    yield from divergence_lines(first)
    differing = sum(each.differing for each in comparison.ranks)
    steps = count(comparison.compared, "compared step")
    if differing:
        yield f"  {differing:,} of {steps} differ"
    elif first.missing_from is not None:
        yield f"  the {steps} are equal"
    else:
        yield f"  apart from rng, the {steps} are equal"
    if comparison.failed:
        verb = "is" if comparison.failed == 1 else "are"
        digests = count(comparison.failed, "digest")
        yield f"  {digests} could not be taken, and {verb} not compared"
    for gap in gap_texts(comparison):
        yield f"  {gap}"
    others = [each for each in comparison.ranks if each.first not in (None, first)]
    for each in others[:_MOST_RANKS]:
        if each.first is not None:
            yield from wrapped(place(each.first), "  then: ", "    ")
    if len(others) > _MOST_RANKS:
        yield f"  and {len(others) - _MOST_RANKS:,} more ranks: --json has them"


def divergence_lines(divergence: Divergence) -> Iterator[str]:
    """Yield a difference, with its values and its likely cause."""
    from ...core.analysis.divergence.implications import implication

    yield from wrapped(place(divergence), "DIVERGED: ", "  ")
    if divergence.a is not None and divergence.b is not None and divergence.has_numbers:
        yield f"  A {divergence.a}, B {divergence.b}"
    yield from wrapped(printable(implication(divergence)), "  suggests: ", "    ")


def replica_lines(divergence: ReplicaDivergence) -> Iterator[str]:
    """Yield the first difference of the weights of replicas, and its likely cause."""
    difference, cause = replica_texts(divergence)
    yield from wrapped(difference, "DIVERGED: ", "  ")
    yield from wrapped(cause, "  ", "  ")


def replica_texts(divergence: ReplicaDivergence) -> tuple[str, str]:
    """Return the first difference of the weights of replicas, and its likely cause."""
    first = divergence.first
    usual = [each for each in divergence.ranks if each not in divergence.odd]
    in_tensor = "" if first.tensor is None else f": {printable(first.tensor)[:_LONGEST]}"
    difference = (
        f"the weights of {_ranks(divergence.odd)} differ from those of {_ranks(usual)} from"
        f" {_step(first)} on{in_tensor}{_distance(first)}"
    )
    cause = "replicas have equal weights unless a device computes wrongly, or an update is local"
    if divergence.is_from_start:
        cause = (
            "the gradients are averaged, but the ranks began with other weights: these were not"
            " broadcast, or a rank has loaded others"
        )
    if len(divergence.odd) == len(usual):
        cause += "; the weights do not show which of the ranks is at fault"
    return difference, cause


def _ranks(ranks: Sequence[int | None]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {rank_list(ranks)}"


def place(divergence: Divergence) -> str:
    """Return the step, the quantity, the tensor and the distance of a difference."""
    rank = "" if divergence.rank is None else f" of rank {divergence.rank}"
    quantity = f"{divergence.quantity}{_of_tensor(divergence)}{_distance(divergence)}"
    return f"{_step(divergence, rank)}, {quantity}"


def _step(divergence: Divergence, rank: str = "") -> str:
    if divergence.epoch is None:
        return f"step {divergence.step}{rank}"
    index = "" if divergence.index is None else f", index {printable(divergence.index)}"
    return f"step {divergence.step}{rank} (epoch {printable(divergence.epoch)}{index})"


def _of_tensor(divergence: Divergence) -> str:
    return "" if divergence.tensor is None else f" of {printable(divergence.tensor)[:_LONGEST]}"


def _distance(divergence: Divergence) -> str:
    if divergence.ulp == 0:
        return ", 0 ULP apart: the sign of a zero, the bits of a NaN, or the shape"
    return "" if divergence.ulp is None else f", {divergence.ulp:,} ULP apart"


def _headline(comparison: RunComparison) -> str:
    """Return the first words on two runs without a difference."""
    if comparison.is_identical:
        return "IDENTICAL: "
    if not comparison.is_complete or not comparison.failed:
        return "EQUAL SO FAR: "
    return f"EQUAL, except for {_failed(comparison)}: "


def _failed(comparison: RunComparison) -> str:
    return f"{count(comparison.failed, 'digest')} that could not be taken"


def _equality(comparison: RunComparison) -> str:
    ranks = comparison.ranks
    of = f" of {count(len(ranks), 'rank')}" if ranks[0].rank is not None else ""
    steps = count(comparison.compared, "step")
    if comparison.is_identical:
        return f"all {steps}{of} are equal{_except(comparison)}"
    limits = "".join(f"; {each}" for each in _limits(comparison))
    if comparison.is_complete and comparison.failed:
        return f"the others of {steps}{of} are equal{_except(comparison)}{limits}"
    failed = f", except for {_failed(comparison)}" if comparison.failed else ""
    return f"the {steps}{of} that both runs have are equal{_except(comparison)}{failed}{limits}"


def _limits(comparison: RunComparison) -> Iterator[str]:
    """Yield what keeps runs with equal steps from being identical, apart from failed digests."""
    ranks = comparison.ranks
    only = {"A": sum(each.only_a for each in ranks), "B": sum(each.only_b for each in ranks)}
    more = [f"{name} has {number:,} more" for name, number in only.items() if number]
    ends = [each for each in ranks if each.ends is not None]
    for each in ends[:_MOST_RANKS]:
        if each.ends is not None:
            rank = "" if each.rank is None else f" of rank {each.rank}"
            yield f"{each.ends[0]} ends within step {each.ends[1]}{rank}"
    if len(ends) > _MOST_RANKS:
        yield f"and {len(ends) - _MOST_RANKS:,} more ranks"
    if more:
        yield " and ".join(more)
    yield from gap_texts(comparison)


def gap_texts(comparison: RunComparison) -> Iterator[str]:
    """Yield the ranks that are not compared, and the marks that each run lost."""
    if comparison.left_out:
        yield f"{count(comparison.left_out, 'more rank')} of a run are not compared"
    for name, number in zip("AB", comparison.dropped, strict=True):
        if number:
            yield f"{name} dropped {count(number, 'mark')} while recording, digests perhaps too"


def _except(comparison: RunComparison) -> str:
    """Return the generators of random numbers that differ without effect."""
    if not any(each.generators is not None or each.had_effectless for each in comparison.ranks):
        return ""
    idle = sorted({printable(name) for each in comparison.ranks for name in each.idle})
    named = f" ({', '.join(idle)})" if idle else ""
    return f", apart from generators of random numbers that have no effect{named}"


def _reason(comparison: RunComparison) -> str:
    """Return the reason why no step was compared."""
    has = {
        "A": any(each.only_a for each in comparison.ranks),
        "B": any(each.only_b for each in comparison.ranks),
    }
    lacking = [name for name, is_present in has.items() if not is_present]
    if not lacking:
        return "both runs have digests, but no step with the same numbers"
    who = f"{lacking[0]} has" if len(lacking) == 1 else "the runs have"
    return f"{who} no digests of steps: record with `run --digest step`"
