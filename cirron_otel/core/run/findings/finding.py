"""A finding: a cause with its price."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Severity = Literal["failure", "critical", "warning", "notice"]
SEVERITIES: Final[tuple[Severity, ...]] = ("failure", "critical", "warning", "notice")
"""The most severe first."""
_FIRST: Final = (
    "NON_FINITE", "DIVERGING", "REPLICAS_DIFFER", "EXPLODING_GRADIENT", "CREEP_CONFIRMED",
)  # fmt: skip
"""The kinds without a price that make the result of a run wrong, or end it."""


@dataclass(frozen=True, slots=True)
class Advice:
    """An action that may remove the cost of a finding."""

    text: str
    gain_ns: int | None = None
    """The time that the action saves, summed over all ranks, ns; None if it is unknown."""


@dataclass(slots=True)
class Finding:
    """A cause of lost time, or a failure, with its price."""

    kind: str
    severity: Severity
    cost_ns: int | None
    """The time of the ledger that the finding claims, summed over all ranks, ns; None for a finding
    without a price."""
    share: float | None
    """The cost as a fraction of the ledger's total."""
    sentence: str
    running_share: float | None = None
    """The cost as a fraction of the time that its severity refers to: the total without start-up,
    pauses and the like, or the total for costs of these; None for a finding without a price."""
    share_low: float | None = None
    """A lower bound of the share; None if the cost is a sum and not an estimate."""
    ranks: list[int | None] = field(default_factory=list)
    """The ranks that cause the cost; empty if all ranks do."""
    hosts: list[str] = field(default_factory=list)
    """The hosts of `ranks` that are known, which `conclude` sets."""
    epochs: list[str] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last number of each interval of units; empty if it concerns all units."""
    every: int | None = None
    """The distance of the units if it is regular."""
    moving: bool = False
    """Whether the slow rank changes."""
    phase: str | None = None
    """The recorded name of the phase."""
    scope: str | None = None
    """The recorded name of a scope that is not a phase."""
    subject: str | None = None
    """A part of the id: the account, the mark or the device that the finding is about."""
    amount: float | None = None
    """The price of the cost as money, if the price of an hour of a rank is known."""
    evidence: dict[str, Any] = field(default_factory=dict)
    advice: list[Advice] = field(default_factory=list)

    @property
    def id(self) -> str:
        """A hash of the kind, the phase, the scope, the ranks and the subject."""
        key: list[Any] = [self.kind, self.phase, self.scope, list(self.ranks)]
        if self.subject is not None:
            key.append(self.subject)
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {
            "id": self.id, "kind": self.kind, "severity": self.severity, "cost_ns": self.cost_ns,
            "share": self.share, "running_share": self.running_share,
            "share_low": self.share_low, "amount": self.amount, "ranks": self.ranks,
            "hosts": self.hosts, "epochs": self.epochs,
            "steps": [list(each) for each in self.steps], "every": self.every,
            "moving": self.moving, "phase": self.phase, "scope": self.scope,
            "sentence": self.sentence, "evidence": self.evidence,
            "advice": [{"text": each.text, "gain_ns": each.gain_ns} for each in self.advice],
        }  # fmt: skip


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings by severity, and the most expensive first within one.

    Of equal severity, values and memory that make the result of the run wrong, or end it, come
    first.
    """
    return sorted(
        findings,
        key=lambda each: (
            SEVERITIES.index(each.severity),
            each.kind not in _FIRST,
            -(each.cost_ns or 0),
        ),
    )
