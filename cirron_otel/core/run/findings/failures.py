"""Findings on processes that failed, were killed, stalled, or recorded nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from ....semconv import JOB, OUT_OF_MEMORY
from ...analysis.failures import SessionFailure
from .assessment import Assessment, advise, locate
from .claims import Bid
from .facts import Facts
from .finding import Advice, Finding, Severity
from .words import known_ranks, ranks_text, size, time

_INTERRUPTS: Final = re.compile(r"KeyboardInterrupt|SIGINT|exit code 130\b")
_EXIT_CODE: Final = re.compile(r"exit code (\d{1,3})\b")
_SIGNALS: Final = 128
"""An exit code above this one is that of a signal, in a shell's convention."""
_MOST: Final = 100
_MOST_MISSING: Final = 1_000_000
_LESS_MEMORY: Final = (
    "a smaller batch with gradient accumulation, activation checkpointing, or sharded optimizer"
    " state"
)


def failure_findings(facts: Facts, assessment: Assessment | None) -> Iterator[Finding]:
    """Yield the findings on failures; `assessment` is None for a run without units."""
    failures = _uninterrupted(facts.failures)
    last = [each for each in failures if not _is_continued(facts, each)]
    bid = None if assessment is None else assessment.claims.bid()
    if last:
        yield _failure(facts, assessment, bid, last)
    yield from _retried(facts, assessment, bool(last))
    yield from _stalled(facts, assessment)
    yield from _missing(facts)


def is_interrupt(error: str | None) -> bool:
    """Return whether the error of a session is that of a user who interrupted it."""
    return error is not None and _INTERRUPTS.search(error) is not None


def _uninterrupted(failures: Sequence[SessionFailure]) -> list[SessionFailure]:
    """Return the failures ahead of an interrupt by the user; all if there was none."""
    times = [each.time_ns or 0 for each in failures if is_interrupt(each.error)]
    if not times:
        return list(failures)
    first = min(times)
    return [
        each for each in failures
        if not is_interrupt(each.error) and each.time_ns is not None and each.time_ns < first
    ]  # fmt: skip


def _is_continued(facts: Facts, failure: SessionFailure) -> bool:
    """Return whether a later process of the same rank continued the run."""
    end_ns = failure.time_ns
    return end_ns is not None and any(
        each.id != failure.session
        and each.start_ns is not None
        and each.start_ns >= end_ns
        and (failure.rank in each.ranks or (failure.rank is None and not each.ranks))
        for each in facts.sessions
    )


def _failure(
    facts: Facts, assessment: Assessment | None, bid: Bid | None, failures: Sequence[SessionFailure]
) -> Finding:
    first = failures[0]
    is_job = first.scope == JOB
    code = _EXIT_CODE.search(first.error) if is_job else None
    is_killed = first.state == "killed" or (code is not None and int(code[1]) > _SIGNALS)
    kind = "KILLED" if is_killed else "FAILED"
    if first.cause == OUT_OF_MEMORY:
        kind = "OUT_OF_MEMORY"
    finding = Finding(kind, "failure", None, None, "")
    number = None
    if assessment is not None and bid is not None:
        for account in ("lost", "ended", "stalled"):
            bid.add_all(account)
        finding.cost_ns, finding.share = bid.total_ns, assessment.share(bid.total_ns)
        bid.commit()
        number = unit_at(assessment, first.rank, first.time_ns)
    finding.ranks = [] if first.rank is None else [first.rank]
    if number is not None:
        finding.steps = [(number, number)]
    if first.epoch is not None:
        finding.epochs = [first.epoch]
    if first.scope in ("forward", "backward", "loss", "optimizer_step", "data_load", "h2d"):
        finding.phase = first.scope
    elif not is_job:
        finding.scope = first.scope
    who = "The command" if is_job else facts.who([first.rank])
    finding.sentence = f"{who} {_event(kind, first)}{_where(facts, first, number)}: {first.error}"
    others = [each for each in failures[1:] if each.scope != JOB]
    victims = [_brief(each) for each in others[:_MOST]]
    if victims:
        processes = "process" if len(others) == 1 else "processes"
        finding.sentence += f"; {len(others)} other {processes} ended because of it"
    finding.sentence += "."
    locate(
        finding, error=first.error, where=first.where, step=first.step, epoch=first.epoch,
        session=first.session, time_ns=first.time_ns, last_loss=first.last_loss, victims=victims,
    )  # fmt: skip
    if first.requested_bytes is not None:
        locate(finding, requested_bytes=first.requested_bytes)
    finding.advice = [Advice(_failure_advice(kind, first))]
    return finding


def _event(kind: str, failure: SessionFailure) -> str:
    if kind == "OUT_OF_MEMORY":
        requested = failure.requested_bytes
        return "ran out of memory" + (f" ({size(requested)} requested)" if requested else "")
    return "was killed" if kind == "KILLED" else "failed"


def _where(facts: Facts, failure: SessionFailure, number: int | None) -> str:
    scope = f" in {failure.scope}" if failure.scope not in (None, "step", JOB) else ""
    if number is None:
        return scope if failure.step is None else f"{scope}, {facts.unit} {failure.step}"
    is_exact = failure.state == "failed" and failure.scope != JOB
    at = "at" if is_exact else "at or after"
    return f"{scope} {at} {facts.unit} {number}"


def _failure_advice(kind: str, failure: SessionFailure) -> str:
    if kind == "OUT_OF_MEMORY":
        return _LESS_MEMORY
    if kind == "KILLED":
        return (
            "look in the kernel's and the scheduler's log for who ended the process: memory, time"
            " limit, preemption"
        )
    return f"look at {failure.where}" if failure.where else "look at the exception's stack trace"


def _brief(failure: SessionFailure) -> dict[str, Any]:
    return {"rank": failure.rank, "state": failure.state, "error": failure.error}


def unit_at(assessment: Assessment, rank: int | None, time_ns: int | None) -> int | None:
    """Return the number of a rank's last unit that started by a time; None if there is none."""
    lane = assessment.lane_of(rank)
    if lane is None or time_ns is None:
        return None if lane is None else int(lane.number[-1])
    place = int(np.searchsorted(lane.start, time_ns, side="right")) - 1
    return int(lane.number[place]) if place >= 0 else None


def _retried(facts: Facts, assessment: Assessment | None, has_failed: bool) -> Iterator[Finding]:
    """Yield the finding on out-of-memory errors after which the process continued."""
    events = list(facts.out_of_memory)
    if has_failed and any(each.cause == OUT_OF_MEMORY for each in facts.failures):
        return
    if not events:
        return
    first = events[0]
    number = None if assessment is None else unit_at(assessment, first.rank, first.time_ns)
    finding = Finding("OUT_OF_MEMORY", "critical", None, None, "")
    finding.ranks = known_ranks(each.rank for each in events)
    if assessment is not None:
        numbers = {unit_at(assessment, each.rank, each.time_ns) for each in events[:_MOST]}
        finding.steps = [(each, each) for each in sorted(e for e in numbers if e is not None)]
    at = "" if number is None else f" at {facts.unit} {number}"
    times = "" if len(events) == 1 else f", {len(events)} times in all"
    finding.sentence = f"{facts.who([first.rank])} ran out of memory{at} and continued{times}."
    locate(finding, errors=len(events), retried=True, device=first.device,
           requested_bytes=first.requested_bytes)  # fmt: skip
    finding.advice = [Advice(_LESS_MEMORY)]
    yield finding


def _stalled(facts: Facts, assessment: Assessment | None) -> Iterator[Finding]:
    """Yield the finding on a unit that did not end, or took very long at the end."""
    if facts.stalls:
        worst = max(facts.stalls, key=lambda each: each.silent_ns)
        scope = worst.scopes[-1] if worst.scopes else None
        finding = Finding("STALLED", "failure", None, None, "", scope=scope)
        finding.ranks = known_ranks(each.rank for each in facts.stalls)
        place = "" if scope is None else f"; the innermost open scope is {scope}"
        finding.sentence = (
            f"{facts.who([worst.rank])} has finished no {facts.unit} for {time(worst.silent_ns)},"
            f" and a {facts.unit} takes {time(worst.median_step_ns)}{place}."
        )
        locate(finding, silent_ns=worst.silent_ns, median_unit_ns=worst.median_step_ns,
               open_scopes=list(worst.scopes))  # fmt: skip
        finding.advice = [
            Advice("look at the open scope; py-spy dump --pid PID shows the stack of the process")
        ]
        yield finding
        return
    if assessment is None:
        return
    bid = assessment.claims.bid()
    bid.add_all("stalled")
    if not bid.total_ns:
        return
    severity: Severity | None = "failure"
    if facts.state in ("ended", "running"):  # the unit has ended after all
        severity = assessment.severity("STALLED", bid.total_ns)
    if severity is None:
        return
    lanes = list(bid.by_lane)
    longest = max(bid.by_lane.values())
    finding = Finding("STALLED", severity, bid.total_ns, assessment.share(bid.total_ns), "")
    finding.ranks = assessment.ranks_of(lanes)
    lane = assessment.ledger.lanes[max(lanes, key=lambda each: bid.by_lane[each])]
    number = int(lane.number[int(lane.accounts["stalled"].argmax())])
    finding.steps = [(number, number)]
    at = f" {number}"
    finding.sentence = (
        f"{facts.who(finding.ranks or [None])} stalled in {facts.unit}{at} for {time(longest)}."
    )
    locate(finding, stalled_ns=longest)
    advise(finding, "look at the innermost open scope and at the other ranks' last unit")
    if severity != "notice":
        bid.commit()
    yield finding


def _missing(facts: Facts) -> Iterator[Finding]:
    """Yield the finding on ranks without records, if most ranks have some.

    If most ranks are missing, the recording has only a part of the job: `INCOMPLETE` reports it.
    """
    missing = missing_ranks(facts)
    if not missing or 2 * len(missing) > (facts.world_size or 0) or facts.state == "running":
        return
    finding = Finding("RANK_MISSING", "failure", None, None, "")
    finding.ranks = list(missing[:_MOST])
    verb = "has" if len(missing) == 1 else "have"
    finding.sentence = (
        f"{ranks_text(finding.ranks)} of {facts.world_size} {verb} recorded no {facts.unit}."
    )
    locate(finding, missing=len(missing), world_size=facts.world_size)
    finding.advice = [
        Advice("look at the logs of these ranks: they did not start, or did not record")
    ]
    yield finding


def missing_ranks(facts: Facts) -> list[int]:
    """Return the ranks of the job's world size that have no unit, at most about a million."""
    if facts.ledger is None or facts.world_size is None:
        return []
    present = {each.rank for each in facts.ledger.lanes if len(each.ns)}
    known = {rank for rank in present if rank is not None}
    # A world size below a rank is that of another process, which had started the ranks.
    if not known or None in present or max(known) >= facts.world_size:
        return []
    ranks = range(min(facts.world_size, len(present) + _MOST_MISSING))
    return [rank for rank in ranks if rank not in present]
