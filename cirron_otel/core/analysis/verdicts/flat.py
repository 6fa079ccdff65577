"""A diagnosis as a flat dictionary of numbers and strings, for experiment trackers."""

from __future__ import annotations

from typing import Final

from .diagnosis import Diagnosis

PREFIX: Final = "cirron/"
_MS: Final = 1_000_000
FlatSummary = dict[str, str | int | float]


def flat_summary(diagnosis: Diagnosis) -> FlatSummary:
    """Return the verdicts with their scores or shares, and the median time of each phase in ms.

    The key of a verdict is its kind in lower case; a verdict without a number is 1.
    """
    primary = diagnosis.primary
    summary: FlatSummary = {
        "primary": primary.kind,
        "severity": primary.severity,
        "why": primary.why,
        "clock": diagnosis.clock,
        "steps": diagnosis.steps,
        "ranks": len(diagnosis.ranks),
    }
    for verdict in diagnosis.verdicts:
        size = verdict.score if verdict.score is not None else verdict.share
        summary[f"verdict/{verdict.kind.lower()}"] = 1 if size is None else size
    for phase in diagnosis.phases:
        kind = "scope" if phase.is_scope else "phase"
        summary[f"{kind}/{phase.name}_ms"] = phase.median_ns / _MS
    return {PREFIX + key: value for key, value in summary.items()}
