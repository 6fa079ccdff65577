"""Findings on accounts that take too much of every unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...nouns import plural
from .assessment import Assessment, advise, locate
from .claims import Bid
from .finding import Finding
from .places import add_place
from .settings import advice_of, loading_advice
from .words import part_of, time


@dataclass(frozen=True, slots=True)
class _Rule:
    """A kind that claims one account, in part or completely."""

    kind: str
    account: str
    what: str
    advice: tuple[str, ...]
    is_host: bool = False
    """Whether the time is not lost while the device works."""
    against: tuple[tuple[str, float], ...] = ()
    """Accounts and factors: only the time above their sum is claimed."""
    part: float = 1.0
    """The part of the cost that the first advice saves."""


_RULES: Final = (
    _Rule(
        "INPUT_BOUND", "input", "loading",
        (),
        is_host=True,
    ),
    _Rule(
        "H2D_BOUND", "transfer", "copying batches to the device",
        ("copy asynchronously: DataLoader(pin_memory=True) and .to(device, non_blocking=True)",
         "copy smaller batches: integers or half precision, and convert on the device"),
    ),
    _Rule(
        "WAIT_HEAVY", "unattributed", "time in no phase, between data_load, forward, backward and"
        " optimizer_step,",
        ("move transforms into the DataLoader's workers, and avoid .item(), .cpu() and printing in"
         " every step",
         "name the work between the phases with ci.scope(...), so that it has a row of its own"),
        is_host=True,
    ),
    _Rule(
        "BETWEEN_UNITS", "between_units", "time between steps",
        ("log, print and use .item() less often, for example every 50 steps",
         "name the work between steps with ci.scope(...), so that it has a row of its own"),
        is_host=True,
    ),
    _Rule(
        "OPTIMIZER_HEAVY", "optimizer", "the optimizer",
        ("a fused optimizer (fused=True), or foreach=True",
         "a larger batch, so that there are fewer steps"),
        against=(("forward", 0.25), ("backward", 0.25)),
    ),
    _Rule(
        "LOSS_HEAVY", "loss", "the loss",
        ("look for loops over samples and copies to the CPU in the loss, and vectorise it",
         "torch.compile the loss"),
        against=(("forward", 1.0),),
    ),
    _Rule(
        "COMMUNICATION_BOUND", "communication", "communication",
        ("fewer synchronizations (no_sync while gradients accumulate), or larger buckets",
         "gather and log less often: each collective waits for the slowest rank"),
    ),
)  # fmt: skip


_MOST: Final = 0.6
_WAITS: Final = ("WAIT_HEAVY", "BETWEEN_UNITS", "OPTIMIZER_HEAVY")
"""The kinds whose time may be that of waiting for the device."""


def steady_findings(assessment: Assessment) -> Iterator[Finding]:
    """Yield the findings on the accounts of each unit; requests have none of these."""
    if not assessment.is_training:
        return
    for rule in _RULES:
        bid = _bid(assessment, rule)
        if bid is None:
            continue

        def describe(finding: Finding, rule: _Rule = rule, bid: Bid = bid) -> None:
            _describe(assessment, rule, bid, finding)

        is_unsure = rule.kind in _WAITS and assessment.facts.lacks_device_times
        finding = assessment.price(
            rule.kind, bid, describe, low_ns=bid.low_ns, at_most="warning" if is_unsure else None
        )
        if finding is not None:
            yield finding
    yield from _notices(assessment)


def _bid(assessment: Assessment, rule: _Rule) -> Bid | None:
    claims = assessment.claims
    bid = claims.bid()
    base = [account for account, _ in rule.against]
    if base and not any(claims.left_total(account) for account in base):
        return None
    for lane in range(len(claims.lanes)):
        if not claims.has(lane, rule.account):
            continue
        if not base:
            bid.add(lane, rule.account, None, is_host=rule.is_host)
            continue
        left = claims.left(lane, rule.account)
        usual = sum(factor * float(claims.left(lane, e).sum()) for e, factor in rule.against)
        total = float(left.sum())
        if total > usual:
            bid.add(lane, rule.account, left * ((total - usual) / total), is_host=rule.is_host)
    return bid


def _describe(assessment: Assessment, rule: _Rule, bid: Bid, finding: Finding) -> None:
    unit, units = assessment.unit, max(assessment.units, 1)
    each_ns = shown_ns = bid.total_ns / units
    finding.phase = assessment.name_of(rule.account)
    what = rule.what[0].upper() + rule.what[1:]
    if rule.kind == "BETWEEN_UNITS":
        what = f"The time between {plural(unit)}"
    if rule.kind == "WAIT_HEAVY":
        what = _gap(assessment) or what
    is_named = finding.phase is not None and finding.phase not in what
    name = f" ({finding.phase})" if is_named else ""
    rest = ""
    if rule.against:
        total = sum(int(assessment.claims.left(lane, rule.account).sum())
                    for lane in range(len(assessment.ledger.lanes)))  # fmt: skip
        shown_ns = total / units
        usual = (total - bid.total_ns) / units
        passes = " and ".join(each for each, _ in rule.against)
        compared = sum(assessment.claims.left_total(each) for each, _ in rule.against) / units
        rest = f", {passes} together {time(compared)}" if len(rule.against) > 1 else (
            f", {passes} {time(compared)}"
        )  # fmt: skip
        locate(finding, usual_ns=round(usual))
    finding.sentence = (
        f"{what}{name} takes {time(shown_ns)} of each {time(assessment.unit_ns)} {unit}{rest}:"
        f" {'an excess of ' if rest else ''}{part_of(finding)}."
    )
    locate(finding, per_unit_ns=round(each_ns), unit_ns=round(assessment.unit_ns), units=units)
    if rule.kind in _WAITS and assessment.facts.lacks_device_times:
        finding.sentence = finding.sentence[:-1] + "; it may be the work of the device."
    add_place(assessment, finding, rule.account)
    texts, part = rule.advice, rule.part
    if rule.kind == "INPUT_BOUND":
        texts, part = loading_advice(assessment, each_ns)
    advise(finding, *advice_of(rule.kind, assessment, texts), part=part)


def _gap(assessment: Assessment) -> str | None:
    """Return the gap between phases that has most of the unattributed time; None if none has."""
    gaps = assessment.parts("unattributed")
    name, ns = next(iter(gaps.items()), ("", 0))
    return f"Time {name}, in no phase," if ns > _MOST * sum(gaps.values()) else None


def _notices(assessment: Assessment) -> Iterator[Finding]:
    """Yield the notices on work that is long, and may be right."""
    claims = assessment.claims
    forward, backward = claims.left_total("forward"), claims.left_total("backward")
    cost = forward - backward
    limit = assessment.limits["forward_heavy.notice"] * assessment.running_ns
    if backward and cost > 0 and cost >= limit:
        finding = Finding("FORWARD_HEAVY", "notice", cost, assessment.share(cost), "")
        finding.running_share = assessment.running_share(cost)
        finding.phase = assessment.name_of("forward")
        units = max(assessment.units, 1)
        finding.sentence = (
            f"The forward pass takes {time(forward / units)} of each"
            f" {time(assessment.unit_ns)} {assessment.unit}, more than the backward pass"
            f" ({time(backward / units)}): many small operations may limit it."
        )
        locate(finding, forward_ns=forward, backward_ns=backward)
        add_place(assessment, finding, "forward")
        usual = ("torch.compile(model), or fewer and larger operations in forward",)
        advise(finding, *advice_of("FORWARD_HEAVY", assessment, usual), part=1.0)
        yield finding
    for name, ns in assessment.parts("other_scopes").items():
        cost = min(ns, claims.left_total("other_scopes"))
        if cost >= assessment.limits["other_scope.notice"] * max(assessment.running_ns, 1):
            share = assessment.share(cost)
            finding = Finding("OTHER_SCOPE", "notice", cost, share, "", scope=name)
            finding.running_share = assessment.running_share(cost)
            each = cost / max(assessment.units, 1)
            finding.sentence = (
                f"The scope {name} takes {time(each)} of each {time(assessment.unit_ns)}"
                f" {assessment.unit}, {part_of(finding)}."
            )
            locate(finding, per_unit_ns=round(each), unit_ns=round(assessment.unit_ns))
            advise(
                finding, "name its parts with ci.scope(...), to see which one is long", part=None
            )
            yield finding
