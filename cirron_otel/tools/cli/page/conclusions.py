"""The top of the page: failures and drops, and the resource that bounds the run."""

from __future__ import annotations

from collections.abc import Iterator

from ....core.analysis.bound import RunBound, description_of
from ....core.analysis.failures import SessionFailure
from ....core.analysis.run_time import Row, WallTime
from ....core.analysis.verdicts.verdict import Verdict
from ..divergence_text import replica_texts
from ..report_text import wall_time_names
from ..text import cause, duration, local_moment, rank_list, reason
from .content import RunContent
from .element import Content, Element
from .parts import code, note, rank_name, section, share, short, table, took

_MOST_FAILURES = 20
_MOST_RANKS = 128


def failures_section(content: RunContent) -> Element | None:
    """Return the section on failures, diverging replicas and drops; None if it is empty."""
    report = content.report
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


def bound_section(content: RunContent) -> Element | None:
    """Return the section on what bounds the run, with the wall time of each rank by kind."""
    bound, primary = content.report.bound, content.report.primary
    if bound is None:
        return None
    return section(
        "verdict",
        f"Bound by {bound.bound}",
        Element(
            "p",
            f"{description_of(bound.bound)} took {share(bound.share)} of the wall time:"
            f" {bound.evidence}.",
        ),
        Element("ul", [Element("li", each) for each in bound.suggestions]),
        *_steps(bound),
        *_primary(primary),
        *_wall_time(content),
    )


def _primary(primary: Verdict | None) -> Iterator[Content]:
    """Yield the primary verdict, unless there are too few steps for one."""
    if primary is not None and primary.kind != "WARMUP":
        ranks = f", rank {rank_list(primary.ranks)}" if primary.ranks else ""
        yield Element(
            "p",
            Element("strong", f"{primary.kind} ({primary.severity}{ranks}): "),
            f"{short(primary.why, 500)}.",
        )
        yield Element("ul", Element("li", primary.next))


def _steps(bound: RunBound) -> Iterator[Content]:
    steps = bound.in_steps
    if steps is not None:
        yield Element(
            "p",
            f"Its steps are bound by {steps.bound}: {description_of(steps.bound)} took"
            f" {share(steps.share)} of their time: {steps.evidence}.",
        )
        yield Element("ul", [Element("li", each) for each in steps.suggestions])


def _wall_time(content: RunContent) -> Iterator[Content]:
    names = wall_time_names()
    ranks = [each for each in content.report.ranks if each.steps.steps.times]
    rows = [row for row in names if any(each.time.rows[row] for each in ranks)]
    listed = [
        (rank_name(each.rank), took(each.time.total_ns),
         *(_with_share(each.time, row) for row in rows))
        for each in ranks[:_MOST_RANKS]
    ]  # fmt: skip
    heads = ("rank", "wall time", *(names[row] for row in rows))
    yield table("The wall time of each rank", heads, listed, right=heads[1:], class_="wall")
    if len(ranks) > _MOST_RANKS:
        yield note(f"and {len(ranks) - _MOST_RANKS:,} more: ", code("report --json"), " has them")


def _with_share(time: WallTime, row: Row) -> Content:
    """Return the time of a kind with its share below it, so that all columns fit the page."""
    return [duration(time.rows[row]), Element("div", share(time.share(row)), class_="dim")]
