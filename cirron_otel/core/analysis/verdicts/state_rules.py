"""The rules of this project: stalls, non-finite values, time between steps, and utilisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...durations import SECOND_NS, duration
from ...run.utilization import Utilization
from .step_rules import listed, named, percent, severity_of
from .thresholds import Thresholds
from .verdict import Kind, Verdict
from .window import NonFinite, StepWindow

_MOST_NAMES = 5


def state_verdicts(window: StepWindow, limits: Thresholds) -> tuple[list[Verdict], dict[str, str]]:
    """Return the verdicts of these rules, and the reasons for those that were not assessed."""
    verdicts = [*_stalled(window, limits), *_non_finite(window.non_finite)]
    need = round(limits["warmup.steps"])
    if window.steps >= need:
        verdicts += _outside(window, limits)
    verdicts += _high_cpu(window.cpu, limits)
    verdicts += _low_utilization(window.gpu, limits)
    verdicts += _hot(window.temperature, limits)
    missing = {}
    if window.steps < need:
        missing["OUTSIDE_STEPS"] = f"{window.steps} aligned steps: {need} are needed"
    elif not window.outside:
        missing["OUTSIDE_STEPS"] = "needs 2 steps of one session"
    for kind, readings, what in (
        ("HIGH_CPU", window.cpu, "CPU utilisation"),
        ("LOW_GPU_UTIL", window.gpu, "GPU utilisation"),
        ("GPU_HOT", window.temperature, "temperature of a GPU"),
    ):
        if not readings:
            missing[kind] = f"no {what} is recorded"
    return verdicts, missing


def _stalled(window: StepWindow, limits: Thresholds) -> Iterator[Verdict]:
    """Yield a verdict on the rank of a running job that has been silent for the longest time."""
    stalls = [
        each for each in window.stalls
        if each.median_step_ns > 0
        and each.silent_ns >= limits["stalled.factor"] * each.median_step_ns
        and each.silent_ns >= limits["stalled.seconds"] * SECOND_NS
    ]  # fmt: skip
    if not stalls:
        return
    worst = max(stalls, key=lambda each: each.silent_ns)
    scope = worst.scopes[-1] if worst.scopes else None
    place = "" if scope is None else f"; the innermost open scope is {scope}"
    yield Verdict(
        "STALLED",
        "crit",
        f"{named(worst.rank)} has finished no step for {duration(worst.silent_ns)}, where a step"
        f" takes {duration(worst.median_step_ns)}{place}",
        "look at the open scope; py-spy dump --pid PID shows the stack of the process",
        sorted(each.rank for each in stalls if each.rank is not None),
        scope,
        share=worst.silent_ns / worst.median_step_ns,
        evidence={
            "silent_ns": worst.silent_ns,
            "median_step_ns": worst.median_step_ns,
            "open_scopes": list(worst.scopes),
        },
    )


def _non_finite(marks: Sequence[NonFinite]) -> Iterator[Verdict]:
    if not marks:
        return
    names = list(dict.fromkeys(each.name for each in marks))
    total = sum(each.times for each in marks)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    values = f"{total:,} value is" if total == 1 else f"{total:,} values are"
    yield Verdict(
        "NON_FINITE",
        "warn",
        f"{values} not a finite number: {', '.join(names[:_MOST_NAMES])}{more}",
        "look for the first one in `cirron-otel report`; a lower learning rate, clipped gradients,"
        " or bfloat16 instead of float16",
        sorted({each.rank for each in marks if each.rank is not None}),
        evidence={"marks": {name: sum(e.times for e in marks if e.name == name) for name in names}},
    )


def _outside(window: StepWindow, limits: Thresholds) -> Iterator[Verdict]:
    shares = [
        (each, each.outside_ns / each.total_ns) for each in window.outside if each.total_ns > 0
    ]
    if not shares:
        return
    worst, share = max(shares, key=lambda pair: pair[1])
    severity = severity_of(share, "outside", limits)
    if severity is not None:
        yield Verdict(
            "OUTSIDE_STEPS",
            severity,
            f"{named(worst.rank)} spends {percent(share)} of its time between steps",
            "look at what runs between steps: evaluation, saving, logging; name it with"
            " ci.scope(...)",
            listed(worst.rank),
            "outside",
            share=share,
            evidence={"outside_ns": worst.outside_ns, "total_ns": worst.total_ns},
        )


def _high_cpu(readings: Sequence[Utilization], limits: Thresholds) -> Iterator[Verdict]:
    worst = max(readings, key=lambda each: each.value, default=None)
    if worst is not None and worst.value >= limits["cpu.warn"]:
        where = "the host" if worst.source == "host" else named(worst.rank)
        yield _reading(
            "HIGH_CPU",
            worst,
            f"the CPUs of {where} are {percent(worst.value)} busy",
            "fewer DataLoader workers or threads (OMP_NUM_THREADS), or less preprocessing",
        )


def _low_utilization(readings: Sequence[Utilization], limits: Thresholds) -> Iterator[Verdict]:
    worst = min(readings, key=lambda each: each.value, default=None)
    if worst is not None and worst.value < limits["gpu_utilization.warn"]:
        yield _reading(
            "LOW_GPU_UTIL",
            worst,
            f"{worst.source} of {named(worst.rank)} is {percent(worst.value)} busy",
            "a larger batch, and less work of the host per step",
        )


def _hot(readings: Sequence[Utilization], limits: Thresholds) -> Iterator[Verdict]:
    worst = max(readings, key=lambda each: each.value, default=None)
    if worst is not None and worst.value >= limits["gpu_temperature.warn"]:
        yield _reading(
            "GPU_HOT",
            worst,
            f"{worst.source} of {named(worst.rank)} reached {worst.value:.0f} °C",
            "check the cooling: a hot device lowers its clock",
        )


def _reading(kind: Kind, worst: Utilization, why: str, advice: str) -> Verdict:
    ranks = [] if worst.source == "host" else listed(worst.rank)
    return Verdict(
        kind, "warn", why, advice, ranks, share=worst.value, evidence={"source": worst.source}
    )
