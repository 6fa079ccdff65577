"""The rules on the times of steps: stragglers, input, wait and compute."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...durations import duration
from .thresholds import Thresholds
from .verdict import Kind, Severity, Verdict
from .window import RankSteps, StepMeans, median_of, skew_of

Measured = tuple[int | None, StepMeans]
"""A rank and its mean times."""

_NAMED: Final[dict[str, Kind]] = {
    "input": "INPUT_STRAGGLER", "compute": "COMPUTE_STRAGGLER", "h2d": "H2D_STRAGGLER",
    "wait": "WAIT_STRAGGLER",
}  # fmt: skip
_LOOK: Final = {
    "input": "compare this rank's storage, its share of the data and its DataLoader workers with"
    " the other ranks'",
    "compute": "compare this rank's batches, its device's clock and the other load of its host"
    " with the other ranks'",
    "h2d": "check this rank's batch size, pin_memory=True, and the link of its device",
    "wait": "name the work between this rank's phases with ci.scope(...), to see what takes the"
    " time",
    "": "compare this rank's phases with the other ranks' in the table",
}
_LOOK_OUTSIDE: Final = "look at what this rank does between its steps: evaluation, saving, logging"


@dataclass(frozen=True, slots=True)
class Clean:
    """A rank's times without the time that its backward pass waits for other ranks, ns."""

    rank: int | None
    times: StepMeans
    backward: float

    @property
    def compute(self) -> float:
        """Forward, clean backward and optimizer."""
        return self.times.forward + self.backward + self.times.optimizer

    @property
    def step(self) -> float:
        """Input, h2d, clean compute, late time, and the scopes that are neither."""
        times = self.times
        return times.input + times.h2d + self.compute + self.late + sum(times.others.values())

    @property
    def late(self) -> float:
        """The wait, with the time after the step: both delay this rank's next backward pass."""
        return self.times.wait + self.times.outside


def clean_times(ranks: Sequence[Measured]) -> list[Clean]:
    """Return the clean times of all ranks.

    The rank that does the most outside of its backward pass arrives last at the reduction of the
    gradients. The others wait for it there, for the difference.
    """
    without = [_without_backward(times) for _, times in ranks]
    most = max(without, default=0.0)
    return [
        Clean(rank, times, max(0.0, times.backward - (most - rest)))
        for (rank, times), rest in zip(ranks, without, strict=True)
    ]


def _without_backward(times: StepMeans) -> float:
    own = times.input + times.h2d + times.forward + times.optimizer + times.wait
    return own + times.outside + sum(times.others.values())


def severity_of(value: float, name: str, limits: Thresholds) -> Severity | None:
    """Return the severity of a value by the thresholds `NAME.warn` and `NAME.crit`."""
    if value >= limits[f"{name}.crit"]:
        return "crit"
    return "warn" if value >= limits[f"{name}.warn"] else None


def step_verdicts(ranks: Sequence[RankSteps], limits: Thresholds) -> list[Verdict]:
    """Return the verdicts on the mean times of all steps of the window."""
    return list(_verdicts([(each.rank, each.means) for each in ranks], limits))


def typical_verdicts(ranks: Sequence[RankSteps], limits: Thresholds) -> list[Verdict]:
    """Return the verdicts on the same steps without the few slow ones."""
    return list(_verdicts([(each.rank, each.typical or each.means) for each in ranks], limits))


def _verdicts(ranks: Sequence[Measured], limits: Thresholds) -> Iterator[Verdict]:
    if not ranks:
        return
    straggler = _straggler(ranks, limits)
    if straggler is not None:
        yield straggler
    step = median_of((times for _, times in ranks), lambda times: times.step)
    if step <= 0:
        return
    input_share = _share(ranks, lambda times: times.input, step)
    wait_share = _share(ranks, lambda times: times.wait, step)
    yield from _input(ranks, input_share, step, limits)
    yield from _wait(ranks, wait_share, step, limits)
    is_low = input_share < limits["input.warn"] and wait_share < limits["wait.warn"]
    if straggler is None and is_low:
        yield from _compute(ranks, step, limits)


def _share(ranks: Sequence[Measured], value: Callable[[StepMeans], float], step: float) -> float:
    return median_of((times for _, times in ranks), value) / step


def _straggler(ranks: Sequence[Measured], limits: Thresholds) -> Verdict | None:
    if len(ranks) < 2:
        return None
    clean = clean_times(ranks)
    middle = statistics.median(each.step for each in clean)
    typical = median_of((times for _, times in ranks), lambda times: times.input + times.step)
    worst = max(clean, key=lambda each: each.step)
    if typical <= 0:
        return None
    score = (worst.step - middle) / typical
    severity = severity_of(score, "straggler", limits)
    if severity is None:
        return None
    excess = _excess(worst, clean)
    second, first = sorted(excess.values())[-2:]
    is_named = first > 0 and first >= limits["straggler.dominance"] * second
    phase = max(excess, key=lambda name: excess[name]) if is_named else None
    slack = duration(round(worst.step - middle))
    place = f"most of it in {phase}" if phase else "in several phases"
    advice = _LOOK.get(phase or "", _LOOK[""])
    if phase == "wait" and _is_late_outside(worst, clean):
        place, advice = "most of it between its steps", _LOOK_OUTSIDE
    return Verdict(
        _NAMED.get(phase or "", "STRAGGLER"),
        severity,
        f"without waiting for others, {named(worst.rank)} takes {slack} longer per step than the"
        f" median rank, {percent(score)} of a step, {place}",
        advice,
        listed(worst.rank),
        phase,
        score=score,
        evidence={
            "clean_step_median_ns": round(middle),
            "clean_step_worst_ns": round(worst.step),
            "typical_step_ns": round(typical),
            "excess_ns": {name: round(value) for name, value in excess.items()},
        },
    )


def _is_late_outside(worst: Clean, clean: Sequence[Clean]) -> bool:
    """Return whether the worst rank is late after its steps rather than in them."""
    outside, wait = (
        getattr(worst.times, name) - statistics.median(getattr(each.times, name) for each in clean)
        for name in ("outside", "wait")
    )
    return bool(outside > wait)


def _excess(worst: Clean, clean: Sequence[Clean]) -> dict[str, float]:
    """Return how much the worst rank exceeds the median of each part of a step, at least 0.

    A user's scope is a part of its own, under its name.
    """
    parts: dict[str, Callable[[Clean], float]] = {
        "input": lambda each: each.times.input,
        "compute": lambda each: each.compute,
        "h2d": lambda each: each.times.h2d,
        "wait": lambda each: each.late,
    }
    excess = {
        f"{name} (scope)" if name in parts else name: worst.times.others[name]
        - statistics.median(each.times.others.get(name, 0.0) for each in clean)
        for name in worst.times.others
    }
    for name, value in parts.items():
        excess[name] = value(worst) - statistics.median(map(value, clean))
    return {name: max(0.0, value) for name, value in excess.items()}


def _input(
    ranks: Sequence[Measured], share: float, step: float, limits: Thresholds
) -> Iterator[Verdict]:
    severity = severity_of(share, "input", limits)
    skew = skew_of([times.input for _, times in ranks]) if len(ranks) > 1 else 0.0
    if severity is None or skew > limits["input.skew"]:
        return
    worst = _worst(ranks, lambda times: times.input)
    yield Verdict(
        "INPUT_BOUND",
        severity,
        f"loading takes {duration(round(share * step))} per step, {percent(share)} of the"
        f" {duration(round(step))} that the step itself takes",
        "more workers and prefetching: DataLoader(num_workers=..., prefetch_factor=...), or less"
        " work per sample",
        listed(worst[0]),
        "input",
        share=share,
        evidence={
            "input_ns": round(share * step),
            "step_ns": round(step),
            "worst_ns": round(worst[1].input),
            "skew": _finite(skew),
        },
    )


def _wait(
    ranks: Sequence[Measured], share: float, step: float, limits: Thresholds
) -> Iterator[Verdict]:
    severity = severity_of(share, "wait", limits)
    if severity is None:
        return
    worst = _worst(ranks, lambda times: times.wait)
    yield Verdict(
        "WAIT_HEAVY",
        severity,
        f"{duration(round(share * step))} of a {duration(round(step))} step, {percent(share)}, is"
        " in no phase: waiting, or work that no scope names",
        "avoid .item(), .cpu() and printing in every step; name other work with ci.scope(...)",
        listed(worst[0]),
        "wait",
        share=share,
        evidence={
            "wait_ns": round(share * step),
            "step_ns": round(step),
            "worst_ns": round(worst[1].wait),
        },
    )


def _compute(ranks: Sequence[Measured], step: float, limits: Thresholds) -> Iterator[Verdict]:
    share = _share(ranks, lambda times: times.compute, step)
    skew = skew_of([each.compute for each in clean_times(ranks)])
    severity = severity_of(share, "compute", limits)
    if severity is None or skew > limits["compute.skew"]:
        return
    worst = _worst(ranks, lambda times: times.compute)
    yield Verdict(
        "COMPUTE_BOUND",
        severity,
        f"forward, backward and optimizer take {percent(share)} of a {duration(round(step))} step:"
        " the device is well used",
        "nothing is wrong; for more speed: mixed precision, torch.compile, or a larger batch",
        listed(worst[0]),
        "compute",
        share=share,
        evidence={
            "compute_ns": round(share * step),
            "step_ns": round(step),
            "skew": _finite(skew),
        },
    )


def _worst(ranks: Sequence[Measured], value: Callable[[StepMeans], float]) -> Measured:
    return max(ranks, key=lambda each: value(each[1]))


def _finite(skew: float) -> float | None:
    """Return a skew; None for an infinite one, which JSON cannot represent."""
    return None if skew == float("inf") else skew


def named(rank: int | None) -> str:
    """Return the name of a rank in a sentence."""
    return "the process" if rank is None else f"rank {rank}"


def listed(rank: int | None) -> list[int]:
    """Return a rank as a list; empty for a process without a rank."""
    return [] if rank is None else [rank]


def percent(share: float) -> str:
    """Return a share as a percentage with one digit."""
    return f"{100 * share:.1f} %"
