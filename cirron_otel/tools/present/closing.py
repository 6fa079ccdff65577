"""The closing words of a job: the conclusion, the first findings, and the course of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .findings_text import finding_parts
from .formatting import WIDTH, duration, printable
from .head import conclusion_parts, fact_lines, unit_name
from .sparkline import sparkline

if TYPE_CHECKING:
    from rich.text import Text

    from ...core.analysis.metrics import LossMetric
    from ...core.run.run import Run
    from .document import Document

_MOST_FINDINGS: Final = 3
_MOST_POINTS: Final = 40
_LONGEST_LABEL: Final = 16


@dataclass(frozen=True, slots=True)
class Course:
    """A series of numbers over the run."""

    label: str
    values: Sequence[float]
    format_value: Callable[[float], str]


def courses_of(run: Run, document: Document) -> list[Course]:
    """Return the unit time of the first rank that has units, and the loss of the training."""
    found = []
    ranks = [] if document.units is None else [rank for rank, _ in document.units.ranks]
    for rank in ranks[:1]:
        points = run.unit_points(rank, _MOST_POINTS)
        times = [each.middle for each in points if each.numbers]
        found.append(Course(f"{unit_name(document)} time", times, lambda ns: duration(round(ns))))
    losses = [each for each in document.figures.metrics if not each.is_eval]
    if losses:
        found += _loss_courses(run, document, losses[0])
    return found


def _loss_courses(run: Run, document: Document, metric: LossMetric) -> Iterator[Course]:
    key = metric.name, metric.ranks[0], metric.is_eval
    series = {(each.name, each.rank, each.is_eval): each for each in document.figures.marks}
    wanted = {key: series[key]} if key in series else {}
    for _, points in run.mark_points(lambda *each: wanted.get(each), _MOST_POINTS):
        values = [each.middle if each.numbers else math.nan for each in points]
        yield Course(metric.title, values, lambda value: f"{value:.4g}")


def closing_parts(
    document: Document, courses: Sequence[Course] = (), encoding: str | None = "utf-8"
) -> Iterator[str | Text]:
    """Yield the lines of the closing words.

    `encoding` is that of the output: without the block characters, the courses are ASCII.
    """
    yield from conclusion_parts(document)
    yield from fact_lines(document)
    shown = [each for each in document.findings if each.severity != "notice"][:_MOST_FINDINGS]
    for each in shown:
        yield ""
        yield from finding_parts(each, unit_name(document), document.headline, document.ledger)
    more = len(document.findings) - len(shown)
    lines = list(_course_lines(courses, encoding))
    if lines:
        yield ""
        yield from lines
    if more:
        yield f"{more:,} more in `cirron-otel report`" if shown else _notices(more)


def _notices(count: int) -> str:
    return f"{count:,} {'notice' if count == 1 else 'notices'} in `cirron-otel report --full`"


def _course_lines(courses: Sequence[Course], encoding: str | None) -> Iterator[str]:
    drawn = [each for each in courses if len(each.values) > 1]
    labels = [printable(each.label)[:_LONGEST_LABEL] for each in drawn]
    width = max(map(len, labels), default=0)
    for label, each in zip(labels, drawn, strict=True):
        finite = [value for value in each.values if math.isfinite(value)]
        low, high = (each.format_value(pick(finite)) if finite else "?" for pick in (min, max))
        between = low if low == high else f"{low} to {high}"
        yield f"{label:<{width}}  {sparkline(each.values, encoding)}  {between}"[:WIDTH]
