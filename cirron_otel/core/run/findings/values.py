"""Findings on marks: values that are not finite, losses that diverge, gradients that explode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..figures.medians import median_of
from ..relations import ABSENT
from .assessment import Assessment, extent_of, locate
from .facts import Facts, ValueSeries
from .failures import unit_at
from .finding import Advice, Finding
from .thresholds import Limits
from .words import known_ranks, units_text

_TENTHS: Final = 10
_FEWEST: Final = 30
_BEFORE: Final = 100
_SOME: Final = 10
_MOST_NAMES: Final = 5


def value_findings(
    facts: Facts, assessment: Assessment | None, limits: Limits
) -> Iterator[Finding]:
    """Yield the findings on marks; `assessment` is None for a run without units."""
    yield from _non_finite(facts, assessment)
    series = [part for each in facts.series for part in _by_training(each, assessment)]
    diverging = [(each, hit) for each in series if (hit := _diverges(each, limits))]
    for name in dict.fromkeys(each.name for each, _ in diverging):
        yield _diverging(facts, assessment, [pair for pair in diverging if pair[0].name == name])
    exploding = [(each, places) for each in series if len(places := _explodes(each, limits))]
    for name in dict.fromkeys(each.name for each, _ in exploding):
        yield _exploding(facts, assessment, [pair for pair in exploding if pair[0].name == name])


def _by_training(series: ValueSeries, assessment: Assessment | None) -> Iterator[ValueSeries]:
    """Yield the values of each training."""
    parts: list[slice | np.ndarray] = [slice(None)]
    if assessment is not None:
        parts = assessment.trainings_at(series.rank, series.times)
    for some in parts:
        yield replace(series, numbers=series.numbers[some], times=series.times[some])


def _is_loss(series: ValueSeries) -> bool:
    return "loss" in series.name.lower()


def _is_gradient(series: ValueSeries) -> bool:
    name = series.name.lower()
    return "grad" in name and "norm" in name


def _unit_of(assessment: Assessment | None, series: ValueSeries, place: int) -> int | None:
    if assessment is None or series.is_eval:
        return None
    at = int(series.times[place])
    return None if at == ABSENT else unit_at(assessment, series.rank, at)


def _at(facts: Facts, number: int | None, place: int) -> str:
    return f"at {facts.unit} {number}" if number is not None else f"at its value {place + 1:,}"


def _non_finite(facts: Facts, assessment: Assessment | None) -> Iterator[Finding]:
    bad = [(each, np.flatnonzero(~np.isfinite(each.numbers))) for each in facts.series]
    bad = [(each, places) for each, places in bad if len(places)]
    if not bad:
        return

    def order(pair: tuple[ValueSeries, np.ndarray]) -> tuple[int, bool]:
        return int(pair[0].times[pair[1][0]]), not _is_loss(pair[0])

    series, places = min(bad, key=order)
    # The scale of mixed precision makes some gradients infinite; these steps are skipped.
    remains = any(
        _is_loss(each) or (_is_gradient(each) and not np.isfinite(each.numbers[-1]))
        for each, _ in bad
    )
    finding = Finding("NON_FINITE", "critical" if remains else "warning", None, None, "")
    number = _unit_of(assessment, series, int(places[0]))
    if number is not None:
        finding.steps = [(number, number)]
    finding.ranks = known_ranks(each.rank for each, _ in bad)
    value = series.numbers[places[0]]
    text = "NaN" if np.isnan(value) else "infinite"
    total = sum(len(each) for _, each in bad)
    names = list(dict.fromkeys(each.name for each, _ in bad))
    others = [each for each in names if each != series.name]
    more = f", and of {', '.join(others[:_MOST_NAMES])}" if others else ""
    finding.sentence = (
        f"{series.name} is {text} {_at(facts, number, int(places[0]))}; {total:,} values of"
        f" {series.name}{more} are not finite."
    )
    locate(finding, name=series.name, value=text, values=total, first_place=int(places[0]),
           names={name: sum(len(p) for each, p in bad if each.name == name) for name in names},
           )  # fmt: skip
    finding.advice = [
        Advice(
            "look at the batch and the gradients ahead of that point; a lower learning rate,"
            " clipped gradients, or bfloat16 instead of float16"
        )
    ]
    yield finding


def _finite(series: ValueSeries) -> tuple[np.ndarray, np.ndarray]:
    places = np.flatnonzero(np.isfinite(series.numbers))
    return places, series.numbers[places]


def _diverges(series: ValueSeries, limits: Limits) -> tuple[int, float, float, float] | None:
    """Return where a loss starts to grow, and its first, smallest and last tenth."""
    if series.is_eval or not _is_loss(series):
        return None
    places, numbers = _finite(series)
    if len(numbers) < _FEWEST:
        return None
    tenths = [median_of(each) for each in np.array_split(numbers, _TENTHS)]
    first, best, last = tenths[0], min(tenths), tenths[-1]
    rises = tenths[-3] < tenths[-2] < tenths[-1]
    if best <= 0 or not rises:
        return None
    if last <= limits["diverging.first"] * first or last <= limits["diverging.best"] * best:
        return None
    begin = places[len(numbers) * tenths.index(best) // _TENTHS]
    return int(begin), first, best, last


def _diverging(
    facts: Facts,
    assessment: Assessment | None,
    hits: Sequence[tuple[ValueSeries, tuple[int, float, float, float]]],
) -> Finding:
    series, (place, first, best, last) = hits[0]
    finding = Finding("DIVERGING", "critical", None, None, "")
    finding.ranks = known_ranks(each.rank for each, _ in hits)
    number = _unit_of(assessment, series, place)
    end = _unit_of(assessment, series, len(series.numbers) - 1)
    if number is not None and end is not None:
        finding.steps = [(number, max(end, number))]
    finding.sentence = (
        f"{series.name} rises from {best:.3g} {_at(facts, number, place)} to {last:.3g} in the last"
        f" tenth of the {extent_of(assessment)}; in the first tenth it was {first:.3g}."
    )
    locate(finding, name=series.name, first=first, best=best, last=last)
    finding.advice = [
        Advice("a lower learning rate or a longer warm-up of it, and clipped gradients")
    ]
    return finding


def _explodes(series: ValueSeries, limits: Limits) -> np.ndarray:
    """Return the places of gradient norms that are far above those ahead of them."""
    places, numbers = _finite(series)
    if series.is_eval or not _is_gradient(series) or len(numbers) <= _SOME:
        return places[:0]
    factor = limits["exploding.factor"]
    # Only values far above the smallest possible median need the exact one.
    positive = numbers[numbers > 0]
    candidates = np.flatnonzero(numbers > factor * float(positive.min(initial=np.inf)))
    hits = [
        each for each in candidates[candidates >= _SOME].tolist()
        if numbers[each] > factor * median_of(numbers[max(each - _BEFORE, 0) : each]) > 0
    ]  # fmt: skip
    return places[np.array(hits, np.int64)]


def _exploding(
    facts: Facts,
    assessment: Assessment | None,
    hits: Sequence[tuple[ValueSeries, np.ndarray]],
) -> Finding:
    series, places = hits[0]
    finding = Finding("EXPLODING_GRADIENT", "warning", None, None, "")
    finding.ranks = known_ranks(each.rank for each, _ in hits)
    numbers = [_unit_of(assessment, series, int(each)) for each in places[:_BEFORE]]
    finding.steps = [(each, each) for each in dict.fromkeys(numbers) if each is not None]
    most = float(series.numbers[places].max())
    usual = median_of(_finite(series)[1])
    where = units_text(finding.steps, facts.unit) if finding.steps else f"{len(places)} values"
    who = f" of {facts.who(finding.ranks, begins=False)}" if finding.ranks else ""
    finding.sentence = (
        f"{series.name}{who} reaches {most:.3g} in {where}; it is usually {usual:.3g}."
    )
    locate(finding, name=series.name, highest=most, median=usual, values=len(places))
    finding.advice = [
        Advice("clip gradients (torch.nn.utils.clip_grad_norm_), and look at the batches of these"
               " steps")
    ]  # fmt: skip
    return finding
