"""Findings on evaluations, checkpoints, logging, collections, tracing and compilation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...nouns import plural
from .assessment import Assessment, add_waiting, advise, locate
from .finding import Finding
from .words import part_of, period_of, time


@dataclass(frozen=True, slots=True)
class _Rule:
    """A kind that claims all time of an account, with the waiting of other ranks for it."""

    kind: str
    account: str
    what: str
    one: str
    """The description of one occurrence."""
    advice: tuple[str, ...]
    part: float | None
    """The part of the cost that the first advice saves."""
    is_host: bool = False
    is_start: bool = False
    """Whether it is a part of the start of a run, so that a short run has it as a notice only."""


_EARLY: Final = (
    _Rule(
        "COMPILATION", "compilation", "Compilation takes", "compilation",
        ("cache compiled code between runs (TORCHINDUCTOR_CACHE_DIR)",
         "avoid recompilations: batches of constant shape, or torch.compile(dynamic=True)"),
        1.0, is_start=True,
    ),
    _Rule(
        "GARBAGE_COLLECTION", "garbage_collection", "Garbage collection takes", "collection",
        ("gc.freeze() after the set-up, and gc.disable() with a gc.collect() every N steps",),
        1.0, is_host=True,
    ),
    _Rule(
        "TRACING", "tracing", "Recording takes", "step's recording",
        ("record the phases of every tenth step only (detail_every=10)",
         "take digests and snapshots less often"),
        None, is_host=True,
    ),
)  # fmt: skip
_LATE: Final = (
    _Rule(
        "EVALUATION_HEAVY", "evaluation", "Evaluation takes", "evaluation",
        ("evaluate half as often, or on fewer batches",
         "torch.inference_mode() and a larger batch in evaluation"),
        0.5,
    ),
    _Rule(
        "CHECKPOINT_HEAVY", "checkpoint", "Checkpoints take", "checkpoint",
        ("save fewer checkpoints: twice the distance saves half of it",
         "save asynchronously (torch.distributed.checkpoint.async_save)"),
        0.5,
    ),
    _Rule(
        "LOGGING_HEAVY", "logging", "Logging takes", "logging call",
        ("log every N steps, and without .item() in between",
         "send logs from a thread or in batches"),
        None,
    ),
)  # fmt: skip


def early_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on compilation, garbage collection and tracing."""
    yield from _findings(assessment, _EARLY)


def late_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on evaluations, checkpoints and logging."""
    if assessment.is_training:
        yield from _findings(assessment, _LATE)


def _findings(assessment: Assessment, rules: tuple[_Rule, ...]) -> Iterator[Finding]:
    for rule in rules:
        bid = assessment.claims.bid()
        bid.add_all(rule.account, is_host=rule.is_host)
        if not bid.total_ns:
            continue
        add_waiting(assessment, bid, rule.account)

        def describe(finding: Finding, rule: _Rule = rule) -> None:
            _describe(assessment, rule, finding)

        finding = assessment.price(
            rule.kind,
            bid,
            describe,
            of_total=rule.is_start,
            at_most="notice" if rule.is_start and assessment.is_short else None,
        )
        if finding is not None:
            yield finding


def _describe(assessment: Assessment, rule: _Rule, finding: Finding) -> None:
    lanes = assessment.ledger.lanes
    totals = [int(each.accounts[rule.account].sum()) if rule.account in each.accounts else 0
              for each in lanes]  # fmt: skip
    lane = lanes[int(np.argmax(totals))]
    times = lane.accounts.get(rule.account, np.zeros(0, np.int64))
    units = lane.number[times > 0] if len(times) else times
    finding.scope = assessment.name_of(rule.account)
    finding.every = period_of(units)
    cost = finding.cost_ns or 0
    occurrence = ""
    if len(units):
        total = int(times.sum())
        number = int(lane.counts[rule.account].sum()) if rule.account in lane.counts else 0
        one = total / (number or len(units))
        locate(finding, units=len(units), per_unit_ns=round(total / len(units)),
               count=number or None, each_ns=round(one))  # fmt: skip
        period = f", every {finding.every} {plural(assessment.unit)}" if finding.every else ""
        occurrence = f"; {_article(rule.one)} takes {time(one)}{period}"
    used = [place for place, total in enumerate(totals) if total]
    if 0 < len(used) < len(lanes):
        finding.ranks = assessment.ranks_of(used)
    finding.sentence = (
        f"{rule.what} {time(cost / max(len(lanes), 1))}, {part_of(finding)}{occurrence}."
    )
    locate(finding, names=assessment.parts(rule.account))
    advise(finding, *rule.advice, part=rule.part)


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
