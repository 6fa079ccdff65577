"""The thresholds of all findings, by name. docs/findings.md lists the same table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ....errors import UsageError
from .finding import Severity

GIB: Final = 1024**3


class Limit(NamedTuple):
    """The default of a threshold."""

    value: float
    meaning: str


_OF_TIME: Final[Mapping[str, tuple[float, ...]]] = {
    "start_up": (0.10, 0.25), "warm_up": (0.10, 0.25), "compilation": (0.10, 0.25),
    "restarted": (0.05, 0.20), "stalled": (0.05, 0.20),
    "garbage_collection": (0.05, 0.20), "tracing": (0.05, 0.20),
    "cpu_contention": (0.05,),
    "slow_first_batch": (0.05, 0.20), "spikes": (0.05, 0.20), "slowing_down": (0.05, 0.20),
    "slow_interval": (0.05, 0.20), "straggler": (0.05, 0.20), "uneven": (0.05, 0.20),
    "input_bound": (0.05, 0.20), "h2d_bound": (0.05, 0.20),
    "wait_heavy": (0.10, 0.25), "between_units": (0.10, 0.25),
    "optimizer_heavy": (0.10, 0.25), "loss_heavy": (0.10, 0.25),
    "evaluation_heavy": (0.15, 0.30), "checkpoint_heavy": (0.05, 0.20),
    "logging_heavy": (0.05, 0.20), "communication_bound": (0.05, 0.20),
}  # fmt: skip
"""The shares of the time at which a kind is a warning, and critical if it can be."""
_NOTICES: Final[Mapping[str, float]] = {
    "forward_heavy": 0.10, "other_scope": 0.10, "rank_jitter": 0.05,
}  # fmt: skip
"""The shares of the time at which a kind is listed as a notice."""
_OF_SHORT_RUNS: Final[Mapping[str, float]] = {
    "spikes": 1, "slow_interval": 1, "slowing_down": 1, "tracing": 1,
}  # fmt: skip
"""The seconds, mean of a rank, below which a kind is not critical: in a run of seconds, a moment in
which the machine has other work is a large part."""


def _of_time() -> Iterator[tuple[str, Limit]]:
    for name, (warning, *critical) in _OF_TIME.items():
        yield f"{name}.warning", Limit(warning, "share of the time for a warning")
        for share in critical:
            yield f"{name}.critical", Limit(share, "share of the time for `critical`")
    for name, notice in _NOTICES.items():
        yield f"{name}.notice", Limit(notice, "share of the time for a notice")
    for name, seconds in _OF_SHORT_RUNS.items():
        yield (
            f"{name}.seconds",
            Limit(seconds, "mean cost of a rank below which none is critical"),
        )


LIMITS: Final[Mapping[str, Limit]] = {
    **dict(_of_time()),
    "warning.share": Limit(0.02, "share of the total time below which a warning is a notice"),
    "short_run.seconds": Limit(60, "extent below which slow starts are notices"),
    "stalled.factor": Limit(10, "silence of a rank of a running job / median unit"),
    "stalled.seconds": Limit(3, "silence of a rank, at least, because batches arrive late"),
    "stalled.work_seconds": Limit(600, "silence in an open evaluation, checkpoint or compilation"),
    "spikes.factor": Limit(3, "cycle of a spike / median cycle"),
    "spikes.deviations": Limit(5, "deviations of a spike from the median cycle"),
    "interval.factor": Limit(1.25, "cycle of a slow interval / median cycle"),
    "interval.units": Limit(8, "units of a slow interval"),
    "slowing_down.factor": Limit(1.2, "last fifth / first fifth of the cycles"),
    "straggler.excess": Limit(0.02, "excess of a persistent straggler / median cycle"),
    "straggler.step_excess": Limit(0.05, "excess in a single unit / median cycle"),
    "diverging.first": Limit(2, "last tenth of a loss / first tenth"),
    "diverging.best": Limit(3, "last tenth of a loss / smallest tenth"),
    "exploding.factor": Limit(100, "gradient norm / median of the last 100"),
    "pressure.warning": Limit(0.92, "peak memory / capacity of the device"),
    "pressure.critical": Limit(0.97, "peak memory / capacity of the device"),
    "imbalance.warning": Limit(0.20, "largest peak / median peak of the ranks - 1"),
    "imbalance.warning_pressure": Limit(0.30, "smallest pressure for a warning"),
    "imbalance.critical": Limit(0.30, "largest peak / median peak of the ranks - 1"),
    "imbalance.critical_pressure": Limit(0.50, "smallest pressure for `critical`"),
    "creep.bytes": Limit(GIB, "growth that confirms creep, in bytes"),
    "creep.fit": Limit(0.9, "coefficient of determination of the growth of a host's memory"),
    "cpu.notice": Limit(0.80, "mean CPU utilisation"),
    "gpu_utilization.notice": Limit(0.30, "mean GPU utilisation below which it is low"),
    "gpu_temperature.notice": Limit(85, "highest temperature of a GPU, in °C"),
}


KINDS: Final[Mapping[str, str]] = {
    **{name.upper(): name for name in (*_OF_TIME, *_NOTICES)},
    "INPUT_SPIKES": "spikes",
    "INPUT_STRAGGLER": "straggler", "COMPUTE_STRAGGLER": "straggler",
    "H2D_STRAGGLER": "straggler", "WAIT_STRAGGLER": "straggler",
    "FAILED": "", "KILLED": "", "OUT_OF_MEMORY": "", "RANK_MISSING": "",
    "NON_FINITE": "", "DIVERGING": "diverging", "EXPLODING_GRADIENT": "exploding",
    "HIGH_PRESSURE": "pressure", "IMBALANCE": "imbalance",
    "CREEP_EARLY": "creep", "CREEP_CONFIRMED": "creep",
    "HIGH_CPU": "cpu", "LOW_GPU_UTIL": "gpu_utilization", "GPU_HOT": "gpu_temperature",
    "REPLICAS_DIFFER": "", "INCOMPLETE": "",
}  # fmt: skip
"""All kinds of findings, each with the prefix of its thresholds; empty if it has none."""


def is_notice(kind: str) -> bool:
    """Return whether all findings of a kind are notices."""
    return f"{KINDS[kind]}.notice" in LIMITS


@dataclass(frozen=True, slots=True)
class Limits:
    """The values of all thresholds, with the changes that the user made."""

    changes: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """Return the value of a threshold. Raises KeyError for an unknown name."""
        return self.changes[name] if name in self.changes else LIMITS[name].value

    def severity(self, name: str, value: float) -> Severity:
        """Return the severity of a value by the thresholds `NAME.warning` and `NAME.critical`."""
        critical = f"{name}.critical"
        if critical in LIMITS and value >= self[critical]:
            return "critical"
        return "warning" if value >= self[f"{name}.warning"] else "notice"

    def is_brief(self, name: str, seconds: float) -> bool:
        """Return whether a cost, the mean of a rank, is too short for the severity `critical`."""
        return name in _OF_SHORT_RUNS and seconds < self[f"{name}.seconds"]

    def to_json(self) -> dict[str, float]:
        """Return all thresholds by name."""
        return {name: self[name] for name in LIMITS}


def limits_of(assignments: Iterable[str] = ()) -> Limits:
    """Return the thresholds with changes given as `NAME=VALUE`. Raises UsageError."""
    limits = Limits(dict(_assignment(text) for text in assignments))
    for critical in (name for name in LIMITS if name.endswith(".critical")):
        warning = critical.removesuffix("critical") + "warning"
        if limits.changes.keys() & {warning, critical} and limits[warning] > limits[critical]:
            raise UsageError(
                f"{warning} is {limits[warning]:g}, which is above {critical},"
                f" {limits[critical]:g}: set both"
            )
    return limits


def _assignment(text: str) -> tuple[str, float]:
    name, separator, value = text.partition("=")
    if not separator:
        raise UsageError(
            f"{text!a} is not a setting: expected NAME=VALUE, as in input_bound.warning=0.1"
        )
    if name not in LIMITS:
        raise UsageError(
            f"no threshold has the name {name!a}: docs/findings.md lists them, for example"
            f" {', '.join(list(LIMITS)[:3])}"
        )
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise UsageError(f"{name}={value!a}: expected a number of 0 or more")
    return name, number
