"""The rules on device memory: pressure, imbalance and creep."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from .step_rules import listed, named, percent, severity_of
from .thresholds import Thresholds
from .verdict import Severity, Verdict
from .window import RankMemory, skew_of

_MIB = 1024**2
MEMORY_RULES = ("HIGH_PRESSURE", "IMBALANCE", "CREEP")


def memory_verdicts(
    memory: Sequence[RankMemory], limits: Thresholds
) -> tuple[list[Verdict], dict[str, str]]:
    """Return the verdicts on the ranks' peaks, and the reasons for rules that were not assessed."""
    need = round(limits["memory.steps"])
    ready = [each for each in memory if each.steps >= need]
    if not ready:
        most = max((each.steps for each in memory), default=0)
        reason = (
            f"{most} steps with a peak: {need} are needed" if most
            else "no step has a peak of device memory"
        )  # fmt: skip
        return [], dict.fromkeys(MEMORY_RULES, reason)
    verdicts: list[Verdict] = []
    missing: dict[str, str] = {}
    pressure = _worst_pressure(ready)
    if pressure is None:
        missing["HIGH_PRESSURE"] = "the capacity of the device is not recorded"
    else:
        verdicts += _pressure(*pressure, limits)
    if len(ready) < 2:
        missing["IMBALANCE"] = "needs 2 ranks with peaks"
    elif pressure is None:
        missing["IMBALANCE"] = "the capacity of the device is not recorded"
    else:
        verdicts += _imbalance(ready, pressure[1], limits)
    if any(each.course is None for each in ready):
        missing["CREEP"] = "a part of the window has no peaks"
    else:
        verdicts += _creep(ready, limits)
    return verdicts, missing


def _worst_pressure(memory: Sequence[RankMemory]) -> tuple[RankMemory, float] | None:
    known = [(each, each.peak / each.capacity) for each in memory if each.capacity]
    return max(known, key=lambda pair: pair[1], default=None)


def _pressure(worst: RankMemory, pressure: float, limits: Thresholds) -> Iterator[Verdict]:
    severity = severity_of(pressure, "pressure", limits)
    if severity is not None:
        yield Verdict(
            "HIGH_PRESSURE",
            severity,
            f"the memory of {named(worst.rank)} peaks at {_mib(worst.peak)} of"
            f" {_mib(worst.capacity or 0)}, {percent(pressure)}",
            "a smaller batch, activation checkpointing, or sharded optimizer state",
            listed(worst.rank),
            "memory",
            share=pressure,
            evidence={"peak_bytes": worst.peak, "capacity_bytes": worst.capacity},
        )


def _imbalance(
    memory: Sequence[RankMemory], pressure: float, limits: Thresholds
) -> Iterator[Verdict]:
    peaks = [each.peak for each in memory]
    skew = skew_of(peaks)
    severity: Severity
    if skew >= limits["imbalance.crit"] and pressure >= limits["imbalance.crit_pressure"]:
        severity = "crit"
    elif skew >= limits["imbalance.warn"] and pressure >= limits["imbalance.warn_pressure"]:
        severity = "warn"
    else:
        return
    worst = max(memory, key=lambda each: each.peak)
    yield Verdict(
        "IMBALANCE",
        severity,
        f"the memory of {named(worst.rank)} peaks at {_mib(worst.peak)}, {percent(skew)} above the"
        f" median rank",
        "balance the ranks: batches of equal length, or another division of the model",
        listed(worst.rank),
        "memory",
        share=skew,
        evidence={
            "peak_bytes": worst.peak,
            "median_peak_bytes": round(statistics.median(peaks)),
            "pressure": pressure,
        },
    )


def _creep(memory: Sequence[RankMemory], limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict if the memory of the worst and of the median rank grows all the time."""
    by_peak = sorted(memory, key=lambda each: each.peak)
    worst, middle = by_peak[-1], by_peak[(len(by_peak) - 1) // 2]
    if worst.course is None or not (_grows(worst) and _grows(middle)):
        return
    early, _, late = worst.course
    growth = late - early
    is_confirmed = growth >= limits["creep.bytes"]
    yield Verdict(
        "CREEP_CONFIRMED" if is_confirmed else "CREEP_EARLY",
        "warn" if is_confirmed else "info",
        f"the memory of {named(worst.rank)} grew by {_mib(growth)} during the window",
        "look for tensors that outlive their step: losses without .item(), lists of outputs,"
        " caches",
        listed(worst.rank),
        "memory",
        share=growth / early if early > 0 else None,
        evidence={
            "growth_bytes": round(growth),
            "means_bytes": [round(each) for each in worst.course],
        },
    )


def _grows(memory: RankMemory) -> bool:
    course = memory.course
    return course is not None and course[0] < course[1] < course[2]


def _mib(size: float) -> str:
    return f"{size / _MIB:,.0f} MiB"
