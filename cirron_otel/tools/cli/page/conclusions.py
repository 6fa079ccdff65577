"""The top of the page: the conclusion with its ledger, and failures and drops."""

from __future__ import annotations

from collections.abc import Iterator

from ....core.analysis.failures import SessionFailure
from ....core.run.findings.finding import Finding
from ...present.divergence_text import replica_texts
from ...present.document import Document
from ...present.findings_text import per_rank, place, price, severity_word
from ...present.formatting import cause, duration, local_moment, reason
from ...present.head import ignored_text
from ...present.ledger_rows import LedgerRows, RankRow, account_name, percentages
from .content import RunContent
from .element import Content, Element
from .parts import code, note, rank_name, section, share, short, table, took

_MOST_FAILURES = 20
_MOST_FINDINGS = 50
_MOST_RANKS = 128
_LONGEST_SENTENCE = 1000


def conclusion_section(content: RunContent) -> Element:
    """Return the section with the status, the headline, the findings, and the ledger."""
    document = content.document
    findings = document.findings[:_MOST_FINDINGS]
    more = len(document.findings) - len(findings)
    return section(
        "verdict",
        f"{severity_word(document.status).capitalize()}: "
        f"{short(document.headline, _LONGEST_SENTENCE)}",
        Element("ul", [_finding(each, document) for each in findings]) if findings else None,
        note(f"and {more:,} more: ", code("report --json"), " has them") if more else None,
        note(ignored_text(document.ignored)) if document.ignored else None,
        list(_ledger(document.ledger, content.unit)) if document.ledger is not None else None,
    )


def _finding(finding: Finding, document: Document) -> Element:
    unit = "step" if document.units is None else document.units.name
    facts = "; ".join(filter(None, (price(finding, document.ledger), place(finding, unit))))
    advice = []
    for each in finding.advice:
        gain = (
            ""
            if each.gain_ns is None
            else f" (saves up to {per_rank(each.gain_ns, document.ledger)})"
        )
        advice.append(Element("li", short(each.text, _LONGEST_SENTENCE) + gain))
    return Element(
        "li",
        Element("strong", f"{finding.kind} ({finding.severity})"),
        f": {short(facts, _LONGEST_SENTENCE)}" if facts else None,
        Element("div", short(finding.sentence, _LONGEST_SENTENCE))
        if finding.sentence != document.headline
        else None,
        Element("ul", advice) if advice else None,
    )


def _ledger(ledger: LedgerRows, unit: str) -> Iterator[Content]:
    """Yield the accounts of all ranks, and those of each rank."""
    shares = percentages([row.ns for row in ledger.accounts])
    rows: list[tuple[Content, ...]] = [
        (account_name(row.account, unit), took(round(row.ns / max(len(ledger.ranks), 1))),
         f"{part} %",
         short(", ".join(name for name, _ in row.parts)) if row.parts else "")
        for row, part in zip(ledger.accounts, shares, strict=True)
    ]  # fmt: skip
    rows.append(("total", took(ledger.extent_ns), "100.0 %", ""))
    heads = ("account", "time", "share", "scopes")
    yield table(
        "The time by account, as the mean of all ranks",
        heads,
        rows,
        right=heads[1:3],
        class_="sum ledger",
    )
    if len(ledger.ranks) > 1:
        yield from _by_rank(ledger, unit)


def _by_rank(ledger: LedgerRows, unit: str) -> Iterator[Content]:
    accounts = [row.account for row in ledger.accounts]
    rows = [
        (rank_name(each.rank), took(each.total_ns), *(_with_share(each, a) for a in accounts))
        for each in ledger.ranks[:_MOST_RANKS]
    ]
    heads = ("rank", "time", *(account_name(each, unit) for each in accounts))
    yield table("The time of each rank by account", heads, rows, right=heads[1:], class_="wall")
    if len(ledger.ranks) > _MOST_RANKS:
        more = len(ledger.ranks) - _MOST_RANKS
        yield note(f"and {more:,} more: ", code("report --json"), " has them")


def _with_share(rank: RankRow, account: str) -> Content:
    """Return the time of an account with its share below it, so that all columns fit the page."""
    ns = rank.accounts.get(account, 0)
    return [duration(ns), Element("div", share(ns / max(rank.total_ns, 1)), class_="dim")]


def failures_section(content: RunContent) -> Element | None:
    """Return the section on failures, diverging replicas and drops; None if it is empty."""
    report = content.document.figures
    rows: list[Content] = [_failure(each) for each in report.failures[:_MOST_FAILURES]]
    if len(report.failures) > _MOST_FAILURES:
        rows.append(f"{len(report.failures) - _MOST_FAILURES:,} more sessions failed")
    replicas = report.replicas
    divergence = None if replicas is None else replicas.first
    if divergence is not None:
        difference, cause_text = replica_texts(divergence)
        rows.append([Element("strong", f"diverged: {difference}"), Element("div", cause_text)])
    rows += [
        f"dropped while recording, {rank_name(each.rank)}: {each.count:,} {short(each.reason)}"
        for each in report.drops[:_MOST_FAILURES]
    ]
    if not rows:
        return None
    has_failed = bool(report.failures) or divergence is not None
    return Element(
        "section",
        Element("h2", "What failed" if has_failed else "What was dropped", id="failed-h"),
        Element("ul", [Element("li", row) for row in rows]),
        class_="warning",
        aria_labelledby="failed-h",
    )


def _failure(failure: SessionFailure) -> Content:
    place = [
        f"{name} {short(index, 20)}"
        for name, index in (("epoch", failure.epoch), ("step", failure.step))
        if index is not None
    ]
    facts = [", ".join(place)] if place else []
    if failure.time_ns is not None:
        facts.append(local_moment(failure.time_ns))
    if failure.last_loss is not None:
        facts.append(f"last {short(failure.loss_name, 30)} {failure.last_loss:.6g}")
    if failure.where is not None:
        facts.append(short(failure.where, 200))
    rank = "" if failure.rank is None else f"{rank_name(failure.rank)} "
    known = cause(failure.cause, failure.requested_bytes)
    head = f"{rank}{failure.state}: {known}"
    return [
        Element("strong", head + short(reason(failure.error), 300)),
        Element("div", "; ".join(facts)),
    ]
