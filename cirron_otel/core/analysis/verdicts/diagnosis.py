"""The diagnosis of a window of steps: a pure function, the same for every source."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from .memory_rules import memory_verdicts
from .state_rules import state_verdicts
from .step_rules import percent, step_verdicts, typical_verdicts
from .thresholds import Policy, Thresholds
from .verdict import Verdict, order_of
from .window import Clock, StepMeans, StepNumber, StepWindow

_NO_STEPS = (
    "`cirron-otel report` shows the scopes; steps are recorded around an optimizer of torch, by a"
    " trainer, or with ci.scope('step')"
)
"""The advice if no step is recorded, or if the ranks have none in common."""
_STEP_RULES = ("STRAGGLER", "INPUT_BOUND", "WAIT_HEAVY", "COMPUTE_BOUND")


@dataclass(frozen=True, slots=True)
class PhaseComparison:
    """The mean time of one phase in the first rank, the median and the worst rank, ns."""

    name: str
    first_rank: int | None
    first_ns: float
    median_ns: float
    worst_rank: int | None
    worst_ns: float
    is_scope: bool
    """Whether it is a scope that is neither compute nor wait, such as one of the user's."""


@dataclass(slots=True)
class Diagnosis:
    """The verdicts on a window, the primary one first."""

    policy: Policy
    clock: Clock
    steps: int
    first: StepNumber | None
    last: StepNumber | None
    ranks: list[int | None]
    verdicts: list[Verdict]
    phases: list[PhaseComparison]
    not_assessed: dict[str, str]
    """The rules that could not be applied, each with the reason."""
    summarised_steps: int = 0
    """The steps of the window, of all ranks, that an export budget sent as summaries."""

    @property
    def primary(self) -> Verdict:
        """The verdict that matters most."""
        return self.verdicts[0]

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON object; times in ns."""
        return {
            "ranks": self.ranks,
            "window": {
                "policy": self.policy,
                "clock": self.clock,
                "steps": self.steps,
                "summarised": self.summarised_steps,
                "first": None if self.first is None else self.first._asdict(),
                "last": None if self.last is None else self.last._asdict(),
            },
            "primary": self.primary.kind,
            "verdicts": [each.to_json() for each in self.verdicts],
            "phases": [asdict(each) for each in self.phases],
            "not_assessed": [
                {"rule": rule, "reason": reason} for rule, reason in self.not_assessed.items()
            ],
        }


def diagnose(window: StepWindow, limits: Thresholds) -> Diagnosis:
    """Return the diagnosis of a window by the thresholds of its policy."""
    on_steps, missing = _on_steps(window, limits)
    on_memory, missing_memory = memory_verdicts(window.memory, limits)
    on_state, missing_state = state_verdicts(window, limits)
    return Diagnosis(
        window.policy,
        window.clock,
        window.steps,
        window.first,
        window.last,
        [each.rank for each in window.ranks],
        sorted([*on_steps, *on_memory, *on_state], key=order_of),
        list(_phases(window)),
        missing | missing_memory | missing_state,
        window.summarised,
    )


def _on_steps(window: StepWindow, limits: Thresholds) -> tuple[list[Verdict], dict[str, str]]:
    """Return the verdicts on the steps: at least one."""
    need = round(limits["warmup.steps"])
    if window.steps < need:
        reason = f"{window.steps} aligned steps: {need} are needed"
        verdict = Verdict(
            "WARMUP",
            "info",
            f"{window.steps} steps are common to all ranks; a diagnosis needs {need}",
            "let the job run for more steps" if window.steps else _NO_STEPS,
            evidence={"steps": window.steps, "needed": need},
        )
        return [verdict], dict.fromkeys(_STEP_RULES, reason)
    missing = {}
    if len(window.ranks) < 2:
        missing["STRAGGLER"] = "needs 2 ranks"
    if window.missing_ranks:
        listed = ", ".join(map(str, window.missing_ranks[:10]))
        more = "" if len(window.missing_ranks) <= 10 else " and more"
        missing["STRAGGLER"] = f"no step of rank {listed}{more} is recorded"
    verdicts = step_verdicts(window.ranks, limits)
    if window.slow_steps:
        _note_few_steps(window, verdicts, limits)
    if not verdicts:
        verdicts = [
            Verdict(
                "BALANCED",
                "info",
                "no part of the step stands out",
                "nothing is wrong; `cirron-otel report` lists the phases",
            )
        ]
    return verdicts, missing


def _note_few_steps(window: StepWindow, verdicts: list[Verdict], limits: Thresholds) -> None:
    """Note in verdicts that would not be given without the few slow steps that they depend on."""
    without = {each.kind for each in typical_verdicts(window.ranks, limits)}
    for verdict in verdicts:
        if verdict.kind not in without:
            verdict.why += (
                f"; {window.slow_steps} of the {window.steps} steps carry this verdict"
                f" ({percent(window.slow_steps / window.steps)}), for example by compilation"
            )
            verdict.evidence["slow_steps"] = window.slow_steps


_PARTS: Final[dict[str, Callable[[StepMeans], float]]] = {
    "input": lambda times: times.input,
    "h2d": lambda times: times.h2d,
    "forward": lambda times: times.forward,
    "backward": lambda times: times.backward,
    "optimizer": lambda times: times.optimizer,
    "wait": lambda times: times.wait,
    "step": lambda times: times.step,
    "outside": lambda times: times.outside,
}


def _phases(window: StepWindow) -> Iterator[PhaseComparison]:
    """Yield the parts of a step, then the scopes that are neither compute nor wait."""
    if not window.ranks:
        return
    for name, value in _PARTS.items():
        yield from _compared(window, name, value)
    names = dict.fromkeys(name for each in window.ranks for name in each.means.others)
    for scope in names:
        yield from _compared(
            window, scope, lambda times, scope=scope: times.others.get(scope, 0.0), is_scope=True
        )


def _compared(
    window: StepWindow, name: str, value: Callable[..., float], *, is_scope: bool = False
) -> Iterator[PhaseComparison]:
    values = [(each.rank, value(each.means)) for each in window.ranks]
    if any(ns for _, ns in values):
        worst = max(values, key=lambda pair: pair[1])
        median = statistics.median(ns for _, ns in values)
        yield PhaseComparison(name, *values[0], median, *worst, is_scope)
