"""Builds the cases of a family: parameters are drawn from the seed until the truth is clear.

A case is not clear if a price is near a threshold, if two causes have nearly the same price, or if
the drawn size is outside the definition of the kind (a spike below three times the usual unit).
Such a draw is repeated, with the next numbers of the same seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from .case import Case
from .causes import Cause, Draw, Planted, plant, scopes, steady, steady_weights
from .drawing import PRICE, Setting, draw_plan
from .plan import BETWEEN, Plan, simulate
from .truth import (
    MARGIN,
    NOT_IN_SHORT_RUNS,
    NOTICE,
    SHORT_NS,
    THRESHOLDS,
    Expected,
    is_near_threshold,
    severity,
)  # fmt: skip

Change = Callable[[np.random.Generator, Case], bool]
"""Changes a case, such as its marks; returns False if the draw must be repeated."""
_TRIES: Final = 400
_SECOND: Final = 0.62
"""The probability of a second cause. Many draws with two causes are not clear, and repeated."""
_ALMOST: Final = 0.95
_ALIKE: Final = 0.8
"""The largest price of a second cause, as a fraction of that of the first."""

SECOND: Final[Mapping[str, tuple[tuple[str, ...], Draw]]] = {
    "input": (("data_load",), steady("INPUT_BOUND", "data_load")),
    "wait": (("~end",), steady("WAIT_HEAVY", "~end")),
    "between": ((BETWEEN,), steady("BETWEEN_UNITS", BETWEEN)),
    "evaluation": (("eval",), scopes("EVALUATION_HEAVY", "eval", at_epochs=True)),
    "checkpoint": (("checkpoint_save",), scopes("CHECKPOINT_HEAVY", "checkpoint_save")),
    "logging": (("log",), scopes("LOGGING_HEAVY", "log", most=4)),
}
"""The causes that may be the second one, with the segments that they use."""


@dataclass(frozen=True, slots=True)
class Family:
    """Cases with the same cause, shape and producer."""

    name: str
    kind: str
    """The kind of finding; `healthy` if nothing is wrong."""
    build: Callable[[int], Case]
    """Return the case of a seed. The same seed gives the same case."""


def family(
    name: str,
    setting: Setting,
    cause: Draw | None = None,
    *,
    kind: str | None = None,
    producer: str = "cirron-otel",
    second: Sequence[str] = (),
    change: Change | None = None,
    is_clear: Callable[[Planted, Cause], bool] | None = None,
    price: tuple[float, float] = PRICE,
    of_plan: Callable[[np.random.Generator, Plan], Plan | None] | None = None,
    weight: float | None = None,
) -> Family:
    """Return a family whose plans are drawn from a setting.

    `second` are the causes of `SECOND` of which one may be added. `change` adds what is not time,
    such as a failure, which is then the first finding. `of_plan` changes a healthy plan, or returns
    None to draw again. With `weight`, each price is that multiple of the threshold of a warning.
    """

    def build(seed: int) -> Case:
        for attempt in range(_TRIES):
            chance = np.random.default_rng([zlib.crc32(name.encode()), seed, attempt])
            plan: Plan | None = draw_plan(chance, setting)
            if of_plan is not None and plan is not None:
                plan = of_plan(chance, plan)
            if plan is None:
                continue
            case = Case(name, seed, producer, plan, simulate(plan))
            planted = cause
            if cause is None and second and chance.random() < _SECOND / 2:
                planted = SECOND[str(chance.choice(second))][1]
            if planted is not None:
                others = second if planted is cause else ()
                if not _sick(chance, case, planted, others, price, weight, is_clear):
                    continue
            if change is not None and not change(chance, case):
                continue
            return case
        raise RuntimeError(f"{name}: no clear case for seed {seed}")

    return Family(name, kind or "healthy", build)


def _sick(
    chance: np.random.Generator,
    case: Case,
    cause: Draw,
    second: Sequence[str],
    limits: tuple[float, float],
    weight: float | None,
    is_clear: Callable[[Planted, Cause], bool] | None,
) -> bool:
    """Plant one or two causes in a case; return False if the truth is not clear."""
    causes = [cause(chance, case.plan)]
    prices = [float(np.exp(chance.uniform(*np.log(limits))))]
    if weight is not None:
        prices = [weight * THRESHOLDS[causes[0].kinds[0]][0]]
    if second and weight is None and chance.random() < _SECOND:
        used = {name for name, _ in causes[0].pattern}
        free = [each for each in second if not used & set(SECOND[each][0])]
        causes.append(SECOND[str(chance.choice(free))][1](chance, case.plan))
        prices.append(prices[0] * chance.uniform(0.3, _ALIKE))
        if sum(prices) > 0.75:
            return False
    planted = plant(case.plan, causes, prices, by_weight=weight is not None)
    case.twin = case.plan
    case.plan, case.times = planted.plan, planted.times
    found = [
        each.expected(cost, planted.plan, planted.times)
        for each, cost in zip(causes, planted.costs, strict=True)
    ]
    case.planted = found
    if weight is None and not _has_prices(found, prices):
        return False
    expected = [_in_short_run(each, case) for each in found]
    if weight is not None:
        case.expected = [expected[0]] if weight > 1 and expected[0] is not None else []
        wanted = weight * THRESHOLDS[causes[0].kinds[0]][0]
        if abs((found[0].weight or 0) - wanted) > 1e-3:
            return False
        is_large = is_clear is None or weight < 1 or is_clear(planted, causes[0])
        return is_large and (weight > 1 or _is_calm(case, _ALMOST))
    if None in expected or any(
        is_near_threshold(each.kinds[0], each.weight or 0) for each in found
    ):
        return False
    case.expected = [each for each in expected if each is not None and each.severity < 3]
    if len(causes) == 2 and not (len(case.expected) and case.expected[0] is expected[0]):
        return False
    is_sick = bool(case.expected)
    if not is_sick and not _is_calm(case, MARGIN[0] + 0.01):
        return False
    if is_sick and is_clear is not None and not is_clear(planted, causes[0]):
        return False
    return len(case.expected) < 2 or _is_ordered(*case.expected)


def _is_calm(case: Case, most: float) -> bool:
    """Return whether the costs that every unit pays are at most a multiple of their thresholds.

    A cause below its threshold claims nothing, so its time counts for these kinds.
    """
    weights = steady_weights(case.plan, case.times)
    return all(weight < most * THRESHOLDS[kind][0] for kind, weight in weights.items())


def _has_prices(found: Sequence[Expected], prices: Sequence[float]) -> bool:
    return all(
        abs((each.price or 0) - price) < 0.002 for each, price in zip(found, prices, strict=True)
    )


def _in_short_run(expected: Expected, case: Case) -> Expected | None:
    """Return what is expected in a run of this length; None if it is not clear."""
    if expected.kinds[0] not in NOT_IN_SHORT_RUNS:
        return expected
    length = case.times.extent / SHORT_NS
    if MARGIN[0] < length < MARGIN[1]:
        return None
    if length > 1:
        return expected
    return Expected((NOTICE,), expected.price, expected.weight)


def _is_ordered(first: Expected, other: Expected) -> bool:
    """Return whether the first cause is the first finding, even if costs are a quarter off."""
    most, least = (other.weight or 0) * MARGIN[1], (first.weight or 0) * MARGIN[0]
    return severity(first.kinds[0], least) <= severity(other.kinds[0], most)
