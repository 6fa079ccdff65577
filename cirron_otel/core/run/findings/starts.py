"""Findings on the start of a run, its restarts, and its uneven end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...nouns import count as counted
from ...nouns import plural
from .assessment import Assessment, advise, locate
from .finding import Finding, Severity
from .words import intervals, part_of, time


def warm_up_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the finding on slow first units."""
    bid = assessment.claims.bid()
    bid.add_all("warm_up")
    count = max((int(np.count_nonzero(each.accounts["warm_up"])) for each in assessment.ledger.lanes
                 if "warm_up" in each.accounts), default=0)  # fmt: skip

    def describe(finding: Finding) -> None:
        each, unit = bid.total_ns / max(len(assessment.ledger.lanes), 1), assessment.unit
        first = f"The first {count} {plural(unit)} take" if count > 1 else f"The first {unit} takes"
        finding.steps = [(0, count - 1)] if count else []
        if len(trainings := assessment.ledger.trainings) > 1:
            first = f"The first {plural(unit)} of {len(trainings)} trainings take"
            finding.steps = intervals(_units_with(assessment, "warm_up"))
        finding.sentence = f"{first} {time(each)} longer than the others, {part_of(finding)}."
        locate(finding, units=count, excess_ns=round(each))
        advise(finding, "cache compiled code and tuned kernels between runs"
               " (TORCHINDUCTOR_CACHE_DIR)", "judge the speed by a longer run")  # fmt: skip

    at_most: Severity | None = "notice" if assessment.is_short else None
    finding = assessment.price("WARM_UP", bid, describe, of_total=True, at_most=at_most)
    if finding is not None:
        yield finding


def start_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on the time until the first unit, and on restarts."""
    yield from _restarted(assessment)
    if not assessment.is_training:
        return
    bid = assessment.claims.bid()
    for place, lane in enumerate(assessment.ledger.lanes):
        later = sum(times.get("start_up", 0) for _, times in lane.restarts)
        bid.add_outside(place, "start_up", lane.outside.get("start_up", 0) - later)

    def describe(finding: Finding) -> None:
        each = bid.total_ns / max(len(assessment.ledger.lanes), 1)
        finding.sentence = (
            f"The first {assessment.unit} starts after {time(each)}, {part_of(finding)}."
        )
        locate(finding, start_up_ns=round(each), parts=assessment.parts("start_up"))
        advise(finding, "cache the preparation between runs: tokenized texts, decoded files,"
               " compiled code", "judge the speed by a longer run")  # fmt: skip

    at_most: Severity | None = "notice" if assessment.is_short else None
    found = assessment.price("START_UP", bid, describe, of_total=True, at_most=at_most)
    if found is not None:
        yield found


def _restarted(assessment: Assessment) -> Iterator[Finding]:
    bid, claims = assessment.claims.bid(), assessment.claims
    bid.add_all("lost")
    for place, lane in enumerate(claims.lanes):
        for _, times in lane.restarts:
            for account in ("paused", "start_up"):
                bid.add_outside(place, account, times.get(account, 0))
    if not bid.total_ns:
        return

    def describe(finding: Finding) -> None:
        ledger = assessment.ledger
        repeated = _units_with(assessment, "lost")
        lost = bid.by_account.get("lost", 0) / max(len(ledger.lanes), 1)
        each = bid.total_ns / max(len(ledger.lanes), 1)
        steps = counted(len(repeated), f"repeated {assessment.unit}")
        again = f", {time(lost)} of it for {steps}"
        finding.sentence = (
            f"The run was restarted: this costs {time(each)},"
            f" {part_of(finding)}{again if repeated else ''}."
        )
        failures = [{"rank": e.rank, "error": e.error} for e in assessment.facts.failures[:10]]
        locate(finding, accounts_ns=bid.by_account, repeated_units=len(repeated),
               failures=failures)  # fmt: skip
        advise(finding, "save checkpoints more often, and remove the cause of the restart",
               part=lost * len(ledger.lanes) / max(bid.total_ns, 1))  # fmt: skip

    finding = assessment.price("RESTARTED", bid, describe, of_total=True)
    if finding is not None:
        yield finding


def _units_with(assessment: Assessment, account: str) -> list[int]:
    """Return the numbers of the units with time in an account, in order."""
    lanes = [each for each in assessment.ledger.lanes if account in each.accounts]
    return sorted({int(n) for each in lanes for n in each.number[each.accounts[account] > 0]})


def uneven_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the finding on ranks that have fewer units than the others, and end earlier."""
    lanes = assessment.ledger.lanes
    if any(each.thread is not None for each in lanes):
        return  # the trainings of several threads do not wait for each other
    counts = [len(np.unique(each.number)) * each.size for each in lanes]
    most = max(counts, default=0)
    short = [place for place, count in enumerate(counts) if 0 < count < most]
    if not short or assessment.facts.state == "running" or not assessment.is_training:
        return
    bid = assessment.claims.bid()
    for lane in short:
        bid.add_outside(lane, "ended")

    def describe(finding: Finding) -> None:
        finding.ranks = assessment.ranks_of(short)
        fewest = min(counts[place] for place in short)
        verb = "has" if len(short) == 1 else "have"
        finding.sentence = (
            f"{assessment.facts.who(finding.ranks)} {verb} fewer {plural(assessment.unit)} than the"
            f" others (at least {fewest:,} of {most:,}) and"
            f" {'waits' if len(short) == 1 else 'wait'} for the end: {part_of(finding)}."
        )
        locate(finding, units={str(lanes[each].rank): counts[each] for each in short[:100]},
               longest=most)  # fmt: skip
        advise(finding, "give all ranks the same number of batches: DistributedSampler, or"
               " drop_last=True")  # fmt: skip

    finding = assessment.price("UNEVEN", bid, describe)
    if finding is not None:
        yield finding
