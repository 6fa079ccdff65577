"""The conclusion on a run as a flat dictionary of numbers and strings, for experiment trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .conclude import conclude, headline_of, status_of
from .run_facts import facts_of

if TYPE_CHECKING:
    from ..run import Run

PREFIX: Final = "cirron/"
_MS: Final = 1_000_000
FlatSummary = dict[str, str | int | float]


def flat_summary(run: Run, world_size: int | None = None) -> FlatSummary:
    """Return the status, the headline, the findings, the ledger, and the median times in ms.

    A finding has the key `finding/KIND` in lower case and its share of the time as the value, or 1
    without a price; of several findings of a kind, that of the most severe one. Notices are left
    out. `account/NAME` is the share of an account. Raises TargetError if there is no disk space.
    """
    facts = facts_of(run, unit=run.recording.unit_name, world_size=world_size)
    findings = conclude(facts)
    ledger, together = facts.ledger, run.together
    summary: FlatSummary = {
        "status": status_of(findings),
        "headline": headline_of(findings, facts),
        "unit": facts.unit,
        "units": max((each.steps.steps.times for each in run.ranks), default=0),
        "ranks": len(run.breakdowns),
    }
    for finding in findings:
        if finding.severity != "notice":
            size = 1 if finding.share is None else finding.share
            summary.setdefault(f"finding/{finding.kind.lower()}", size)
    if ledger is not None and ledger.total_ns > 0:
        for account, ns in ledger.totals.items():
            summary[f"account/{account}"] = ns / ledger.total_ns
    if together.steps.times:
        summary["unit_ms"] = together.steps.median_ns / _MS
        for phase in together.phases:
            summary[f"phase/{phase.name}_ms"] = phase.median_ns / _MS
    return {PREFIX + key: value for key, value in summary.items()}
