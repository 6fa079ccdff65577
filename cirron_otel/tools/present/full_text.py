"""The sections of a document's text that only `--full` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ...core.analysis.metrics import is_loss
from .divergence_text import replica_lines
from .formatting import (
    cause,
    clock_time,
    duration,
    plural,
    printable,
    rank_list,
    reason,
    value_text,
    wrapped,
)
from .head import not_assessed_lines, unit_name
from .memory_text import memory_lines
from .tables import rows_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from ...core.analysis.failures import SessionFailure
    from ...core.analysis.mark_series import MarkSeries
    from ...core.analysis.metrics import LossMetric
    from ...core.analysis.run_report import GpuTime, RunReport, SlowStep
    from .document import Document, Setting

_MOST_ROWS: Final = 64
"""The maximum number of rows of a table with a row for each rank and name."""
_MOST_FAILURES: Final = 8
_MOST_RANKS: Final = 16
_MOST_EPOCHS: Final = 12
_LONGEST_TITLE: Final = 40
"""The maximum number of characters of a mark's title ahead of its means."""
_SHORT_ID: Final = 16
"""The number of digits of an OpenTelemetry span id, which `--span` also accepts."""


def full_parts(document: Document) -> Iterator[RenderableType]:
    """Yield the sections: the sessions that failed, replicas with different weights, the slowest
    units, the device times, the memory, the metrics, the marks, the configuration, and what was
    not assessed.
    """
    figures, unit = document.figures, unit_name(document)
    if figures.failures:
        yield ""
    for each in figures.failures[:_MOST_FAILURES]:
        yield from _failure(each, figures)
    if len(figures.failures) > _MOST_FAILURES:
        more = len(figures.failures) - _MOST_FAILURES
        yield f"and {more:,} more sessions that failed or were killed"
    if figures.replicas is not None and figures.replicas.first is not None:
        yield ""
        yield from replica_lines(figures.replicas.first)
    if figures.slowest_steps:
        yield f"\nThe slowest {plural(unit)}:\n"
        yield _slowest(figures.slowest_steps, unit)
    if figures.gpu:
        yield "\nOn the GPU:\n"
        yield _gpu(figures.gpu[:_MOST_ROWS])
        yield from _more(len(figures.gpu))
    memory = list(memory_lines(figures.memory))
    if memory:
        yield ""
        yield from memory
    metrics = figures.metrics
    if metrics:
        yield "\nMetrics:\n"
        yield _metrics(metrics[:_MOST_ROWS])
        yield from _more(len(metrics))
    marks = [each for each in figures.marks if not is_loss(each.name)]
    if marks:
        yield "\nMarks:\n"
        yield _marks(marks[:_MOST_ROWS])
        yield from _more(len(marks) + figures.marks_left_out)
    yield from _by_epoch(figures.marks)
    if document.configuration:
        yield "\nConfiguration:\n"
        yield _configuration(document.configuration)
    if document.not_assessed:
        yield "\nNot assessed:\n"
        yield from not_assessed_lines(document)


def _failure(failure: SessionFailure, figures: RunReport) -> Iterator[str]:
    rank = "" if failure.rank is None else f"rank {failure.rank}: "
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
    first = {each.rank: each.first_ns for each in figures.ranks}.get(failure.rank)
    if failure.time_ns is not None and first is not None:
        facts.append(f"after {duration(failure.time_ns - first)}")
    if failure.last_loss is not None:
        facts.append(f"last {printable(failure.loss_name or 'loss')} {failure.last_loss:.6g}")
    if failure.pid is not None:
        facts.append(f"process {failure.pid}")
    yield from wrapped("; ".join(facts), "  ", "  ")
    if failure.where is not None:
        yield f"  {printable(failure.where)}"


def _more(count: int) -> Iterator[str]:
    """Yield how many of `count` rows a table leaves out, if any."""
    if count > _MOST_ROWS:
        yield f"and {count - _MOST_ROWS:,} more: --json has up to 1,000"


def _rank(rank: int | None) -> str:
    return "-" if rank is None else str(rank)


def _slowest(steps: list[SlowStep], unit: str) -> Table:
    heads = ("rank", "epoch", unit, "start", "duration", "most of it in", "span")
    return rows_table(heads, {"rank", "epoch", unit, "duration"}, [
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


def _configuration(settings: list[Setting]) -> Table:
    names = [each.name for each in settings]
    return rows_table(("attribute", "value", "ranks"), set(), [
        (
            each.name,
            _setting(each.value),
            "all" if names.count(each.name) == 1 else rank_list(each.ranks),
        )
        for each in settings
    ])  # fmt: skip


def _setting(value: object) -> str:
    """Return the value of a setting as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value))


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
        yield from wrapped(" → ".join(means), f"  {title} (rank {_rank(each.rank)}): ", "    ")
