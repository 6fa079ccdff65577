"""A verdict, and the order in which verdicts are presented."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

Severity = Literal["info", "warn", "crit"]
Kind = Literal[
    "STRAGGLER", "INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "H2D_STRAGGLER", "WAIT_STRAGGLER",
    "INPUT_BOUND", "WAIT_HEAVY", "COMPUTE_BOUND", "WARMUP", "BALANCED",
    "HIGH_PRESSURE", "IMBALANCE", "CREEP_CONFIRMED", "CREEP_EARLY",
    "STALLED", "NON_FINITE", "OUTSIDE_STEPS", "HIGH_CPU", "LOW_GPU_UTIL", "GPU_HOT",
]  # fmt: skip
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warn", "crit")
HEALTHY: Final[frozenset[Kind]] = frozenset({"BALANCED", "COMPUTE_BOUND"})
"""Kinds that are a sign of health: their severity never counts as a failure."""
_RANKED: Final[tuple[tuple[Kind, ...], ...]] = (
    ("STRAGGLER",),
    ("INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "H2D_STRAGGLER", "WAIT_STRAGGLER"),
    ("INPUT_BOUND",),
    ("WAIT_HEAVY",),
    ("COMPUTE_BOUND",),
)
_REST: Final[tuple[Kind, ...]] = ("WARMUP", "BALANCED")


@dataclass(slots=True)
class Verdict:
    """A named verdict on a window of steps, with the numbers that support it."""

    kind: Kind
    severity: Severity
    why: str
    """One sentence."""
    next: str
    """The next thing to try."""
    ranks: list[int] = field(default_factory=list)
    """The ranks concerned, the worst first; empty for a process without a rank."""
    phase: str | None = None
    score: float | None = None
    """The excess of a straggler as a fraction of a typical step."""
    share: float | None = None
    """The quantity that is compared with the threshold, for verdicts other than stragglers."""
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        """Whether the verdict is a problem, of severity `warn` or `crit`."""
        return self.kind not in HEALTHY and self.severity != "info"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON object, with either `score` or `share`."""
        document = asdict(self)
        del document["share" if self.score is not None else "score"]
        return document


def order_of(verdict: Verdict) -> tuple[int, int, float]:
    """Return the sort key of a verdict; the least is the primary verdict.

    The ranked kinds come first, then a problem of severity `crit`, then the remaining verdicts on
    the steps (WARMUP, BALANCED), then everything else.
    """
    size = verdict.score if verdict.score is not None else verdict.share or 0.0
    severity = -SEVERITIES.index(verdict.severity)
    for place, kinds in enumerate(_RANKED):
        if verdict.kind in kinds:
            return place, severity, -size
    place = len(_RANKED)
    if verdict.severity != "crit":
        place += 1 if verdict.kind in _REST else 2
    return place, severity, -size
