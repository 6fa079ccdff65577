"""The page on many runs: their losses side by side, the best run first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ....core.analysis.mark_series import MarkSeries, Point
from ....core.analysis.metrics import LossMetric, losses
from ....core.analysis.run_losses import (
    differing_settings,
    loss_order,
    setting_text,
    shared_losses,
    short_name,
)
from ....core.analysis.runs import Run
from ....core.run.run import Run as OpenedRun
from ...present.formatting import count, local_moment
from .charts import Scale, course, values_scale
from .element import Content, Element
from .parts import note, section, short, table

DRAWN_RUNS = 40
"""The maximum number of runs whose loss is drawn."""
_POINTS = 60
_MOST_SERIES = 8
_MOST_SETTINGS = 12
_MOST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class _SweptRun:
    run: Run
    metrics: list[LossMetric]
    points: dict[tuple[str, bool], list[Point]]
    """The points of each loss of the first rank, by its name and whether it is of evaluations."""


@dataclass(slots=True)
class Sweep:
    """The losses of many runs, which are added one by one."""

    runs: list[_SweptRun] = field(default_factory=list)

    def add(self, run: Run, opened: OpenedRun) -> None:
        """Add a run that is open."""
        metrics = losses(opened.marks[0])
        wanted: dict[tuple[str, bool], int | None] = {}
        for each in metrics:
            if len(wanted) < _MOST_SERIES:
                wanted.setdefault((each.name, each.is_eval), each.ranks[0])
        known = {(each.name, each.rank, each.is_eval): each for each in opened.marks[0]}

        def series_of(name: str, rank: int | None, is_eval: bool) -> MarkSeries | None:
            is_wanted = wanted.get((name, is_eval), -1) == rank
            return known.get((name, rank, is_eval)) if is_wanted else None

        found = opened.mark_points(series_of, _POINTS)
        points = {(series.name, series.is_eval): each for series, each in found}
        self.runs.append(_SweptRun(run, metrics, points))

    def sections(self) -> Iterator[Element]:
        """Yield the table of the runs, and their losses by unit and by time."""
        shared = shared_losses({each.run.id: each.metrics for each in self.runs})
        runs = sorted(self.runs, key=lambda each: loss_order(shared.get(each.run.id)))
        yield _table(runs, shared)
        drawn = [each for each in runs if _points(each, shared)][:DRAWN_RUNS]
        if drawn:
            yield _charts(drawn, shared, len(runs))


def _points(swept: _SweptRun, shared: dict[str, LossMetric]) -> list[Point]:
    metric = shared.get(swept.run.id)
    return [] if metric is None else swept.points.get((metric.name, metric.is_eval), [])


def _table(runs: Sequence[_SweptRun], shared: dict[str, LossMetric]) -> Element:
    settings = differing_settings([each.run.resource for each in runs])[:_MOST_SETTINGS]
    title = next((short(each.title) for each in shared.values()), "loss")
    heads = ("run", "status", "began", title, "lowest", *(short(short_name(e)) for e in settings))
    rows: list[tuple[Content, ...]] = []
    for each in runs[:_MOST_ROWS]:
        metric = shared.get(each.run.id)
        values = (None, None) if metric is None else (metric.last, metric.best)
        rows.append((
            short(each.run.name), each.run.outcome, local_moment(each.run.start_ns),
            *("-" if value is None else f"{value:.6g}" for value in values),
            *(short(setting_text(each.run.resource.get(name))) for name in settings),
        ))  # fmt: skip
    more = len(runs) - len(rows)
    return section(
        "runs",
        "The runs",
        table("The runs, the best loss first", heads, rows, right=heads[3:]),
        note(f"and {count(more, 'more run')}") if more else None,
    )


def _charts(drawn: Sequence[_SweptRun], shared: dict[str, LossMetric], runs: int) -> Element:
    """Return a small chart for each run, all with one scale."""
    scale = values_scale([point for each in drawn for point in _points(each, shared)])
    more = runs - len(drawn)
    rest = f"and {count(more, 'more run')} without a loss, or beyond {DRAWN_RUNS}" if more else ""
    return section(
        "losses",
        "The loss of each run",
        note("On the left by its values in order, on the right by time. All have one scale."),
        Element("div", [_figure(each, shared, scale, by) for each in drawn for by in (0, 1)],
                class_="figures small"),
        note(rest) if rest else None,
    )  # fmt: skip


def _figure(swept: _SweptRun, shared: dict[str, LossMetric], scale: Scale, by_time: int) -> Element:
    points, metric = _points(swept, shared), shared[swept.run.id]
    if not by_time:
        points = [replace(each, begin_ns=None, end_ns=None) for each in points]
    best = "-" if metric.best is None else f"{metric.best:.4g}"
    who = f" {short(metric.title)} {'by time' if by_time else 'by value'}, lowest {best}"
    label = f"{short(swept.run.name)}:{who}"
    drawn = course(points, scale, lambda value: f"{value:.4g}", label=label)
    return Element(
        "figure",
        Element("figcaption", Element("strong", short(swept.run.name, 40)), who),
        drawn,
    )
