"""The bound of a run: the part of its wall time that limits its speed, with evidence."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..durations import duration
from .breakdown import COMPONENTS, Breakdown, Component, is_checkpoint, is_collective

if TYPE_CHECKING:
    from .run_time import RankReport, Row

Bound = Literal[
    "input", "forward", "backward", "optimizer", "train step", "communication", "evaluation",
    "checkpoints", "start-up", "stragglers", "idle time", "unattributed time", "other phases",
]  # fmt: skip

_ENOUGH = 0.2
"""The minimum share of the wall time at which an avoidable cost counts as the bound of a run."""
_STRAGGLES = 0.1
"""The minimum excess of a straggler over the median rank, as a fraction of a step."""
_OF_COMPONENT: dict[Component, Bound] = {
    "input": "input", "h2d": "input", "forward": "forward", "backward": "backward",
    "optimizer": "optimizer",
}  # fmt: skip
_KINDS: dict[str, Bound] = {
    **{name: _OF_COMPONENT[component] for name, component in COMPONENTS.items()},
    "train_step": "train step",
    "collective": "communication",
}
_WAITING = frozenset({"backward", "optimizer_step"})
"""Phases in which data-parallel ranks wait for each other."""
_AVOIDABLE: tuple[Bound, ...] = (
    "stragglers", "input", "evaluation", "checkpoints", "start-up", "idle time",
    "unattributed time",
)  # fmt: skip
_OUTSIDE: frozenset[Bound] = frozenset({"evaluation", "checkpoints", "start-up", "idle time"})
_WHAT: dict[Bound, str] = {
    "input": "loading and copying batches",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "train step": "the compiled train step, with its input and its optimizer,",
    "communication": "collectives outside of other phases, with the waiting for other ranks,",
    "evaluation": "evaluation",
    "checkpoints": "saving and loading checkpoints",
    "start-up": "set-up and the slow first steps",
    "stragglers": "waiting for the slowest rank",
    "idle time": "the time outside of steps, after the first one",
    "unattributed time": "the time in steps that no phase covers",
    "other phases": "other phases",
}
_TRY: dict[Bound, tuple[str, ...]] = {
    "input": (
        "more workers: DataLoader(num_workers=..., persistent_workers=True)",
        "less work per sample: decode, resize or tokenize once, ahead of the training",
    ),
    "forward": (
        "mixed precision (torch.autocast) and torch.compile(model)",
        "a larger batch, if the device has room",
    ),
    "backward": (
        "mixed precision (torch.autocast) and torch.compile(model)",
        "a larger batch, if the device has room",
    ),
    "optimizer": (
        "a fused optimizer (fused=True, or foreach=True)",
        "a larger batch, so that there are fewer steps",
    ),
    "train step": (
        "fetch batches ahead: dataset.prefetch(tf.data.AUTOTUNE)",
        "mixed precision, jit_compile=True, or a larger batch",
    ),
    "communication": (
        "gather and log less often: each collective waits for the slowest rank",
        "name the work before a collective with ci.scope(...), to see which rank is late",
    ),
    "evaluation": (
        "evaluate less often, or on fewer batches",
        "torch.inference_mode() and a larger batch in evaluation",
    ),
    "checkpoints": (
        "save less often",
        "save asynchronously (torch.distributed.checkpoint.async_save)",
    ),
    "start-up": (
        "judge the speed by a longer run: this one ended soon after it had started",
        "cache the preparation of the first step between runs: tokenized texts, decoded files",
    ),
    "stragglers": ("compare its phases with those of the other ranks in the table below",),
    "idle time": (
        "look at what runs between steps: logging, metrics, .item(), saving",
        "name it with ci.scope(...), so that it has a row of its own",
    ),
    "unattributed time": (
        "name other work in a step with ci.scope(...), so that it has a row of its own",
        "avoid .item(), .cpu() and printing in every step",
    ),
    "other phases": ("look at the phases of the steps in the table below",),
}
_PINNED = "more workers: DataLoader(num_workers=..., persistent_workers=True, pin_memory=True)"
"""The first suggestion for `input` if batches are copied to a device."""
_WARM_UP = 0.25
"""If slow first steps take more than this share of the start-up, a suggestion addresses them."""


@dataclass(slots=True)
class Straggler:
    """The rank that takes longest per step, not counting the time spent waiting for other ranks."""

    rank: int | None
    own_ns: int
    """The straggler's mean time per step, without waiting for other ranks, ns."""
    others_ns: int
    """The median of the same time over the other ranks, ns."""
    phase: str
    """The phase in which the straggler exceeds the other ranks the most."""
    wait_share: float
    """The share of the steps' time in which the other ranks wait for the straggler."""


@dataclass(slots=True)
class StepsBound:
    """The bound inside the steps, for a run whose main bound is outside of them."""

    bound: Bound
    share: float
    """The share of the time of all steps, 0 to 1."""
    evidence: str
    suggestions: list[str]


@dataclass(slots=True)
class RunBound:
    """The bound of a run: the part of its time that limits its speed, with evidence."""

    bound: Bound
    share: float
    """The share of the wall time of all ranks, without pauses between sessions, 0 to 1."""
    evidence: str
    suggestions: list[str]
    shares: dict[Bound, float]
    """The share of each possible bound, the largest first."""
    in_steps: StepsBound | None = None
    """None if `bound` is a part of the steps."""

    def to_json(self) -> dict[str, Any]:
        """Return the bound as a JSON object."""
        return asdict(self)


def bound_of(ranks: Sequence[RankReport]) -> tuple[RunBound | None, Straggler | None]:
    """Return the bound of the ranks that trained, and the straggler if there is one.

    The bound is None if no rank has steps.
    """
    trained = [each for each in ranks if each.steps.steps.times]
    straggler = _straggler(trained)
    wall = sum(each.time.total_ns - each.time.rows["pauses"] for each in trained)
    if not trained or wall <= 0:
        return None, straggler
    costs = _costs(trained)
    if straggler is not None:
        steps = sum(each.steps.steps.total_ns for each in trained)
        costs["stragglers"] = round(straggler.wait_share * steps)
    shares = {bound: ns / wall for bound, ns in costs.most_common() if ns > 0}
    if not shares:
        return None, straggler
    bound = _choose(shares)
    evidence = _evidence(bound, trained, straggler)
    found = RunBound(bound, shares[bound], evidence, _suggestions(bound, trained), shares)
    if bound in _OUTSIDE:
        found.in_steps = _in_steps(shares, trained, straggler)
    return found, straggler


def _choose(shares: dict[Bound, float]) -> Bound:
    """Return the bound with the largest share; large avoidable bounds are preferred.

    If one rank is slow in a phase, the other ranks need not change, so stragglers take precedence
    over phases.
    """
    avoidable = [bound for bound in shares if bound in _AVOIDABLE and shares[bound] >= _ENOUGH]
    bound = avoidable[0] if avoidable else next(iter(shares))
    return "stragglers" if bound not in _OUTSIDE and "stragglers" in avoidable else bound


def _in_steps(
    shares: dict[Bound, float], ranks: Sequence[RankReport], straggler: Straggler | None
) -> StepsBound | None:
    inside = {bound: share for bound, share in shares.items() if bound not in _OUTSIDE}
    # The time that ranks wait for a straggler is a part of their phases.
    total = sum(share for bound, share in inside.items() if bound != "stragglers")
    if not total:
        return None
    of_steps = {bound: share / total for bound, share in inside.items()}
    bound = _choose(of_steps)
    evidence = _evidence(bound, ranks, straggler)
    return StepsBound(bound, of_steps[bound], evidence, _suggestions(bound, ranks))


def _suggestions(bound: Bound, ranks: Sequence[RankReport]) -> list[str]:
    """Return up to two suggestions that apply to this run."""
    if len(_TRY[bound]) < 2:
        return list(_TRY[bound])
    first, second = _TRY[bound]
    if bound == "input" and any(p.name == "h2d" for each in ranks for p in each.steps.phases):
        first = _PINNED
    elif bound == "backward" and any(each.recompute_ns for each in ranks):
        second = "no activation checkpointing, if the device has room"
    elif bound == "backward" and len(ranks) > 1:
        second = "with DDP, fewer synchronizations (no_sync while gradients accumulate)"
    elif bound == "start-up":
        set_up = sum(each.time.rows["set_up"] for each in ranks)
        warm_up = sum(each.time.rows["warm_up"] for each in ranks)
        if warm_up > _WARM_UP * (set_up + warm_up):
            second = "cache compiled code between runs (TORCHINDUCTOR_CACHE_DIR)"
    return [first, second]


def description_of(bound: Bound) -> str:
    """Return the description of a bound."""
    return _WHAT[bound]


def _costs(ranks: Sequence[RankReport]) -> Counter[Bound]:
    """Return the time of each possible bound, summed over all ranks, ns."""
    costs: Counter[Bound] = Counter()
    for each in ranks:
        steps, rows = each.steps, each.time.rows
        typical = steps.warm_up * steps.steady.median_ns
        excess = max(rows["warm_up"] - typical, 0) if steps.warm_up else 0
        costs["start-up"] += rows["set_up"] + excess
        costs["evaluation"] += rows["evaluation"]
        costs["checkpoints"] += rows["checkpoints"]
        costs["idle time"] += rows["between_steps"] + rows["after_steps"]
        warm = 1 - excess / max(steps.steps.total_ns, 1)
        for phase in steps.phases:
            if not is_checkpoint(phase.name):
                kind = _KINDS.get(phase.name, "other phases")
                costs[kind] += round(phase.total_ns * warm)
        costs["unattributed time"] += round(max(steps.unattributed.total_ns, 0) * warm)
    return costs


def _evidence(bound: Bound, ranks: Sequence[RankReport], straggler: Straggler | None) -> str:
    """Return the figures that support a bound, as a phrase."""
    if bound == "stragglers" and straggler is not None:
        return (
            f"without waiting, rank {straggler.rank} works {_ms(straggler.own_ns)} per step, the"
            f" median rank {_ms(straggler.others_ns)}; the difference is in {straggler.phase}"
        )
    steps = [each.steps for each in ranks]
    step_count = max(sum(each.steps.times for each in steps), 1)
    phases = {name for name, kind in _KINDS.items() if kind == bound}
    if bound in ("unattributed time", "other phases") or phases:
        mean = _mean(bound, phases, steps)
        again = sum(each.recompute_ns for each in ranks) if bound == "backward" else 0
        mean_step = sum(each.steps.total_ns for each in steps) // step_count
        recomputed = f", {_ms(again // step_count)} of it to recompute activations" if again else ""
        return f"{_ms(mean)} of a step's {_ms(mean_step)} on average{recomputed}"
    if bound == "start-up":
        first = [each.time.rows["set_up"] for each in ranks]
        warm = [each.time.rows["warm_up"] for each in ranks]
        slow = f", {_ms(max(warm))} in slow first steps" if max(warm) else ""
        step = "a later step" if step_count > 1 else "the only step"
        return f"{_ms(max(first))} before the first step{slow}; {step} takes {_ms(_typical(steps))}"
    named: dict[str, tuple[Row, ...]] = {
        "evaluation": ("evaluation",),
        "checkpoints": ("checkpoints",),
    }
    rows = named.get(bound, ("between_steps", "after_steps"))
    total_ns = sum(each.time.rows[row] for each in ranks for row in rows)
    return f"{_ms(total_ns // len(ranks))} per rank, {_ms(total_ns // step_count)} for each step"


def _typical(steps: Sequence[Breakdown]) -> int:
    """Return the mean duration of the steps after the warm-up, ns."""
    steady = [each.steady for each in steps]
    return sum(each.total_ns for each in steady) // max(sum(e.times for e in steady), 1)


def _mean(bound: Bound, phases: set[str], steps: Sequence[Breakdown]) -> int:
    total = step_count = 0
    for each in steps:
        step_count += each.steps.times
        if bound == "unattributed time":
            total += max(each.unattributed.total_ns, 0)
        else:
            total += sum(
                phase.total_ns
                for phase in each.phases
                if (phase.name in phases) or (bound == "other phases" and phase.name not in _KINDS)
            )
    return total // max(step_count, 1)


def _straggler(ranks: Sequence[RankReport]) -> Straggler | None:
    """Return the rank that the other ranks wait for; None if no rank clearly stands out."""
    if len(ranks) < 2:
        return None
    busy = {each.rank: _busy_by_phase(each.steps) for each in ranks}
    sums = {rank: sum(phases.values()) for rank, phases in busy.items()}
    slowest = max(sums, key=lambda rank: sums[rank])
    others = [ns for rank, ns in sums.items() if rank != slowest]
    middle = round(statistics.median(others))
    step = statistics.median(each.steps.steps.median_ns for each in ranks)
    if sums[slowest] - middle < _STRAGGLES * max(step, 1):
        return None
    names = sorted({name for phases in busy.values() for name in phases})  # equal ones: the first

    def excess(name: str) -> float:
        times_of_others = [phases.get(name, 0) for rank, phases in busy.items() if rank != slowest]
        return busy[slowest].get(name, 0) - statistics.median(times_of_others)

    waits = sum(max(sums[slowest] - ns, 0) for ns in others)
    mean = sum(each.steps.steps.total_ns for each in ranks) / max(
        sum(each.steps.steps.times for each in ranks), 1
    )
    share = min(waits / len(ranks) / max(mean, 1), 1.0)
    return Straggler(slowest, sums[slowest], middle, max(names, key=excess), share)


def _busy_by_phase(steps: Breakdown) -> dict[str, int]:
    """Return the mean time per step without waiting for other ranks, by phase, ns."""
    step_count = max(steps.steps.times, 1)
    busy = {
        phase.name: phase.total_ns // step_count
        for phase in steps.phases
        if phase.name not in _WAITING and not is_collective(phase.name)
    }
    return busy | {"unattributed": max(steps.unattributed.total_ns, 0) // step_count}


def _ms(ns: float) -> str:
    return duration(round(ns))
