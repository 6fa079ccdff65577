"""The report as text, for a terminal of 80 columns."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import output
from .diagnose_text import summaries_line, verdict_lines
from .divergence_text import replica_lines
from .memory_text import memory_lines
from .tables import breakdown_table, rows_table
from .text import (
    cause,
    clock_time,
    count,
    duration,
    local_moment,
    of_ranks,
    printable,
    rank_list,
    reason,
    value_text,
    wrapped,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ...core.analysis.bound import RunBound
    from ...core.analysis.failures import SessionFailure
    from ...core.analysis.mark_series import MarkSeries
    from ...core.analysis.metrics import LossMetric
    from ...core.analysis.run_report import GpuTime, RunReport, SlowStep
    from ...core.analysis.run_time import RankReport, Row

_MOST_RANKS = 16
_MOST_ROWS = 64
"""The most rows of a table with a row for each rank and name."""
_MOST_FAILURES = 8
_MOST_EPOCHS = 12
_LONGEST_TITLE = 40
"""The most characters of a mark's title ahead of its means."""
_MOST_COLUMNS = 9
"""The maximum number of columns of the table of ranks: figures of steps, then shares of phases."""
_PHASE_WIDTH = 9
_SHORT_ID = 16
"""The number of digits of an OpenTelemetry span id, which `--span` also accepts."""
_ROWS: dict[Row, str] = {
    "set_up": "set-up, before the first step",
    "warm_up": "warm-up steps",
    "steps": "steps",
    "evaluation": "evaluation",
    "checkpoints": "checkpoints",
    "between_steps": "between steps",
    "after_steps": "after the last step",
    "pauses": "no session open",
}
_SHORT_ROWS: dict[Row, str] = {
    "set_up": "set-up", "warm_up": "warm-up", "steps": "steps", "evaluation": "eval",
    "checkpoints": "save", "between_steps": "between", "after_steps": "after", "pauses": "pause",
}  # fmt: skip


def show_report(source: str, report: RunReport) -> None:
    """Write the complete report to stdout."""
    output.result(_first_line(source, report))
    for block in (conclusions(report), _time(report), _steps(report)):
        _show_lines(block)
    if report.slowest_steps:
        output.result("\nThe slowest steps:\n")
        output.show(_slowest(report.slowest_steps))
    if report.gpu:
        output.result("\nOn the GPU:\n")
        output.show(_gpu(report.gpu[:_MOST_ROWS]))
        _show_more(len(report.gpu))
    _show_lines(memory_lines(report.memory))
    if report.metrics:
        output.result("\nMetrics:\n")
        metrics = report.metrics
        output.show(_metrics(metrics[:_MOST_ROWS]))
        _show_more(len(metrics))
    if report.marks:
        output.result("\nMarks:\n")
        output.show(_marks(report.marks[:_MOST_ROWS]))
        _show_more(len(report.marks) + report.marks_left_out)
        for line in _by_epoch(report.marks):
            output.result(line)


def _show_more(count: int) -> None:
    """Write how many of `count` rows a table leaves out, if any."""
    if count > _MOST_ROWS:
        output.result(f"and {count - _MOST_ROWS:,} more: --json has up to 1,000")


def _show_lines(block: Iterator[str | Table]) -> None:
    """Write a block of lines and tables, after an empty line unless it has no lines."""
    lines = list(block)
    if lines:
        output.result("")
    for line in lines:
        if isinstance(line, str):
            output.result(line)
        else:
            output.show(line)


def _first_line(source: str, report: RunReport) -> str:
    starts = [each.first_ns for each in report.ranks if each.first_ns is not None]
    ranks = [each.rank for each in report.ranks]
    began = f", {local_moment(min(starts))}" if starts else ""
    return f"{printable(source)}: {count(report.spans, 'span')}{of_ranks(ranks)}{began}"


def conclusions(report: RunReport, *, has_verdict: bool = True) -> Iterator[str]:
    """Yield the failures, a divergence of replicas, the bound, the primary verdict, the drops, and
    the number of summaries.
    """
    for each in report.failures[:_MOST_FAILURES]:
        yield from _failure(each, report)
    if len(report.failures) > _MOST_FAILURES:
        more = len(report.failures) - _MOST_FAILURES
        yield f"and {more:,} more sessions that failed or were killed"
    if report.replicas is not None and report.replicas.first is not None:
        yield from replica_lines(report.replicas.first)
    if report.failures and report.bound is not None:
        yield ""
    if report.bound is not None:
        yield from _bound(report.bound)
    if has_verdict and report.primary is not None and report.primary.kind != "WARMUP":
        yield from verdict_lines(report.primary, "Verdict: ")
    for drop in report.drops:
        yield f"Dropped: {drop.count:,} {drop.reason} of {who(drop.rank)}: figures are incomplete"
    if report.summarised_steps:
        yield summaries_line(report.summarised_steps)


def _failure(failure: SessionFailure, report: RunReport) -> Iterator[str]:
    rank = "" if failure.rank is None else f"{who(failure.rank)}: "
    head = f"{failure.state.upper()}: {rank}"
    known = cause(failure.cause, failure.requested_bytes)
    yield from wrapped(known + reason(failure.error), head, "  ")
    place = [
        f"{name} {printable(index)}"
        for name, index in (("epoch", failure.epoch), ("step", failure.step))
        if index is not None
    ]
    if failure.scope not in (None, "step", "epoch", "cirron.job"):
        place.append(f"scope {printable(failure.scope or '')}")
    facts = [f"in {', '.join(place)}"] if place else []
    first = {each.rank: each.first_ns for each in report.ranks}.get(failure.rank)
    if failure.time_ns is not None and first is not None:
        facts.append(f"after {duration(failure.time_ns - first)}")
    if failure.last_loss is not None:
        facts.append(f"last {printable(failure.loss_name or 'loss')} {failure.last_loss:.6g}")
    if failure.pid is not None:
        facts.append(f"process {failure.pid}")
    yield from wrapped("; ".join(facts), "  ", "  ")
    if failure.where is not None:
        yield f"  {printable(failure.where)}"


def _bound(bound: RunBound) -> Iterator[str]:
    from ...core.analysis.bound import description_of

    text = f"{description_of(bound.bound)} took {100 * bound.share:.0f} % of the wall time"
    yield from wrapped(text, f"Bound by {bound.bound}: ", "  ")
    yield from wrapped(bound.evidence, "  ", "  ")
    yield from _suggestions(bound.suggestions)
    steps = bound.in_steps
    if steps is not None:
        text = f"{description_of(steps.bound)} took {100 * steps.share:.0f} % of their time"
        yield from wrapped(text, f"Its steps are bound by {steps.bound}: ", "  ")
        yield from wrapped(steps.evidence, "  ", "  ")
        yield from _suggestions(steps.suggestions)


def _suggestions(suggestions: list[str]) -> Iterator[str]:
    for place, suggestion in enumerate(suggestions):
        yield from wrapped(suggestion, "  or: " if place else "  try: ", "    ")


def who(rank: int | None) -> str:
    """Return the name of a rank."""
    return "no rank" if rank is None else f"rank {rank}"


def _of(rank: int | None) -> str:
    return "" if rank is None else f" of {who(rank)}"


def wall_time_names() -> dict[Row, str]:
    """Return the names of the kinds of wall time, in order."""
    return _ROWS


def _trained(report: RunReport) -> list[RankReport]:
    """Return the ranks that have steps, or all ranks if none has steps."""
    trained = [each for each in report.ranks if each.steps.steps.times]
    return trained or list(report.ranks)


def _time(report: RunReport) -> Iterator[str | Table]:
    """Yield the wall time by kind, for one rank or for several ranks side by side."""
    ranks = _trained(report)
    if not ranks:
        return
    rows = [row for row in _ROWS if any(each.time.rows[row] for each in ranks)]
    if rows == ["set_up"] and all(each.rank is None for each in ranks):
        return  # the job's processes recorded nothing, so there is no first step
    if len(ranks) == 1:
        only = ranks[0]
        yield f"The wall time{_of(only.rank)}:"
        yield ""
        lines: list[tuple[str, ...]] = [
            (_ROWS[row], duration(only.time.rows[row]), _percent(only.time.share(row)))
            for row in rows
        ]
        lines.append(("total", duration(only.time.total_ns), _percent(1.0)))
        yield rows_table(("", "time", "share"), {"time", "share"}, lines)
        return
    yield "The wall time of each rank:"
    yield ""
    heads = ("rank", "wall time", *(_SHORT_ROWS[row] for row in rows))
    yield rows_table(heads, set(heads), [
        (_rank(each.rank), duration(each.time.total_ns),
         *(_percent(each.time.share(row)) for row in rows))
        for each in _shown(ranks, report)
    ])  # fmt: skip
    if len(ranks) > _MOST_RANKS:
        yield f"and {len(ranks) - _MOST_RANKS:,} more ranks: --json has them"


def _shown(ranks: Sequence[RankReport], report: RunReport) -> list[RankReport]:
    """Return the first ranks, with the slowest one among them."""
    straggler = report.straggler
    first = list(ranks[:_MOST_RANKS])
    slowest = [each for each in ranks[_MOST_RANKS:] if straggler and each.rank == straggler.rank]
    return [*first[: _MOST_RANKS - len(slowest)], *slowest]


def _steps(report: RunReport) -> Iterator[str | Table]:
    """Yield the steps of the ranks side by side, and their phases."""
    ranks = [each for each in report.ranks if each.steps.steps.times]
    if not ranks:
        return
    if len(ranks) == 1:
        yield from wrapped(_steps_line(ranks[0]), f"The steps{_of(ranks[0].rank)}: ", "  ")
        yield ""
        yield breakdown_table(ranks[0].steps)
        return
    yield "The steps of each rank:"
    yield ""
    yield _side_by_side(_shown(ranks, report), report)
    slowest = report.straggler
    if slowest is not None:
        yield ""
        yield from wrapped(
            f"{who(slowest.rank)}: {duration(slowest.own_ns)} of a step without waiting for others,"
            f" the middle of the other ranks {duration(slowest.others_ns)}; the difference is in"
            f" {printable(slowest.phase)}",
            "* the slowest is ",
            "  ",
        )
    yield ""
    if report.together is not None:
        yield "The phases of all ranks together:"
        yield ""
        yield breakdown_table(report.together)


def _steps_line(rank: RankReport) -> str:
    steady, warm = rank.steps.steady, rank.steps.warm_up
    speed, spread = rank.steps_per_second, steady.figures().spread()
    parts = [
        f"{steady.times:,}" + (f" after {warm} of warm-up" if warm else ""),
        ", ".join(f"{name} {duration(ns)}" for name, ns in spread.items()),
    ]
    return "; ".join([*parts, f"{speed:.3g} steps/s"] if speed is not None else parts)


def _side_by_side(ranks: Sequence[RankReport], report: RunReport) -> Table:
    """Return a row per rank with the share of the longest phases; a star marks the slowest."""
    fixed = ("rank", "steps", *ranks[0].steps.steps.figures().spread(), "per s")
    totals: Counter[str] = Counter()
    for each in ranks:
        totals.update({phase.name: phase.total_ns for phase in each.steps.phases})
    phases = [name for name, _ in totals.most_common(_MOST_COLUMNS - len(fixed))]
    names = [printable(name)[:_PHASE_WIDTH] for name in phases]
    heads = (*fixed, *names)
    rows = []
    for each in ranks:
        steady = each.steps.steady
        named = {phase.name: each.steps.share(phase) for phase in each.steps.phases}
        speed = each.steps_per_second
        is_slowest = report.straggler is not None and each.rank == report.straggler.rank
        rows.append((
            ("*" if is_slowest else "") + _rank(each.rank), f"{steady.times:,}",
            *map(duration, steady.figures().spread().values()),
            f"{speed:.3g}" if speed is not None else "-",
            *(_percent(named.get(name, 0.0)) for name in phases),
        ))  # fmt: skip
    return rows_table(heads, set(heads), rows)


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _slowest(steps: list[SlowStep]) -> Table:
    heads = ("rank", "epoch", "step", "start", "duration", "most of it in", "span")
    return rows_table(heads, {"rank", "epoch", "step", "duration"}, [
        (
            _rank(each.rank),
            each.epoch if each.epoch is not None else "-",
            each.index if each.index is not None else "-",
            clock_time(each.start_ns),
            duration(each.duration_ns),
            _most(each),
            each.span_id[:_SHORT_ID] if each.span_id is not None else "-",
        )
        for each in steps
    ])  # fmt: skip


def _most(step: SlowStep) -> str:
    unattributed_ns = step.duration_ns - sum(step.phases.values())
    name, ns = max(
        [*step.phases.items(), ("unattributed", unattributed_ns)], key=lambda part: part[1]
    )
    return f"{name}, {100 * ns / max(step.duration_ns, 1):.0f} %"


def _gpu(times: list[GpuTime]) -> Table:
    heads = ("scope", "rank", "times", "on the GPU", "on the host")
    return rows_table(heads, set(heads[1:]), [
        (
            each.name,
            _rank(each.rank),
            f"{each.count:,}",
            duration(each.gpu_ns),
            duration(each.wall_ns),
        )
        for each in times
    ])  # fmt: skip


def _metrics(metrics: list[LossMetric]) -> Table:
    heads = ("metric", "ranks", "times", "first", "last", "best")
    return rows_table(heads, set(heads[1:]), [
        (
            metric.title,
            rank_list(metric.ranks),
            f"{metric.count:,}",
            *(
                "-" if value is None else f"{value:.6g}"
                for value in (metric.first, metric.last, metric.best)
            ),
        )
        for metric in metrics
    ])  # fmt: skip


def _marks(marks: list[MarkSeries]) -> Table:
    heads = ("mark", "rank", "times", "first", "last", "min", "max")
    return rows_table(heads, set(heads[1:]), [
        (
            each.title,
            _rank(each.rank),
            f"{each.count:,}",
            *(value_text(value) for value in (each.first, each.last)),
            *("-" if value is None else f"{value:.6g}" for value in (each.min, each.max)),
        )
        for each in marks
    ])  # fmt: skip


def _by_epoch(marks: list[MarkSeries]) -> Iterator[str]:
    """Yield the mean per epoch of each series that spans several epochs."""
    shown = [each for each in marks if len(each.epochs) > 1]
    if shown:
        yield ""
        yield "The mean of each epoch:"
        yield ""
    for each in shown[:_MOST_RANKS]:
        means = [f"{epoch.mean:.4g}" for epoch in each.epochs]
        if len(means) > _MOST_EPOCHS:
            means = [*means[: _MOST_EPOCHS // 2], "…", *means[-_MOST_EPOCHS // 2 :]]
        title = printable(each.title)
        if len(title) > _LONGEST_TITLE:
            title = f"{title[: _LONGEST_TITLE - 1]}…"
        head = f"{title} (rank {_rank(each.rank)}): "
        yield from wrapped(" → ".join(means), f"  {head}", "    ")
