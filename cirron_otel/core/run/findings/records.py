"""Findings on the recording itself: it is incomplete, or replicas differ."""

from __future__ import annotations

from collections.abc import Iterator

from ...nouns import count as counted
from ...nouns import plural
from .assessment import locate
from .facts import Facts
from .failures import missing_ranks
from .finding import Advice, Finding, Severity


def record_findings(facts: Facts) -> Iterator[Finding]:
    """Yield the finding on an incomplete recording, and the one on replicas that differ."""
    yield from _replicas(facts)
    reasons, is_notice = [], True
    if facts.dropped_records:
        is_notice = False
        reasons.append(f"the processes dropped {facts.dropped_records:,} records")
    if facts.missing_files:
        is_notice = False
        reasons.append(f"{counted(facts.missing_files, 'batch', 'batches')} cannot be read")
    missing = missing_ranks(facts)
    if missing and (2 * len(missing) > (facts.world_size or 0) or facts.state == "running"):
        reasons.append(f"{len(missing):,} of {facts.world_size:,} ranks have no {facts.unit}")
    if facts.summarised:
        reasons.append(f"{facts.summarised:,} {plural(facts.unit)} are recorded as summaries")
    if facts.state == "running":
        reasons.append("the run has not ended")
    elif facts.state == "interrupted":
        reasons.append("the run was interrupted")
    elif facts.state == "incomplete":
        reasons.append("the end of the run is not recorded")
    if not reasons:
        return
    finding = Finding("INCOMPLETE", "notice" if is_notice else "warning", None, None, "")
    finding.sentence = f"The recording is incomplete: {'; '.join(reasons)}."
    locate(finding, dropped_records=facts.dropped_records, missing_files=facts.missing_files,
           missing_ranks=len(missing), summarised=facts.summarised, state=facts.state)  # fmt: skip
    if facts.dropped_records:
        finding.advice.append(Advice("a larger spool budget, or fewer marks and scopes"))
    if missing:
        finding.advice.append(Advice("merge the spools of all ranks, and read them together"))
    if not finding.advice:
        finding.advice.append(Advice("read it again after the run, or with all of its batches"))
    yield finding


def _replicas(facts: Facts) -> Iterator[Finding]:
    first = None if facts.replicas is None else facts.replicas.first
    if facts.replicas is None or first is None:
        return
    severity: Severity = "warning" if first.is_from_start else "critical"
    finding = Finding("REPLICAS_DIFFER", severity, None, None, "")
    finding.ranks = list(first.odd)
    begin = "from the start" if first.is_from_start else f"from step {first.first.step} on"
    verb = "has" if len(first.odd) == 1 else "have"
    finding.sentence = (
        f"{facts.who(first.odd)} {verb} other weights than the other replicas {begin}."
    )
    locate(finding, step=first.first.step, epoch=first.first.epoch, replicas=len(first.ranks),
           compared=facts.replicas.steps)  # fmt: skip
    finding.advice = [
        Advice("look for parameters without synchronisation, and for seeds that differ by rank")
    ]
    yield finding
