"""The page's sections on steps (time by phase, over the run, slowest), GPU time, and marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....core.analysis.mark_series import MarkSeries, Point
from ....core.analysis.rank_report import RankReport
from ....core.analysis.run_report import SlowStep
from ...present.formatting import count, duration, local_moment, plural, rank_list, value_text
from ...present.text import training_name
from .charts import Part, Scale, course, durations_scale, stacked, values_scale
from .content import DRAWN_RANKS, RunContent
from .element import Content, Element
from .parts import (
    OTHERS,
    REST,
    Palette,
    code,
    folded,
    note,
    number,
    rank_name,
    section,
    share,
    short,
    table,
    took,
)  # fmt: skip

_MOST_RANKS = 128
_MOST_ROWS = 200
_MOST_PHASES = 640
"""The maximum number of rows of all phase tables together."""


def time_section(content: RunContent, palette: Palette) -> Element:
    """Return the section on the time of the steps by rank and phase."""
    ranks = _in_training(content.report.ranks)
    longest = max((_whole(each) for each in ranks), default=0)
    rows = [
        (
            rank_name(each.rank),
            _stack(each, palette, longest),
            took(each.run_ns),
            number(each.steps.steps.times),
            took(each.steps.steps.total_ns),
            took(each.steps.steps.median_ns) if each.steps.steps.times else "-",
        )
        for each in ranks[:_MOST_RANKS]
    ]
    heads = ("rank", "by phase", "ran for", "steps", "in steps", "median step")
    return section(
        "time",
        "Where the time went",
        palette.legend() if content.courses else None,
        table("The steps of each rank by phase", heads, rows, right=heads[2:], class_="ranks"),
        list(_trainings(content)),
        note(f"and {len(ranks) - _MOST_RANKS:,} more ranks") if len(ranks) > _MOST_RANKS else None,
        list(_phase_tables(content)),
    )


def _trainings(content: RunContent) -> Iterator[Element]:
    """Yield the table of the trainings, if there are several."""
    units = content.document.units
    if units is None or not units.trainings:
        return
    heads = ("training", plural(short(units.name, 30)), "p50", "p95", "time")
    rows = [
        (short(training_name(each)), number(each.units), *map(
            took, (each.p50_ns, each.p95_ns, each.duration_ns)))
        for each in units.trainings[:_MOST_ROWS]
    ]  # fmt: skip
    yield table("The trainings of the run", heads, rows, right=heads[1:])
    if len(units.trainings) > _MOST_ROWS:
        yield note(f"and {len(units.trainings) - _MOST_ROWS:,} more")


def _in_training(ranks: Sequence[RankReport]) -> list[RankReport]:
    """Return the ranks, except the launching process, which has no rank and no steps."""
    stated = [each for each in ranks if each.rank is not None or each.steps.steps.times]
    return stated or list(ranks)


def _whole(rank: RankReport) -> int:
    """Return the length of a rank's bar: the time of the steps, or of the phases if they
    overlap.
    """
    steps = rank.steps
    return max(steps.steps.total_ns, sum(each.total_ns for each in steps.phases))


def _stack(rank: RankReport, palette: Palette, longest: int) -> Content:
    if not rank.steps.steps.times:
        return Element("span", "no steps", class_="dim")
    times = {each.name: each.total_ns for each in rank.steps.phases}
    unattributed_ns = max(rank.steps.unattributed.total_ns, 0)
    parts = _parts(times, unattributed_ns, palette)
    return stacked(parts, longest, label=_label(parts))


def _label(parts: list[Part]) -> str:
    return short("; ".join(text for _, ns, text in parts if ns), 250)


def _parts(times: dict[str, int], rest: int, palette: Palette) -> list[Part]:
    """Return the bar's parts: phases with a separate colour, all other phases, and unattributed
    time.
    """
    parts = [
        (palette.of(name), times[name], f"{short(name, 30)}: {duration(times[name])}")
        for name in palette.names
        if name in times
    ]
    others = sum(ns for name, ns in times.items() if name not in palette.names)
    if others:
        parts.append((OTHERS, others, f"other phases: {duration(others)}"))
    return [*parts, (REST, rest, f"unattributed: {duration(rest)}")]


def _phase_tables(content: RunContent) -> Iterator[Element]:
    ranks = [each for each in content.report.ranks if each.steps.steps.times]
    for place, rank in enumerate(ranks[:DRAWN_RANKS]):
        heading = Element("summary", f"{rank_name(rank.rank).capitalize()} by phase")
        is_open = "" if place == 0 else None
        drawn = phase_table(rank, max(_MOST_PHASES // min(len(ranks), DRAWN_RANKS), 10))
        yield Element("details", heading, drawn, open=is_open)
    if len(ranks) > DRAWN_RANKS:
        more = f"{len(ranks) - DRAWN_RANKS:,} more ranks: "
        yield note(more, code("report --json"), " has their phases")


def phase_table(rank: RankReport, most: int) -> list[Content]:
    """Return a table of the phases of one rank, with at most `most` phases."""
    steps = rank.steps
    more = len(steps.phases) - most
    rows = [
        (short(each.name), number(each.times), took(each.total_ns),
         share(steps.share(each)), *map(took, each.spread().values()))
        for each in (*steps.phases[:most], steps.unattributed, steps.steps)
    ]  # fmt: skip
    heads = ("phase", "times", "total", "share", *steps.steps.spread())
    caption = f"The phases of the steps of {rank_name(rank.rank)}"
    listed = table(caption, heads, rows, right=heads[1:], class_="sum")
    more_note = note(f"and {more:,} more: ", code("report --json"), " has them")
    return [listed, more_note if more > 0 else None]


def course_section(content: RunContent) -> Element | None:
    """Return the section on the duration of the steps over the run."""
    if not content.courses:
        return None
    scale = durations_scale(point for _, points in content.courses for point in points)
    figures = [_step_course(content, rank, points, scale) for rank, points in content.courses]
    kind = " The scale is logarithmic." if scale.is_log else ""
    return section(
        "course",
        "Step time over the run",
        note(
            "The line is the median. If a point represents several steps, the band reaches from the"
            f" shortest to the longest.{kind} Point at the chart to read a value."
        ),
        Element("div", figures, class_="figures" if len(figures) > 1 else None),
    )


def _step_course(
    content: RunContent, rank: int | None, points: list[Point], scale: Scale
) -> Element:
    steps = sum(point.count for point in points)
    low, high = (
        duration(round(pick(getattr(p, name) for p in points)))
        for pick, name in ((min, "low"), (max, "high"))
    )
    text = f"{count(steps, 'step')}, {low} to {high}" if low != high else f"{steps:,} steps, {low}"
    drawn = course(
        points, scale, lambda value: duration(round(value)),
        label=f"The time of the steps of {rank_name(rank)}: {text}",
        epochs=content.epochs.get(rank, ()),
    )  # fmt: skip
    caption = Element("figcaption", Element("strong", rank_name(rank)), f" {text}")
    return Element("figure", caption, drawn)


def slowest_section(
    content: RunContent, palette: Palette, anchors: dict[str, str]
) -> Element | None:
    """Return the section on the slowest steps of all ranks."""
    steps = content.report.slowest_steps
    if not steps:
        return None
    longest = max(max(each.duration_ns, sum(each.phases.values())) for each in steps)
    rows = [
        (
            _linked(each, anchors),
            took(each.duration_ns),
            _slow_stack(each, palette, longest),
            "-" if each.rank is None else str(each.rank),
            short(each.epoch, 20),
            local_moment(each.start_ns),
            Element("code", short(each.span_id, 40)),
        )
        for each in steps[:_MOST_ROWS]
    ]
    heads = ("step", "took", "by phase", "rank", "epoch", "start", "span")
    return section(
        "slowest",
        "The slowest steps",
        table("The slowest steps", heads, rows, right=("rank", "epoch", "took"), class_="slow"),
        note(f"and {len(steps) - _MOST_ROWS:,} more") if len(steps) > _MOST_ROWS else None,
    )


def _linked(step: SlowStep, anchors: dict[str, str]) -> Content:
    named = "step" if step.index is None else f"step {short(step.index, 20)}"
    anchor = anchors.get(step.span_id or "")
    return Element("a", named, href=f"#{anchor}") if anchor is not None else named


def _slow_stack(step: SlowStep, palette: Palette, longest: int) -> Element:
    unattributed_ns = max(step.duration_ns - sum(step.phases.values()), 0)
    parts = _parts(step.phases, unattributed_ns, palette)
    most = max(parts, key=lambda part: part[1])
    return stacked(parts, longest, label=f"most of it in {most[2]}")


def gpu_section(content: RunContent) -> Element | None:
    """Return the section on GPU time; None if no GPU time is recorded."""
    scopes = content.report.gpu
    if not scopes:
        return None
    rows = [
        (short(each.name), "-" if each.rank is None else str(each.rank), number(each.count),
         took(each.gpu_ns), took(each.wall_ns))
        for each in scopes[:_MOST_ROWS]
    ]  # fmt: skip
    heads = ("scope", "rank", "times", "on the GPU", "on the host")
    return section(
        "gpu",
        "GPU time",
        note("The time of a nested scope is also part of the outer scope's time."),
        table("The time of scopes on the device", heads, rows, right=heads[1:]),
        note(f"and {len(scopes) - _MOST_ROWS:,} more") if len(scopes) > _MOST_ROWS else None,
    )


def metrics_section(content: RunContent) -> Element | None:
    """Return the section on the losses; None if the run has no losses."""
    metrics = content.report.metrics
    if not metrics:
        return None
    rows = [
        (short(each.title), rank_list(each.ranks), number(each.count),
         *("-" if value is None else f"{value:.6g}"
           for value in (each.first, each.last, each.best)))
        for each in metrics[:_MOST_ROWS]
    ]  # fmt: skip
    heads = ("metric", "ranks", "times", "first", "last", "best")
    return section(
        "metrics",
        "Metrics",
        table("The losses of the run", heads, rows, right=heads[1:]),
        note(f"and {len(metrics) - _MOST_ROWS:,} more") if len(metrics) > _MOST_ROWS else None,
    )


def marks_section(content: RunContent) -> Element | None:
    """Return the section on the series of marks; None if there are no marks."""
    marks = content.report.marks
    if not marks:
        return None
    rows = [
        (short(each.title), "-" if each.rank is None else str(each.rank), number(each.count),
         value_text(each.first), value_text(each.last),
         *("-" if value is None else f"{value:.6g}" for value in (each.min, each.max)))
        for each in marks[:_MOST_ROWS]
    ]  # fmt: skip
    heads = ("mark", "rank", "times", "first", "last", "min", "max")
    listed = table("The marks of each name and rank", heads, rows, right=heads[1:])
    more = len(marks) + content.report.marks_left_out - len(rows)
    figures = [_mark_course(content, *each) for each in content.marks]
    return section(
        "marks",
        "Marks",
        Element("div", figures, class_="figures small") if figures else None,
        folded("All marks as a table", listed) if figures else listed,
        note(f"and {more:,} more series") if more else None,
    )


def _mark_course(content: RunContent, series: MarkSeries, points: list[Point]) -> Element:
    who = f" {rank_name(series.rank)}, {series.count:,} times, last {value_text(series.last)}"
    odd = series.count - series.numbers
    drawn = course(
        points, values_scale(points), lambda value: f"{value:.4g}",
        label=f"{short(series.title)},{who}", epochs=content.epochs.get(series.rank, ()),
    )  # fmt: skip
    return Element(
        "figure",
        Element("figcaption", Element("strong", short(series.title, 40)), who,
                f"; {odd:,} not finite or no number (red)" if odd else ""),
        drawn,
    )  # fmt: skip
