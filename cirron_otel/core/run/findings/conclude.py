"""The findings of a run, in order of severity and price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from ...nouns import count as counted
from ...nouns import plural
from ...records.memory_devices import CPU
from ..stall import Stall
from .assessment import Assessment
from .contention import contention_findings
from .courses import interval_findings, late_slowing_findings, slowing_findings
from .facts import Facts
from .failures import failure_findings
from .finding import Finding, by_severity
from .memory import memory_findings
from .readings import reading_findings
from .records import record_findings
from .run_facts import facts_of
from .scopes import early_findings, late_findings
from .spikes import first_batch_findings, spike_findings
from .starts import start_findings, uneven_findings, warm_up_findings
from .steady import steady_findings
from .stragglers import jitter_findings, straggler_findings
from .thresholds import Limits
from .values import value_findings
from .words import hosts_of

if TYPE_CHECKING:
    from ..run import Run

Status = Literal["failed", "critical", "warning", "healthy"]
_RULES: Final[Sequence[Callable[[Assessment], Iterable[Finding]]]] = (
    start_findings, warm_up_findings, early_findings, contention_findings, first_batch_findings,
    spike_findings, slowing_findings, interval_findings, late_slowing_findings,
    straggler_findings, uneven_findings, late_findings, steady_findings, jitter_findings,
)  # fmt: skip
"""The rules that claim time, in the order of their claims."""


def findings_of(
    run: Run,
    limits: Limits | None = None,
    *,
    unit: str | None = None,
    world_size: int | None = None,
    stalls: Sequence[Stall] = (),
    missing_files: int = 0,
) -> list[Finding]:
    """Return the findings of a recorded run, the most severe and expensive first.

    The arguments are those of `facts_of`.
    """
    facts = facts_of(
        run, unit=unit, world_size=world_size, stalls=stalls, missing_files=missing_files
    )
    return conclude(facts, limits)


def conclude(facts: Facts, limits: Limits | None = None) -> list[Finding]:
    """Return the findings of a run from plain values, in the order of `by_severity`.

    The costs of all findings that are a warning or more are at most the total of the ledger.
    """
    findings = by_severity(list(_findings(facts, limits or Limits())))
    hosts = facts.hosts
    for each in findings:
        each.hosts = hosts_of(each.ranks, hosts)
    return findings


def _findings(facts: Facts, limits: Limits) -> Iterator[Finding]:
    ledger = facts.ledger
    assessment = None
    if ledger is not None and ledger.lanes:
        assessment = Assessment(facts, ledger, limits)
    yield from failure_findings(facts, assessment)
    if assessment is not None:
        for rule in _RULES:
            yield from rule(assessment)
    yield from value_findings(facts, assessment, limits)
    yield from memory_findings(facts, assessment, limits)
    yield from reading_findings(facts, limits)
    yield from record_findings(facts)


def status_of(findings: Iterable[Finding]) -> Status:
    """Return the status of a run from its most severe finding."""
    severities = {each.severity for each in findings}
    if "failure" in severities:
        return "failed"
    if "critical" in severities:
        return "critical"
    return "warning" if "warning" in severities else "healthy"


def headline_of(findings: Sequence[Finding], facts: Facts) -> str:
    """Return the conclusion in one sentence.

    It is the sentence of the first finding. A run without a warning has its largest accounts.
    """
    if findings and status_of(findings) != "healthy":
        return findings[0].sentence
    ledger = facts.ledger
    if ledger is None or not ledger.lanes or ledger.total_ns <= 0:
        return f"No {facts.unit} is recorded, and no failure."
    totals = sorted(ledger.totals.items(), key=lambda each: -each[1])
    shares = [
        f"{_name(account, facts)} {100 * ns / ledger.total_ns:.0f} %" for account, ns in totals[:4]
    ]
    lanes = [each for each in ledger.lanes if len(each.number)]
    first = min((int(each.number[0]) for each in lanes), default=0)
    count = max((int(each.number.max()) + each.size for each in lanes), default=0) - first
    return f"The time of {counted(count, facts.unit)} is {', '.join(shares)}."


_HYPHENATED: Final = frozenset({"start_up", "warm_up", "shut_down"})


def _name(account: str, facts: Facts) -> str:
    if account in _HYPHENATED:
        return account.replace("_", "-")
    return account.replace("_", " ").replace("units", plural(facts.unit))


def not_assessed(facts: Facts) -> list[dict[str, Any]]:
    """Return the kinds for which data are missing: `kind`, `reason` and `remedy`."""
    missing: list[tuple[str, str, str]] = []
    ledger = facts.ledger
    lanes = [] if ledger is None else [each for each in ledger.lanes if len(each.ns)]
    if not lanes:
        missing.append(
            ("INPUT_BOUND", f"no {facts.unit} is recorded",
             "trace the loop: cirron-otel run, or ci.batches(...)")
        )  # fmt: skip
    if len(lanes) < 2:
        missing.append(("STRAGGLER", "needs 2 ranks", "record all ranks of the job in one run"))
    elif not any(bool((each.own >= 0).any()) for each in lanes):
        missing.append(
            ("STRAGGLER", "no phase in which ranks wait for each other is recorded",
             "record backward, or collectives")
        )  # fmt: skip
    elif any(each.usual_backward is None for each in lanes):
        missing.append(
            ("COMPUTE_STRAGGLER", "a rank that is slow in its backward pass alone looks like the"
             " ranks that wait for it", "record DistributedDataParallel with ddp_times")
        )  # fmt: skip
    if not facts.memory:
        for kind in ("HIGH_PRESSURE", "CREEP_CONFIRMED"):
            missing.append((kind, "no memory is recorded", "record with memory sampling"))
    elif not any(each.capacity_bytes for each in facts.memory if each.device != CPU):
        missing.append(
            ("HIGH_PRESSURE", "the capacity of the device is not recorded",
             "record with memory sampling of the device")
        )  # fmt: skip
    if facts.lacks_device_times:
        missing.append(
            ("WAIT_HEAVY", "without times on the device, it includes the wait for the device",
             "record with cuda_timing")
        )  # fmt: skip
    if not facts.series:
        missing.append(("DIVERGING", "no value is marked", "mark the loss: ci.mark('loss', value)"))
    for kind, readings, what in (
        ("HIGH_CPU", facts.cpu, "CPU utilisation"),
        ("LOW_GPU_UTIL", facts.gpu, "GPU utilisation"),
        ("GPU_HOT", facts.temperature, "temperature of a GPU"),
    ):
        if not readings:
            missing.append((kind, f"no {what} is recorded", "record with the system sampler"))
    if not facts.cpu_waits:
        missing.append(
            ("CPU_CONTENTION", "no waits for a CPU are recorded",
             "record on Linux with samples and cpu_wait")
        )  # fmt: skip
    return [{"kind": kind, "reason": reason, "remedy": remedy} for kind, reason, remedy in missing]
