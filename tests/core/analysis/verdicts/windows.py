"""Windows of steps for tests, with times in round numbers."""

from __future__ import annotations

from typing import Any

from cirron_otel.core.analysis.verdicts.diagnosis import Diagnosis, diagnose
from cirron_otel.core.analysis.verdicts.thresholds import Policy, thresholds_of
from cirron_otel.core.analysis.verdicts.verdict import Verdict
from cirron_otel.core.analysis.verdicts.window import RankMemory, RankSteps, StepMeans, StepWindow

STEP = 1_000_000.0
"""The time of a step without its input, ns."""
GB = 10**9


def means(
    *, input: float = 0, h2d: float = 0, forward: float = 0, backward: float = 0,
    optimizer: float = 0, step: float = STEP, **others: float,
) -> StepMeans:  # fmt: skip
    """Return mean times, given as fractions of a step of 1 ms."""
    return StepMeans(
        step, input * STEP, h2d * STEP, forward * STEP, backward * STEP, optimizer * STEP,
        {name: share * STEP for name, share in others.items()},
    )  # fmt: skip


def quiet(**parts: float) -> StepMeans:
    """Return a step that no rule names: 70 % compute and 16 % in the user's scope."""
    return means(**{"forward": 0.3, "backward": 0.3, "optimizer": 0.1, "augment": 0.16} | parts)


def window(
    *ranks: StepMeans, policy: Policy = "run", steps: int = 300, **fields: Any
) -> StepWindow:
    """Return a window in which rank 0, 1, ... have these means."""
    return StepWindow(
        policy, steps, [RankSteps(rank, each) for rank, each in enumerate(ranks)], **fields
    )


def diagnosed(of: StepWindow, *changes: str) -> Diagnosis:
    """Return the diagnosis of a window."""
    return diagnose(of, thresholds_of(of.policy, changes))


def verdict(of: StepWindow, kind: str, *changes: str) -> Verdict | None:
    """Return the verdict of one kind, if it is given."""
    matches = [each for each in diagnosed(of, *changes).verdicts if each.kind == kind]
    assert len(matches) <= 1
    return matches[0] if matches else None


def severity(of: StepWindow, kind: str, *changes: str) -> str | None:
    """Return the severity of the verdict of one kind; None if it is not given."""
    found = verdict(of, kind, *changes)
    return None if found is None else found.severity


def memory(rank: int, peak: int, **fields: Any) -> RankMemory:
    """Return a rank's memory of 100 GB, of which `peak` bytes are used all the time."""
    return RankMemory(
        rank, **{"steps": 50, "peak": peak, "capacity": 100 * GB, "course": (peak,) * 3} | fields
    )
